"""Builds the ranges of a new tree from the ranges of its parent and the changes.

Boundaries depend on content: a range ends after a path whose hash is divisible by the target, or
when it is full. A change therefore rewrites the range that contains its path. If it moves a
boundary, it also rewrites the following ranges, up to the next unchanged boundary. All other ranges
are shared with the parent, by id. Only ranges of the parent are shared; every other range gets a
new id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from ebbtide.ids import new_id
from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import range_address
from ebbtide.store.content.ranges import RangeInfo, ReadRange, read_range, write_range
from ebbtide.store.content.trees import Tree

PathChange: TypeAlias = tuple[str, Entry | None]
"""A path with its new entry, or None if the path is deleted."""

TARGET_ENTRIES: Final = 2_048
"""The average number of entries in a range. The largest range has four times as many."""

_FULL_FACTOR: Final = 4


def apply_changes(
    storage: Storage,
    tree: Tree,
    changes: Iterable[PathChange],
    *,
    register: Callable[[str], None],
    target_entries: int = TARGET_ENTRIES,
    read: ReadRange | None = None,
) -> tuple[RangeInfo, ...]:
    """Returns the ranges of `tree` after `changes`, and writes the new ones.

    `changes` ascend strictly by path. A change without effect (an equal entry, or a delete of a
    missing path) rewrites nothing. `register` is called with the address of each new range before
    its first byte is written. Memory holds one range of the tree and one new range at a time.

    Raises ValueError if changes are out of order, or have an entry of another path. Also raises the
    errors of `read_range` and `Storage.put`; the ranges written until then are garbage.
    """
    read = read or (lambda info: read_range(storage, info))
    pending = _Changes(changes)
    builder = _Builder(storage, register, target_entries)
    for position, info in enumerate(tree.ranges):
        # The last range can end where the tree ended, and not at a boundary. Later entries are
        # then added to it.
        open_ended = position == len(tree.ranges) - 1 and not builder.ends_range(info)
        untouched = pending.exhausted if open_ended else not pending.reaches(info.last_path)
        if builder.at_boundary and untouched:
            builder.share(info)
            continue
        for entry, changed in _changed(read(info), pending.until(info.last_path)):
            builder.add(entry, None if changed else info)
    for _, entry in pending.until(None):
        # The delete of a missing path changes nothing.
        if entry is not None:
            builder.add(entry, None)
    return builder.finish()


class _Changes:
    """The changes in order, with a preview of the next one."""

    def __init__(self, changes: Iterable[PathChange]) -> None:
        self._rest = iter(changes)
        self._next = next(self._rest, None)

    @property
    def exhausted(self) -> bool:
        """Whether all changes were taken."""
        return self._next is None

    def reaches(self, path: str) -> bool:
        """Whether the next change is at `path` or before it."""
        return self._next is not None and self._next[0] <= path

    def until(self, path: str | None) -> Iterator[PathChange]:
        """Yields the next changes up to and including `path`; all changes if it is None."""
        while self._next is not None and (path is None or self._next[0] <= path):
            current, entry = self._next
            self._next = next(self._rest, None)
            if entry is not None and entry.path != current:
                raise ValueError(f"the change of {current!r} has an entry of {entry.path!r}")
            if self._next is not None and self._next[0] <= current:
                raise ValueError(f"changes ascend by path: {self._next[0]!r} after {current!r}")
            yield current, entry


def _changed(
    entries: Sequence[Entry], changes: Iterator[PathChange]
) -> Iterator[tuple[Entry | None, bool]]:
    """Yields the new entries, each with a flag that is true if it differs from the old entry.

    For a deleted entry, this is None and true. The delete of a missing path is left out.
    """
    change = next(changes, None)
    for entry in entries:
        while change is not None and change[0] < entry.path:
            if change[1] is not None:
                yield change[1], True
            change = next(changes, None)
        if change is not None and change[0] == entry.path:
            yield change[1], change[1] != entry
            change = next(changes, None)
        else:
            yield entry, False
    # Every change is at or before the last entry's path, so that no change is left here.


class _Builder:
    """Collects entries in order, and writes a range at each boundary."""

    def __init__(
        self, storage: Storage, register: Callable[[str], None], target_entries: int
    ) -> None:
        if target_entries < 1:
            raise ValueError("a range has at least one entry")
        self._storage = storage
        self._register = register
        self._target = target_entries
        self._ranges: list[RangeInfo] = []
        self._buffer: list[Entry] = []
        self._origin: RangeInfo | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether the next entry begins a range."""
        return not self._buffer

    def ends_range(self, info: RangeInfo) -> bool:
        """Whether the rule ends this range at its last path, whatever entries follow."""
        return self._ends(info.last_path, info.entry_count)

    def share(self, info: RangeInfo) -> None:
        """Adds a range of the parent unchanged. Call it at a boundary only."""
        self._ranges.append(info)

    def add(self, entry: Entry | None, origin: RangeInfo | None) -> None:
        """Adds the next entry, or None for a deleted entry.

        `origin` is the parent's range, if the entry is an unchanged entry of it. If a range
        consists of all entries of one parent's range, and of nothing else, the parent's range is
        used.
        """
        if origin is None:
            self._origin = None
        elif self.at_boundary and entry is not None and entry.path == origin.first_path:
            self._origin = origin
        if entry is None:
            return
        self._buffer.append(entry)
        if self._ends(entry.path, len(self._buffer)):
            self._flush()

    def finish(self) -> tuple[RangeInfo, ...]:
        """Returns all ranges. The last one ends with the last entry."""
        if self._buffer:
            self._flush()
        return tuple(self._ranges)

    def _ends(self, path: str, count: int) -> bool:
        if count >= _FULL_FACTOR * self._target:
            return True
        digest = blake2b(path.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self._target == 0

    def _flush(self) -> None:
        origin, entries = self._origin, self._buffer
        self._origin, self._buffer = None, []
        if origin is not None and len(entries) == origin.entry_count:
            self._ranges.append(origin)
            return
        range_id = new_id()
        self._register(range_address(range_id))
        self._ranges.append(write_range(self._storage, entries, range_id=range_id))
