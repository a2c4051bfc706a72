"""Reads entries of a tree: one path, or all paths with a prefix."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import ReadRange, read_range
from ebbtide.store.content.trees import Tree

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
