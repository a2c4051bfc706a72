"""Building the ranges of a new tree from a parent's and the changes to it.

Boundaries depend on content: a range ends behind a path whose hash is divisible by the target, or
when it is full. A change therefore rewrites the range that it falls into and, where it moves a
boundary, its neighbours up to the next one; the others are shared with the parent by id. Nothing
else is ever shared: what is not the parent's gets a fresh id.
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
"""A path with its new entry, or None when it is deleted."""

TARGET_ENTRIES: Final = 2_048
"""Entries of a range on average; the largest holds four times as many."""

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
    """The ranges of `tree` with `changes` made to it; those that are new are written.

    `changes` ascend strictly by path; one that changes nothing (an entry equal in every field,
    the deletion of a path that is not there) rewrites nothing. `register` is called with the
    address of each new range before its first byte is written. Memory holds one range of the tree
    and one new range at a time.

    Raises ValueError on changes out of order or with an entry of another path, and whatever
    `read_range` and `Storage.put` raise: the ranges written until then are garbage.
    """
    read = read or (lambda info: read_range(storage, info))
    pending = _Changes(changes)
    builder = _Builder(storage, register, target_entries)
    for position, info in enumerate(tree.ranges):
        # The last range ends where the tree ended, not at a boundary: what follows joins it.
        open_ended = position == len(tree.ranges) - 1 and not builder.ends_range(info)
        untouched = pending.exhausted if open_ended else not pending.reaches(info.last_path)
        if builder.at_boundary and untouched:
            builder.share(info)
            continue
        for entry, changed in _changed(read(info), pending.until(info.last_path)):
            builder.add(entry, None if changed else info)
    for _, entry in pending.until(None):
        # The deletion of what is not there changes nothing.
        if entry is not None:
            builder.add(entry, None)
    return builder.finish()


class _Changes:
    """The changes, with a look at the next one."""

    def __init__(self, changes: Iterable[PathChange]) -> None:
        self._rest = iter(changes)
        self._next = next(self._rest, None)

    @property
    def exhausted(self) -> bool:
        """Whether all were handed on."""
        return self._next is None

    def reaches(self, path: str) -> bool:
        """Whether the next one is at `path` or before it."""
        return self._next is not None and self._next[0] <= path

    def until(self, path: str | None) -> Iterator[PathChange]:
        """The next ones up to and with `path`; all with None."""
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
    """The entries with the changes made, each with whether it differs from what was there.

    A deleted entry is None and has changed; the deletion of nothing is left out.
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
    # Every change is at or before the last entry's path, hence none is left.


class _Builder:
    """Collects entries in order and writes a range at each boundary."""

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
        """Whether a range ends where it does by the rule, whatever follows."""
        return self._ends(info.last_path, info.entry_count)

    def share(self, info: RangeInfo) -> None:
        """Take over a range of the parent as it is; only at a boundary."""
        self._ranges.append(info)

    def add(self, entry: Entry | None, origin: RangeInfo | None) -> None:
        """Take the next entry, or None for one that is no more.

        `origin` is the parent's range that it is an unchanged entry of. A range that is made of
        all entries of one such, and nothing else, is that one.
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
        """All ranges, the last of which ends where the entries do."""
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
