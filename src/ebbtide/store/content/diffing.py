"""The difference of two trees, without reading what they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry, same_content
from ebbtide.store.content.ranges import RangeInfo, ReadRange, read_range
from ebbtide.store.content.trees import Tree


@dataclass(frozen=True, slots=True)
class Change:
    """One path whose content differs; the entry is None on the side that has none."""

    path: str
    left: Entry | None
    right: Entry | None
    conflicts: bool = False

    @property
    def kind(self) -> Literal["added", "removed", "changed", "conflict"]:
        """What happened from left to right; a conflict where both changed it since their base."""
        if self.conflicts:
            return "conflict"
        if self.left is None:
            return "added"
        return "removed" if self.right is None else "changed"


def diff_trees(
    storage: Storage,
    left: Tree,
    right: Tree,
    *,
    prefix: str = "",
    after: str = "",
    read: ReadRange | None = None,
) -> Iterator[Change]:
    """The paths whose content differs (see `same_content`), ascending.

    Only those that begin with `prefix` and sort behind `after`. Ranges that both trees share are
    not read. Memory holds one range of each. Raises what `read_range` raises.
    """
    read = read or (lambda info: read_range(storage, info))
    ours = _Cursor(left.overlapping(prefix, after=after), read)
    theirs = _Cursor(right.overlapping(prefix, after=after), read)
    while not (ours.ended and theirs.ended):
        if ours.shares_range_with(theirs):
            ours.skip_range()
            theirs.skip_range()
            continue
        path = min(cursor.path for cursor in (ours, theirs) if not cursor.ended)
        change = Change(path, ours.take(path), theirs.take(path))
        if path > after and path.startswith(prefix) and not same_content(change.left, change.right):
            yield change


class _Cursor:
    """A place in a tree. A range is read when an entry of it is taken, not before."""

    def __init__(self, ranges: Sequence[RangeInfo], read: ReadRange) -> None:
        self._ranges = ranges
        self._read = read
        self._range_index = 0
        self._entries: Sequence[Entry] = ()
        self._entry_index = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self._range_index == len(self._ranges)

    @property
    def path(self) -> str:
        """The path of the next entry; known without reading where it begins a range."""
        if self._entry_index == 0:
            return self._ranges[self._range_index].first_path
        return self._entries[self._entry_index].path

    def shares_range_with(self, other: _Cursor) -> bool:
        """Whether both are at the start of one and the same range.

        Trees whose ranges are in order come to a shared range together; only a cursor inside a
        range has read it, and what was read is compared, never skipped.
        """
        if self.ended or other.ended or self._entry_index or other._entry_index:
            return False
        return self._ranges[self._range_index] == other._ranges[other._range_index]

    def skip_range(self) -> None:
        """Go on to the next range without reading this one."""
        self._range_index += 1
        self._entry_index = 0

    def take(self, path: str) -> Entry | None:
        """The next entry if it is that of `path`, which is then behind the cursor."""
        if self.ended or self.path != path:
            return None
        if self._entry_index == 0:
            self._entries = self._read(self._ranges[self._range_index])
        entry = self._entries[self._entry_index]
        self._entry_index += 1
        if self._entry_index == len(self._entries):
            self.skip_range()
        return entry
