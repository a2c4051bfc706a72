"""The difference between two trees. Ranges that both trees share are not read."""

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
    """A path whose content differs. The entry is None on a side that does not have the path."""

    path: str
    left: Entry | None
    right: Entry | None
    conflicts: bool = False

    @property
    def kind(self) -> Literal["added", "removed", "changed", "conflict"]:
        """The kind of change from left to right. `conflict`: both sides changed the path since
        their base."""
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
    """Yields the paths whose content differs (`same_content`), ascending.

    Only paths that begin with `prefix` and sort after `after` are compared. Ranges that both trees
    share are not read. Memory holds one range of each tree. Raises the errors of `read_range`.
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
    """A position in a tree. A range is not read before one of its entries is taken."""

    def __init__(self, ranges: Sequence[RangeInfo], read: ReadRange) -> None:
        self._ranges = ranges
        self._read = read
        self._range_index = 0
        self._entries: Sequence[Entry] = ()
        self._entry_index = 0

    @property
    def ended(self) -> bool:
        """Whether no entry is left."""
        return self._range_index == len(self._ranges)

    @property
    def path(self) -> str:
        """The path of the next entry. At the start of a range it is known without reading the
        range."""
        if self._entry_index == 0:
            return self._ranges[self._range_index].first_path
        return self._entries[self._entry_index].path

    def shares_range_with(self, other: _Cursor) -> bool:
        """Whether both cursors are at the start of the same range.

        Because ranges are in order, both cursors reach a shared range at the same time. A cursor
        inside a range has read the range: its entries are compared, never skipped.
        """
        if self.ended or other.ended or self._entry_index or other._entry_index:
            return False
        return self._ranges[self._range_index] == other._ranges[other._range_index]

    def skip_range(self) -> None:
        """Moves to the next range without reading this one."""
        self._range_index += 1
        self._entry_index = 0

    def take(self, path: str) -> Entry | None:
        """Returns the next entry and moves past it, if its path is `path`; otherwise returns
        None."""
        if self.ended or self.path != path:
            return None
        if self._entry_index == 0:
            self._entries = self._read(self._ranges[self._range_index])
        entry = self._entries[self._entry_index]
        self._entry_index += 1
        if self._entry_index == len(self._entries):
            self.skip_range()
        return entry
