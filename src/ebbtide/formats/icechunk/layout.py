"""The layout of an Icechunk repository's files, and how executors read them.

Icechunk's metadata has no checksums. Other checks replace them. A file must have the id that it was
read by, and the size and number of references that its snapshot records. It must be a valid
FlatBuffer, and the files that it refers to must exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import Column, around, first_match
from ebbtide.formats import base
from ebbtide.formats.base import (
    FOREIGN,
    NODES_SCHEMA,
    SYSTEM,
    SYSTEM_PREFIX,
    Listing,
    ListingItem,
    Slices,
    in_shares,
    outside,
)
from ebbtide.formats.icechunk.files import (
    DamagedError,
    FileType,
    UnknownFieldError,
    UnknownVersionError,
    unpack,
)
from ebbtide.formats.icechunk.ids import ID_PATTERN
from ebbtide.formats.icechunk.repo import BACKUPS_PREFIX, REPO_ADDRESS
from ebbtide.formats.icechunk.snapshots import (
    CHUNKS_PREFIX,
    Snapshot,
    manifest_chunks,
    read_snapshot,
)
from ebbtide.storage import Storage
from ebbtide.storage.local import TEMPORARY_SUFFIX

SNAPSHOTS_PREFIX: Final = "snapshots/"
MANIFESTS_PREFIX: Final = "manifests/"
LOGS_PREFIX: Final = "transactions/"

_COLLECTED: Final = {
    "snapshot": f"{SNAPSHOTS_PREFIX}{ID_PATTERN}",
    "transaction_log": f"{LOGS_PREFIX}{ID_PATTERN}",
    "manifest": f"{MANIFESTS_PREFIX}{ID_PATTERN}",
    "chunk": f"{CHUNKS_PREFIX}{ID_PATTERN}",
    "backup": rf"{BACKUPS_PREFIX}(?:repo|config\.yaml)\.[0-9]{{14}}\.{ID_PATTERN}",
}
_REFS: Final = r"refs/(?:branch|tag)\.[^/]+/ref\.json(?:\.deleted)?"
_PATTERNS: Final = (
    *_COLLECTED.items(),
    (SYSTEM, rf"{REPO_ADDRESS}|config\.yaml|{_REFS}|{SYSTEM_PREFIX}(?s:.)+"),
    ("temporary", f"(?:{'|'.join(_COLLECTED.values())}|{REPO_ADDRESS}){TEMPORARY_SUFFIX}"),
)


@dataclass(frozen=True, slots=True)
class IcechunkLayout:
    """Snapshots, manifests, chunks, transaction logs, and copies of overwritten files."""

    delete_order: tuple[str, ...] = (*_COLLECTED, "temporary")

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns a unit of listing for each directory at the top, except Ebbtide's own.

        All chunks are in one directory, which can have more files than memory holds. Its listing is
        streamed, and divided among tasks. There are no slices.
        """
        items = [ListingItem("", recursive=False)]
        for top in storage.list_prefixes():
            if top == CHUNKS_PREFIX:
                items += in_shares(storage, top, cores=cores, sized=slices.sized, streamed=True)
            elif top != SYSTEM_PREFIX:
                items.append(ListingItem(top, recursive=True))
        return Listing(items)

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether each address is outside the storage root: there are no slices."""
        del slices
        return outside(addresses)

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone."""
        return first_match(addresses, _PATTERNS, otherwise=FOREIGN)

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many snapshots, in order."""
        return around(SNAPSHOTS_PREFIX, tree_ids)

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many manifests, in order."""
        return around(MANIFESTS_PREFIX, node_ids)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the manifests of a snapshot (NODES_SCHEMA). In place of a checksum, each has the
        size that its file must have."""
        del checksum
        manifests = load_snapshot(storage, tree_id).manifests
        columns: list[list[Any]] = [
            [info.manifest_id for info in manifests],
            [str(info.size_bytes) for info in manifests],
            [info.entry_count for info in manifests],
        ]
        return pa.table(columns, schema=NODES_SCHEMA)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the chunks of a manifest. Inline and virtual references have no address."""
        address = f"{MANIFESTS_PREFIX}{node_id}"
        with refusing(storage, address, what="node"):
            data = storage.get(address)
            if str(len(data)) != checksum:
                raise DamagedError(f"it has {len(data)} bytes, but its snapshot says {checksum}")
            payload = unpack(data, FileType.MANIFEST).payload
            return manifest_chunks(payload, node_id, entry_count=entry_count)


def is_directory(storage: Storage) -> bool:
    """Whether the repository is in a directory, and not on an object storage."""
    return storage.url.startswith("file:")


def load_snapshot(storage: Storage, snapshot_id: str) -> Snapshot:
    """Reads a snapshot. Raises Refused `missing_tree`, `corrupt_tree` or
    `unknown_format_version`."""
    address = f"{SNAPSHOTS_PREFIX}{snapshot_id}"
    with refusing(storage, address, what="tree"):
        return read_snapshot(storage.get(address), snapshot_id)


refusing = partial(
    base.refusing, damaged=DamagedError, unknown=(UnknownVersionError, UnknownFieldError)
)
"""Raises errors of Icechunk's files as Refused, as `base.refusing` does."""
