"""Trees: the ranges, in order, that contain the entries of one version.

They are read, and kept in a cache of those that were read last. New ranges are made from those of a
parent and the changes.

Boundaries of ranges depend on content: a range ends after a path whose hash is divisible by the
target, or when it is full. A change therefore rewrites the range that contains its path. If it
moves a boundary, it also rewrites the following ranges, up to the next unchanged boundary. All
other ranges are shared with the parent, by id. Only ranges of the parent are shared; every other
range gets a new id.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from operator import attrgetter
from threading import Lock
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.ids import ID_PATTERN, new_id
from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import range_address, tree_address
from ebbtide.store.content.ranges import (
    RangeInfo,
    ReadRange,
    checksum_of,
    corrupt,
    decode,
    encode,
    fetch,
    read_range,
    write_range,
)

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
    data = encode(table)
    storage.put(tree.address, data)
    return checksum_of(data)


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
    data = fetch(storage, address, checksum, family="tree")
    table = decode(data, TREE_SCHEMA, address=address, family="tree")
    problem = _problem(table)
    if problem:
        raise corrupt("tree", address, problem)
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
    return _at(read_range(storage, info) if read is None else read(info), path)


def _at(entries: Sequence[Entry], path: str) -> Entry | None:
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


def find_held(cache: ContentCache, tree_id: str, checksum: str, path: str) -> Entry | None:
    """Returns the entry of one path of a tree, if the cache has the tree and the range. Reads no
    file."""
    tree = cache.held(_tree_name(tree_id), checksum)
    info = tree.find(path) if isinstance(tree, Tree) else None
    entries = None if info is None else cache.held(info.address, info.checksum)
    return _at(entries, path) if isinstance(entries, tuple) else None


ENTRIES_MAX: Final = 200_000


class ContentCache:
    """Reads the ranges and trees of one storage, and keeps the last used ones. Thread-safe.

    It holds at most `entries_max` items: entries of ranges, and ranges of trees. An item takes
    about half a kilobyte. The file that was read last is kept even if it alone has more items. A
    run can have deleted a cached file: the caller decides whether it may still be read.
    """

    def __init__(self, storage: Storage, *, entries_max: int = ENTRIES_MAX) -> None:
        self._storage = storage
        self._entries_max = entries_max
        self._held: OrderedDict[tuple[str, str], Tree | Sequence[Entry]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def range(self, info: RangeInfo) -> Sequence[Entry]:
        """Returns the entries of a range. Raises as `read_range` does."""
        found = self._get(
            (info.address, info.checksum), lambda: tuple(read_range(self._storage, info))
        )
        return cast("Sequence[Entry]", found)

    def tree(self, tree_id: str, checksum: str) -> Tree:
        """Returns a tree. Raises as `read_tree` does."""
        found = self._get(
            (_tree_name(tree_id), checksum), lambda: read_tree(self._storage, tree_id, checksum)
        )
        return cast("Tree", found)

    def held(self, name: str, checksum: str) -> Tree | Sequence[Entry] | None:
        """Returns the tree or the entries of the range with that name, if they are in the cache."""
        key = (name, checksum)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def _get(
        self, key: tuple[str, str], load: Callable[[], Tree | Sequence[Entry]]
    ) -> Tree | Sequence[Entry]:
        found = self.held(*key)
        if found is not None:
            return found
        # Read without the lock: two threads can read the same file, but none waits for another.
        loaded = load()
        with self._lock:
            if key not in self._held:
                self._held[key] = loaded
                self._weight += _weight(loaded)
            while self._weight > self._entries_max and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._weight -= _weight(dropped)
        return loaded


def _tree_name(tree_id: str) -> str:
    return f"tree {tree_id}"


def _weight(held: Tree | Sequence[Entry]) -> int:
    return 1 + (len(held.ranges) if isinstance(held, Tree) else len(held))


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
