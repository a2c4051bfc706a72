"""The changes that an import makes to the tree of a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final

from ebbtide.store.content.building import PathChange
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import ReadRange
from ebbtide.store.content.trees import Tree

CHANGES_PER_SIGN: Final = 10_000

_path: Final = itemgetter(0)


@dataclass(frozen=True, slots=True)
class ImportChanges:
    """The changes, ascending by path. Can be iterated repeatedly.

    Each path of `entries` gets its entry. Other paths of the tree that begin with one of `replaced`
    are deleted. `sign` is called after each CHANGES_PER_SIGN changes, and may raise.
    """

    entries: Iterable[Entry]
    replaced: tuple[str, ...]
    tree: Tree
    read: ReadRange
    sign: Callable[[], None]

    def __iter__(self) -> Iterator[PathChange]:
        deleted = ((path, 0, None) for path in self._deletable())
        written = ((entry.path, 1, entry) for entry in self.entries)
        both: Iterator[tuple[str, int, Entry | None]]
        both = merge(deleted, written, key=itemgetter(0, 1))
        for count, (path, changes) in enumerate(groupby(both, _path), 1):
            # If the path is imported, its entry comes after its deletion.
            *_, (_, _, entry) = changes
            yield path, entry
            if count % CHANGES_PER_SIGN == 0:
                self.sign()

    def _deletable(self) -> Iterator[str]:
        """Yields the paths of the tree that begin with one of `replaced`, ascending."""
        done: str | None = None
        for prefix in sorted(set(self.replaced)):
            if done is not None and prefix.startswith(done):
                continue
            done = prefix
            for info in self.tree.overlapping(prefix):
                yield from (
                    entry.path for entry in self.read(info) if entry.path.startswith(prefix)
                )
