"""The layout of a lakeFS storage namespace, and how executors read its committed data.

`data/` has the objects, `_lakefs/` metaranges, ranges and what the server prepares for collectors.
Only files whose whole name is of a form that lakeFS makes below `data/` are ever deleted: a client
can link any other address without a token, and other programs may write there. A metarange is a
tree, and its ranges are the nodes. Their ids are checksums of their content.

Sources: lakeFS, `pkg/upload/path_provider.go`; `GetAddressWithSignature` in
`pkg/catalog/catalog.go`; before version 0.84, `GetPhysicalAddress` in `pkg/api/controller.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, around, first_match
from ebbtide.formats import base
from ebbtide.formats.base import (
    FOREIGN,
    NODES_SCHEMA,
    SYSTEM,
    SYSTEM_PREFIX,
    AskedNode,
    Listing,
    ListingItem,
    Slices,
    outside,
)
from ebbtide.formats.lakefs.committed import read_metarange, read_ranges
from ebbtide.formats.lakefs.sstable import DamagedTableError
from ebbtide.storage import Storage
from ebbtide.storage.local import TEMPORARY_SUFFIX

COMMITTED_PREFIX: Final = "_lakefs/"
DATA_PREFIX: Final = "data/"
EMPTY_TREE: Final = ""
"""The id of the tree of a commit without a metarange: the first commit of a repository."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
_XID: Final = "[0-9a-v]{19}[0g]"
"""The 20 characters of an id of 96 bits. Of the last character only the first bit is used."""
_SIGNATURE: Final = "[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]"
"""The signature of an address that a client got for an upload: 256 bits in base64url."""
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STAGING_TOKEN: Final = rf"[a-z0-9][a-z0-9-]{{2,62}}-[A-Za-z0-9_][A-Za-z0-9_-]*[:-]{_UUID}"
"""REPOSITORY-BRANCH:UUID, or at first REPOSITORY-BRANCH-UUID: versions before 0.84 made addresses
for uploads in a directory with this name."""
_NANOID: Final = "[A-Za-z0-9_-]{21}"
_OBJECT: Final = (
    rf"{DATA_PREFIX}(?:(?:![0-9A-Za-z]{{2}}/[0-9A-Za-z]/)?{_XID}/{_XID}(?:,{_SIGNATURE})?"
    rf"|{_STAGING_TOKEN}/{_NANOID})"
)
_PATTERNS: Final = (
    ("object", _OBJECT),
    ("temporary", f"(?:{_OBJECT}){TEMPORARY_SUFFIX}"),
    (SYSTEM, rf"(?:{COMMITTED_PREFIX}|{SYSTEM_PREFIX})(?s:.)+|dummy"),
)
_SHARD: Final = "!"
"""The beginning of the name of a directory that contains shards. Shards contain partitions."""
_PARTITION: Final = re.compile(_XID)
_TIME_CHARACTERS: Final = 7
"""The characters, of five bits each, that contain the 32 bits of the time."""
_YEAR_4000: Final = datetime(4000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LakefsLayout:
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
            if slices.is_young(began_at(prefix, now=slices.now)):
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
        places = pc.struct_field(matched, "place")

        def opened_at(name: str) -> datetime | None:
            return began_at(name, now=slices.now) if name.startswith(DATA_PREFIX) else None

        is_young = slices.young_among(cast("pa.StringArray", places), opened_at)
        return pc.or_(outside(addresses), is_young)

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone."""
        return first_match(addresses, _PATTERNS, otherwise=FOREIGN)

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many metaranges, in order."""
        return around(COMMITTED_PREFIX, tree_ids)

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many ranges, in order."""
        return around(COMMITTED_PREFIX, node_ids)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the ranges of a metarange (NODES_SCHEMA)."""
        del checksum  # the id is the checksum
        if tree_id == EMPTY_TREE:
            return NODES_SCHEMA.empty_table()
        address = f"{COMMITTED_PREFIX}{tree_id}"
        with refusing(storage, address, what="tree"):
            return read_metarange(storage.get(address), tree_id)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses of a range's entries."""
        return self.read_together([AskedNode(storage, node_id, checksum, entry_count)])[0]

    def read_together(self, nodes: Sequence[AskedNode]) -> list[pa.StringArray]:
        """Returns the addresses of the entries of some ranges. Most of the time for a small range
        is a fixed cost."""
        addresses = [f"{COMMITTED_PREFIX}{each.node_id}" for each in nodes]
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


refusing = partial(base.refusing, damaged=DamagedTableError)
"""Raises errors of lakeFS's files as Refused, as `base.refusing` does."""


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
    if _PARTITION.fullmatch(name) is None:
        return None
    bits = 0
    for character in name[:_TIME_CHARACTERS]:
        bits = bits << 5 | _DIGITS.index(character)
    seconds = bits >> (5 * _TIME_CHARACTERS - 32)
    until = round((_YEAR_4000 - now).total_seconds())
    missing = (seconds - until) % (1 << 32)
    return now - timedelta(seconds=missing)
