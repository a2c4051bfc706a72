"""The layout of tables' files, and how executors read manifest lists and manifests.

A tree is a manifest list, and a node is a manifest; the id of each is its address. Iceberg has no
checksums of content. In their place a manifest must agree with its list, and every file that is
needed must exist.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, first_match, table_of
from ebbtide.formats import base
from ebbtide.formats.base import (
    FOREIGN,
    NODES_SCHEMA,
    SYSTEM,
    SYSTEM_PREFIX,
    Listing,
    Slices,
    in_shares,
)
from ebbtide.formats.iceberg.avro import (
    DELETED,
    Entry,
    ListedManifest,
    read_list,
    read_manifest,
)
from ebbtide.formats.iceberg.metadata import DamagedMetadataError, TableMetadata, read_metadata
from ebbtide.formats.iceberg.places import Places
from ebbtide.formats.locations import folders_of
from ebbtide.storage import Storage, open_storage
from ebbtide.storage.local import TEMPORARY_SUFFIX

_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_IN: Final = r"(?:(?:[^/._][^/]*|[_.][^/=]*=[^/]*)/)*"
"""Folders, without hidden ones; but a partition's folder may be that of a column with such a
name."""
_COLLECTED: Final = {
    "metadata": rf"{_IN}(?:[0-9]+-{_UUID}|v[0-9]+)(?:\.gz)?\.metadata\.json(?:\.gz)?",
    "manifest_list": rf"{_IN}snap-[0-9]+-[0-9]+-{_UUID}\.avro",
    "manifest": rf"{_IN}(?:{_UUID}-m[0-9]+|optimized-m-{_UUID}|stage-[0-9]+-task-[0-9]+-manifest-"
    rf"{_UUID})\.avro",
    "statistics": rf"{_IN}(?:[0-9]+-{_UUID}\.stats|partition-stats-[0-9]+-{_UUID}"
    r"\.(?:parquet|orc|avro))",
    "data": rf"{_IN}(?:[0-9]+-[0-9]+-[^/]*|[0-9]{{8}}_[0-9]{{6}}_[0-9a-z_]+-|data[-_]|){_UUID}[^/]*"
    r"\.(?:parquet|orc|avro|puffin)",
}
_PATTERNS: Final = (
    (SYSTEM, rf"{SYSTEM_PREFIX}(?s:.)+|{_IN}version-hint\.text"),
    *_COLLECTED.items(),
    ("temporary", f"(?:{'|'.join(_COLLECTED.values())}){TEMPORARY_SUFFIX}"),
)
_OF_SNAPSHOT: Final = re.compile(r"/snap-([0-9]+)-[^/]*$")
"""The names of manifest lists. A list need not have such a name."""


@dataclass(frozen=True, slots=True)
class IcebergLayout:
    """The files in `folders`: those of the tables whose files may be deleted, in order, and none
    within another."""

    places: Places
    folders: tuple[str, ...]
    delete_order: tuple[str, ...] = field(default=(*_COLLECTED, "temporary"))

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns units for each folder. Other folders of the warehouse are not listed."""
        return Listing(
            [
                unit
                for folder in self.folders
                for unit in in_shares(
                    storage, folder, cores=cores, sized=slices.sized, streamed=True
                )
            ]
        )

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone. Names that no writer of Iceberg
        makes are foreign, and so is everything outside the folders: an inventory has all of the
        warehouse."""
        kinds = first_match(addresses, _PATTERNS, otherwise=FOREIGN)
        is_other = pc.and_(self._elsewhere(addresses), pc.not_equal(kinds, pa.scalar(SYSTEM)))
        found: pa.StringArray = pc.if_else(is_other, pa.scalar(FOREIGN, pa.string()), kinds)
        return found

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether each address is outside the folders: no listing has it."""
        del slices
        return self._elsewhere(addresses)

    def _elsewhere(self, addresses: pa.StringArray) -> pa.BooleanArray:
        return pa.array(folders_of(addresses, self.folders) < 0, pa.bool_())

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of the files that list the manifests of snapshots."""
        return pc.replace_substring_regex(tree_ids, "#.*", "")

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many manifests, which are their ids."""
        return node_ids

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the manifests of a snapshot (NODES_SCHEMA). In place of a checksum, each has what
        its list says of it."""
        del checksum
        address, _, snapshot_id = tree_id.partition("#")
        if snapshot_id:
            inline = self.metadata_at(storage, address).snapshots[int(snapshot_id)].manifests
            listed = [(each, ListedManifest(each)) for each in inline]
        else:
            listed = self.manifests_at(storage, address)
        rows = [(each, found.claims, found.live or 0) for each, found in listed]
        return table_of(rows, NODES_SCHEMA)

    def manifests_at(self, storage: Storage, address: str) -> list[tuple[str, ListedManifest]]:
        """Returns the manifests in a list, each with its address. Raises as `read_tree`."""
        with refusing(storage, address, what="tree"):
            own = _OF_SNAPSHOT.search(address)
            listed = read_list(file_at(storage, address), own and own[1])
        return [(self.places.address(each.location), each) for each in listed]

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the data and delete files that a manifest names, without those that it marks as
        deleted."""
        del entry_count  # a part of the claims
        found = self.entries_at(storage, node_id, ListedManifest.of_claims(node_id, checksum))
        # Several entries may name one file: a Puffin file has many deletion vectors.
        live = dict.fromkeys(place for status, _, place in found if status != DELETED)
        return pa.array([*live], pa.string())

    def entries_at(self, storage: Storage, address: str, listed: ListedManifest) -> list[Entry]:
        """Returns the entries of a manifest, with addresses in place of locations. Raises as
        `read_node`."""
        with refusing(storage, address, what="node"):
            found = read_manifest(file_at(storage, address), listed)
        return [(status, by, self.places.address(place)) for status, by, place in found]

    def metadata_at(self, storage: Storage, address: str) -> TableMetadata:
        """Reads a metadata file. Raises Refused `missing_tree`, `corrupt_tree` or
        `unknown_format_version`."""
        with refusing(storage, address, what="tree"):
            return read_metadata(file_at(storage, address), address, self.places)


def file_at(storage: Storage, address: str) -> bytes:
    """Returns the content of a file of the storage, or of a URL outside it."""
    if "://" not in address:
        return storage.get(address)
    folder, name = posixpath.split(address)
    return open_storage(folder).get(name)


@contextmanager
def refusing(storage: Storage, address: str, *, what: str) -> Iterator[None]:
    """Raises errors of a needed file as Refused: `missing_` or `corrupt_` followed by `what`."""
    with base.refusing(storage, address, what=what, damaged=DamagedMetadataError):
        yield
