"""The layout of a lakeFS storage namespace, and how executors read its committed data.

`data/` has the objects, `_lakefs/` metaranges, ranges and what the server prepares for collectors.
Only objects below `data/` are ever deleted, because a client can link any other address without a
token. A metarange is a tree, and its ranges are the nodes. Their ids are checksums of their
content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, around, first_match, texts
from ebbtide.errors import EbbtideError
from ebbtide.formats import plain
from ebbtide.formats.base import (
    FOREIGN,
    NODES_SCHEMA,
    SYSTEM,
    AskedNode,
    Listing,
    ListingItem,
    Slices,
    one_by_one,
    outside,
)
from ebbtide.formats.lakefs.committed import read_metarange, read_ranges
from ebbtide.formats.lakefs.sstable import DamagedTableError
from ebbtide.formats.plain import SYSTEM_PREFIX, PlainLayout
from ebbtide.storage import Storage
from ebbtide.storage.local import TEMPORARY_SUFFIX

COMMITTED_PREFIX: Final = "_lakefs/"
DATA_PREFIX: Final = "data/"
EMPTY_TREE: Final = ""
"""The id of the tree of a commit without a metarange: the first commit of a repository."""

_PATTERNS: Final = (
    ("temporary", rf"{DATA_PREFIX}(?s:.)+{TEMPORARY_SUFFIX}"),
    ("object", rf"{DATA_PREFIX}(?s:.)+"),
    (SYSTEM, rf"(?:{COMMITTED_PREFIX}|{SYSTEM_PREFIX})(?s:.)+|dummy"),
)
_SHARD: Final = "!"
"""The beginning of the name of a directory that contains shards. Shards contain partitions."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
_XID_CHARACTERS: Final = 20
_TIME_CHARACTERS: Final = 7
"""The characters, of five bits each, that contain the 32 bits of the time."""
_YEAR_4000: Final = datetime(4000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LakefsLayout(PlainLayout):
    """Objects, metaranges and ranges. `namespaces` are the URLs of the storage namespace, each
    ending in `/`: addresses of entries may begin with one of them."""

    namespaces: tuple[str, ...]
    delete_order: tuple[str, ...] = ("object", "temporary")
    checked_kinds: tuple[str, ...] = ("metarange", "range")

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns a unit of listing for each partition, without the partitions that are younger
        than the grace. A partition's name says when the server began it."""
        del cores
        items = [ListingItem("", recursive=False), ListingItem(DATA_PREFIX, recursive=False)]
        young = 0
        for prefix in _partitions(storage):
            opened_at = began_at(prefix, now=slices.now)
            if opened_at is not None and slices.cutoff <= opened_at <= slices.now:
                young += 1
            else:
                items.append(ListingItem(prefix, recursive=True, sized=slices.sized))
        tops = storage.list_prefixes()
        known = (SYSTEM_PREFIX, DATA_PREFIX)
        items += [ListingItem(top, recursive=True) for top in tops if top not in known]
        return Listing(items, young)

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether each address is outside the namespace, or in a partition that is younger
        than the grace."""
        matched = pc.extract_regex(addresses, r"^(?P<place>(?s:.)*/)")
        partitions = pc.struct_field(matched, "place")
        young = [
            name
            for name in texts(partitions.unique().drop_null())
            if name.startswith(DATA_PREFIX)
            and (opened_at := began_at(name, now=slices.now)) is not None
            and slices.cutoff <= opened_at <= slices.now
        ]
        is_young = pc.is_in(partitions, value_set=pa.array(young, pa.string()))
        return cast("pa.BooleanArray", pc.or_(outside(addresses), is_young))

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone."""
        return first_match(addresses, _PATTERNS, otherwise=FOREIGN)

    def tree_address(self, tree_id: str) -> str:
        """Returns the address of a metarange."""
        return f"{COMMITTED_PREFIX}{tree_id}"

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many metaranges, in order."""
        return around(COMMITTED_PREFIX, tree_ids)

    def node_address(self, node_id: str) -> str:
        """Returns the address of a range."""
        return f"{COMMITTED_PREFIX}{node_id}"

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many ranges, in order."""
        return around(COMMITTED_PREFIX, node_ids)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the ranges of a metarange (NODES_SCHEMA)."""
        del checksum  # the id is the checksum
        if tree_id == EMPTY_TREE:
            return NODES_SCHEMA.empty_table()
        address = self.tree_address(tree_id)
        with refusing(storage, address, what="tree"):
            return read_metarange(storage.get(address), tree_id)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses of a range's entries."""
        return self._read_together([AskedNode(storage, node_id, checksum, entry_count)])[0]

    def read_nodes(self, nodes: Sequence[AskedNode]) -> Sequence[pa.StringArray | EbbtideError]:
        """Reads ranges together, because most of the time for a small range is a fixed cost. If one
        cannot be read, reads them one by one, to find it."""
        try:
            return self._read_together(nodes)
        except EbbtideError:
            return one_by_one(self.read_node, nodes)

    def _read_together(self, nodes: Sequence[AskedNode]) -> list[pa.StringArray]:
        addresses = [self.node_address(each.node_id) for each in nodes]
        with refusing(nodes[0].storage, addresses[0], what="node"):
            files = [
                (each.node_id, each.storage.get(address))
                for each, address in zip(nodes, addresses, strict=True)
            ]
            found = read_ranges(files, namespaces=self.namespaces)
            for each, read in zip(nodes, found, strict=True):
                if len(read) != each.entry_count:
                    raise DamagedTableError(f"it has {len(read)} entries of {each.entry_count}")
            return found


refusing = partial(plain.refusing, damaged=DamagedTableError)
"""Raises errors of lakeFS's files as Refused, as `plain.refusing` does."""


def _partitions(storage: Storage) -> Iterator[str]:
    """Yields the directories with objects: `data/PARTITION/`, or `data/!ab/c/PARTITION/`."""
    for prefix in storage.list_prefixes(DATA_PREFIX):
        if not prefix.removeprefix(DATA_PREFIX).startswith(_SHARD):
            yield prefix
            continue
        for shard in storage.list_prefixes(prefix):
            yield from storage.list_prefixes(shard)


def began_at(prefix: str, *, now: datetime) -> datetime | None:
    """Returns when the server began a partition, or None if its name does not say so.

    The name is an id of 20 characters. Its first 32 bits have the seconds until the year 4000, so
    that new partitions come first in a listing. Only the lowest bits of the seconds fit, so that a
    name can mean several times. The last of them before `now` counts.
    """
    name = prefix.rstrip("/").rpartition("/")[2]
    if len(name) != _XID_CHARACTERS or not set(name) <= set(_DIGITS):
        return None
    bits = 0
    for character in name[:_TIME_CHARACTERS]:
        bits = bits << 5 | _DIGITS.index(character)
    seconds = bits >> (5 * _TIME_CHARACTERS - 32)
    until = round((_YEAR_4000 - now).total_seconds())
    missing = (seconds - until) % (1 << 32)
    return now - timedelta(seconds=missing)
