"""Trees: the ranges, in order, that contain the entries of one version; and reading these."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.ids import ID_PATTERN
from ebbtide.storage import Storage
from ebbtide.store.content import files
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import tree_address
from ebbtide.store.content.ranges import RangeInfo, ReadRange, read_range

_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("range_id", pa.string(), nullable=False),
    pa.field("first_path", pa.string(), nullable=False),
    pa.field("last_path", pa.string(), nullable=False),
    pa.field("entry_count", pa.int64(), nullable=False),
    pa.field("bytes_total", pa.int64(), nullable=False),
    pa.field("checksum", pa.string(), nullable=False),
)

TREE_SCHEMA: Final = pa.schema(_FIELDS)
"""The columns of a tree: its ranges, in the order of their paths."""

_WHOLE_ID: Final = rf"\A{ID_PATTERN}\z"
_last_path: Final = attrgetter("last_path")


@dataclass(frozen=True, slots=True)
class Tree:
    """All entries of one version. `ranges` ascend and do not overlap; there may be none."""

    tree_id: str
    ranges: tuple[RangeInfo, ...] = ()

    @property
    def address(self) -> str:
        """The address of the tree's file."""
        return tree_address(self.tree_id)

    @property
    def entry_count(self) -> int:
        """The number of paths."""
        return sum(info.entry_count for info in self.ranges)

    @property
    def bytes_total(self) -> int:
        """The sum of the sizes of all entries (bytes). An object that two paths share counts
        twice."""
        return sum(info.bytes_total for info in self.ranges)

    def find(self, path: str) -> RangeInfo | None:
        """Returns the only range that can contain `path`, or None."""
        index = bisect_left(self.ranges, path, key=_last_path)
        if index == len(self.ranges) or path < self.ranges[index].first_path:
            return None
        return self.ranges[index]

    def overlapping(self, prefix: str = "", *, after: str = "") -> tuple[RangeInfo, ...]:
        """Returns the ranges that may contain paths with `prefix` that sort after `after`."""
        start = bisect_left(self.ranges, max(prefix, after), key=_last_path)
        return tuple(
            takewhile(
                lambda info: info.first_path < prefix or info.first_path.startswith(prefix),
                self.ranges[start:],
            )
        )


def write_tree(storage: Storage, tree: Tree) -> str:
    """Writes a tree under its new id. Returns the checksum of its file.

    Raises ValueError if its ranges are not in order, and the errors of `Storage.put`.
    """
    columns: list[pa.Array[Any]] = [
        pa.array([getattr(info, each.name) for info in tree.ranges], each.type)
        for each in TREE_SCHEMA
    ]
    table = pa.Table.from_arrays(columns, schema=TREE_SCHEMA)
    problem = _problem(table)
    if problem:
        raise ValueError(problem)
    data = files.encode(table)
    storage.put(tree.address, data)
    return files.checksum_of(data)


def read_tree(storage: Storage, tree_id: str, checksum: str) -> Tree:
    """Reads the tree whose file has this checksum.

    Raises Refused `missing_tree`, `corrupt_tree` (also if its ranges are not in order) or
    `unknown_format_version`; Failed `storage_error`.
    """
    table = read_tree_table(storage, tree_id, checksum)
    columns = (table.column(name).to_pylist() for name in table.column_names)
    return Tree(tree_id, tuple(map(RangeInfo, *columns)))


def read_tree_table(storage: Storage, tree_id: str, checksum: str) -> pa.Table:
    """Returns the ranges of a tree as a table (TREE_SCHEMA). Raises as `read_tree` does."""
    address = tree_address(tree_id)
    data = files.fetch(storage, address, checksum, family="tree")
    table = files.decode(data, TREE_SCHEMA, address=address, family="tree")
    problem = _problem(table)
    if problem:
        raise files.corrupt("tree", address, problem)
    return table


def _problem(table: pa.Table) -> str | None:
    """Returns the defect of a table of ranges (TREE_SCHEMA), or None."""
    ids, first, last = (table.column(name) for name in ("range_id", "first_path", "last_path"))
    place = _first_false(pc.match_substring_regex(ids, _WHOLE_ID))
    if place is not None:
        return f"{ids[place].as_py()!r} is no id of a range"
    has_entries = pc.greater(table.column("entry_count"), pa.scalar(0))
    place = _first_false(pc.and_(pc.less_equal(first, last), has_entries))
    if place is not None:
        return f"the range {ids[place]} is empty"
    place = _first_false(pc.less(last.slice(0, max(len(ids) - 1, 0)), first.slice(1)))
    if place is not None:
        return f"the ranges {ids[place]} and {ids[place + 1]} overlap"
    return None


def _first_false(flags: Any) -> int | None:
    """Returns the index of the first false value in a column of booleans, or None."""
    if pc.all(flags, min_count=0).as_py():
        return None
    place: int = pc.index(flags, pa.scalar(False)).as_py()
    return place


_path: Final = attrgetter("path")


def find_entry(
    storage: Storage, tree: Tree, path: str, *, read: ReadRange | None = None
) -> Entry | None:
    """Returns the entry of one path, or None. Raises the errors of `read_range`."""
    info = tree.find(path)
    if info is None:
        return None
    entries = read_range(storage, info) if read is None else read(info)
    index = bisect_left(entries, path, key=_path)
    return entries[index] if index < len(entries) and entries[index].path == path else None


def iterate_entries(
    storage: Storage,
    tree: Tree,
    *,
    prefix: str = "",
    after: str = "",
    read: ReadRange | None = None,
) -> Iterator[Entry]:
    """Yields the entries whose paths begin with `prefix` and sort after `after`, ascending.

    Holds one range in memory. Raises the errors of `read_range`.
    """
    read = read or (lambda info: read_range(storage, info))
    for info in tree.overlapping(prefix, after=after):
        entries = read(info)
        first = bisect_left(entries, max(prefix, after), key=_path)
        for entry in entries[first:]:
            if not entry.path.startswith(prefix):
                # The path is not before the prefix, so it sorts after all paths with the prefix.
                return
            if entry.path > after:
                yield entry
