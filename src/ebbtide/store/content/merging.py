"""Three-way merge of trees, path by path. If both sides changed a path differently, this is a
conflict. Without a strategy it is reported, and not resolved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ebbtide.storage import Storage
from ebbtide.store.content.building import PathChange
from ebbtide.store.content.diffing import Change, diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.ranges import ReadRange
from ebbtide.store.content.trees import Tree

Strategy = Literal["source-wins", "dest-wins"]
"""The side whose entry is taken if both sides changed a path differently."""


@dataclass(frozen=True, slots=True)
class MergeChanges:
    """The changes that a merge makes to the destination, ascending by path. Can be iterated
    repeatedly.

    Each iteration reads the trees again, so that a merge of any size fits in memory. Paths in
    conflict are left out unless a strategy decides them.
    """

    storage: Storage
    base: Tree
    source: Tree
    destination: Tree
    strategy: Strategy | None
    read: ReadRange | None

    def __iter__(self) -> Iterator[PathChange]:
        for path, theirs, ours in _sides(self):
            if theirs is None:
                continue
            if ours is None or (self.strategy == "source-wins" and _conflicting(theirs, ours)):
                yield path, theirs.right


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of a merge: the changes to the destination, and the conflicts.

    `conflicts` are all paths in conflict, ascending. It is empty if a strategy was given.
    `change_count` is the number of `changes`.
    """

    changes: MergeChanges
    change_count: int
    conflicts: tuple[str, ...]


def merge_trees(
    storage: Storage,
    base: Tree,
    source: Tree,
    destination: Tree,
    *,
    strategy: Strategy | None = None,
    read: ReadRange | None = None,
) -> Merged:
    """Merges the changes of `source` since `base` into `destination`.

    - If only the source changed a path, its entry is taken.
    - If only the destination changed a path, or both changed it to the same content, the entry and
      address of the destination stay. The same bytes uploaded again are no change (`same_content`).
    - If both changed a path differently, or one changed it and the other deleted it, this is a
      conflict.

    Raises the errors of `read_range`.
    """
    changes = MergeChanges(storage, base, source, destination, strategy, read)
    conflicts = []
    if strategy is None:
        conflicts = [
            path
            for path, theirs, ours in _sides(changes)
            if theirs is not None and ours is not None and _conflicting(theirs, ours)
        ]
    return Merged(changes, sum(1 for _ in changes), tuple(conflicts))


def _conflicting(theirs: Change, ours: Change) -> bool:
    return not same_content(theirs.right, ours.right)


def _sides(merge: MergeChanges) -> Iterator[tuple[str, Change | None, Change | None]]:
    """Yields each path that the source or the destination changed, with the change of each side."""
    sources = diff_trees(merge.storage, merge.base, merge.source, read=merge.read)
    destinations = diff_trees(merge.storage, merge.base, merge.destination, read=merge.read)
    theirs, ours = next(sources, None), next(destinations, None)
    while theirs is not None or ours is not None:
        path = min(change.path for change in (theirs, ours) if change is not None)
        from_source = theirs if theirs is not None and theirs.path == path else None
        from_destination = ours if ours is not None and ours.path == path else None
        yield path, from_source, from_destination
        if from_source is not None:
            theirs = next(sources, None)
        if from_destination is not None:
            ours = next(destinations, None)
