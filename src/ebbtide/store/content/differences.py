"""The difference between two trees, and the three-way merge of trees, path by path.

Ranges that both trees share are not read. If both sides of a merge changed a path differently, this
is a conflict. Without a strategy it is reported, and not resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry, same_content
from ebbtide.store.content.ranges import RangeInfo, ReadRange, read_range
from ebbtide.store.content.trees import PathChange, Tree


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
