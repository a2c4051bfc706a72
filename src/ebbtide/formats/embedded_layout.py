"""The layout of the embedded store's files: how they are listed, and how trees and ranges are
read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, around
from ebbtide.formats.base import (
    NODES_SCHEMA,
    Listing,
    ListingItem,
    Slices,
    in_shares,
    outside,
)
from ebbtide.ids import instant_of
from ebbtide.storage import Storage
from ebbtide.store.content.layout import (
    COLLECTOR_PREFIX,
    DATA_PREFIX,
    POINTER_SUFFIX,
    PURGES_PREFIX,
    RANGES_PREFIX,
    TREES_PREFIX,
    classify,
)
from ebbtide.store.content.ranges import read_range_addresses, read_range_files
from ebbtide.store.content.trees import read_tree_table

_IN_SLICE: Final = re.compile(f"{DATA_PREFIX}([^/]+)/")
_RUNS_MAX: Final = 16
"""The most groups of neighbours that are found by comparing prefixes. Later addresses are
matched one by one."""
_RUN_MIN: Final = 16
"""Addresses behind a smaller group are matched one by one, too: those of a range are in no order of
slices."""
_SYSTEM_PREFIX: Final = COLLECTOR_PREFIX.split("/")[0] + "/"


@dataclass(frozen=True, slots=True)
class EmbeddedLayout:
    """Files of the embedded store: objects in slices, trees, ranges."""

    delete_order: tuple[str, ...] = ("tree", "range", "object", "temporary")
    checked_kinds: tuple[str, ...] = ("tree", "range")

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns a unit of listing for each slice.

        Files outside of slices are listed by directories, two levels deep, because one directory
        may have many foreign files. All trees are in one directory, and so are all ranges: these
        two listings are divided among tasks.
        """
        items = [ListingItem("", recursive=False)]
        young = 0
        for top in storage.list_prefixes():
            if top not in (DATA_PREFIX, _SYSTEM_PREFIX):
                items += _shards(storage, top)
                continue
            items.append(ListingItem(top, recursive=False))
            for prefix in storage.list_prefixes(top):
                opened_at = _opened_at(prefix)
                if prefix in (COLLECTOR_PREFIX, PURGES_PREFIX) or _is_closed(
                    prefix, slices.closed_after
                ):
                    continue
                if opened_at is None and top == DATA_PREFIX:
                    items += _shards(storage, prefix)
                elif slices.is_young(opened_at):
                    young += 1
                elif opened_at is not None:
                    items.append(ListingItem(prefix, recursive=True, sized=slices.sized))
                else:
                    # The dates of trees and ranges tell the index whether it knows them already.
                    items += in_shares(storage, prefix, cores=cores, sized=True)
        return Listing(items, young)

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone."""
        return classify(addresses)

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the slice of each address, which is the directory under `data/`, or null."""
        return _slices(addresses)

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether each address is an imported object, or in a slice that is younger than
        the grace."""
        is_young = slices.young_among(self.slices(addresses), instant_of)
        return pc.or_(outside(addresses), is_young)

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many trees, in order."""
        return around(TREES_PREFIX, tree_ids, POINTER_SUFFIX)

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many ranges, in order."""
        return around(RANGES_PREFIX, node_ids, POINTER_SUFFIX)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the ranges of a tree (NODES_SCHEMA)."""
        table = read_tree_table(storage, tree_id, checksum)
        columns = [table.column(name) for name in ("range_id", "checksum", "entry_count")]
        return pa.Table.from_arrays(columns, schema=NODES_SCHEMA)

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """Returns the addresses and sizes of a range's entries, without imported objects."""
        return read_range_files(storage, node_id, checksum, entry_count=entry_count)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses of a range's entries."""
        return read_range_addresses(storage, node_id, checksum, entry_count=entry_count)


def _slices(addresses: pa.StringArray) -> pa.StringArray:
    """Returns the slice of each address, or null if it lies in no slice."""
    none = pa.scalar(None, pa.string())
    if not pc.any(pc.starts_with(addresses, DATA_PREFIX), min_count=0).as_py():
        return pa.repeat(none, len(addresses))
    found: list[Any] = []
    rest = addresses
    # In a listing, neighbours are mostly in one slice. To compare prefixes takes a tenth of the
    # time of matching each address.
    for _ in range(_RUNS_MAX if not addresses.null_count else 0):
        match = _IN_SLICE.match(rest[0].as_py()) if len(rest) else None
        if match is None:
            break
        place = pc.index(pc.starts_with(rest, match[0]), pa.scalar(False)).as_py()
        count = len(rest) if place < 0 else place
        if count < _RUN_MIN:
            break
        found.append(pa.repeat(pa.scalar(match[1]), count))
        rest = rest.slice(count)
    if len(rest):
        matched = pc.extract_regex(rest, rf"^{DATA_PREFIX}(?P<slice>[^/]+)/")
        found.append(pc.struct_field(matched, "slice"))
    return cast("pa.StringArray", pa.concat_arrays(found))


def _shards(storage: Storage, prefix: str) -> list[ListingItem]:
    """Returns the units for a directory that is not a slice: its files, and each directory in
    it."""
    inner = storage.list_prefixes(prefix)
    return [ListingItem(prefix, recursive=False), *(ListingItem(p, recursive=True) for p in inner)]


def _opened_at(prefix: str) -> datetime | None:
    """Returns the time when a slice was opened; None if the directory is not a slice."""
    if not prefix.startswith(DATA_PREFIX):
        return None
    return instant_of(prefix.removeprefix(DATA_PREFIX).rstrip("/"))


def _is_closed(prefix: str, closed_after: str | None) -> bool:
    """Whether a directory is a slice that was closed before an earlier run listed it."""
    name = prefix.removeprefix(DATA_PREFIX).rstrip("/")
    return closed_after is not None and _opened_at(prefix) is not None and name > closed_after
