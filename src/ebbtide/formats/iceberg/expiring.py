"""Expires snapshots: a new metadata file without them, and one conditional change of the pointer.

The file is made from the current one as text, so that no field gets lost that this program does not
know. The pointer changes only if it still names the file that was read. So no ref that somebody set
meanwhile can vanish: there is no such ref. Source: Iceberg table specification, "Optimistic
Concurrency"; for the log of snapshots, `TableMetadata.Builder` of Iceberg's Java library 1.12.
"""

from __future__ import annotations

import gzip
import json
import posixpath
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import update

from ebbtide.errors import Failed
from ebbtide.formats.iceberg.catalog import CatalogTables
from ebbtide.formats.iceberg.metadata import STATISTICS, document_of
from ebbtide.model import EPOCH
from ebbtide.storage import Storage

_LOG_MAX: Final = "write.metadata.previous-versions-max"
UNDO_TAG: Final = "ebbtide-undo-"
"""Begins the names of tags at snapshots that an undo has listed again."""
_FOREVER: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"(?:v)?([0-9]+)")


@dataclass(frozen=True, slots=True)
class Removal:
    """What an expiry removes from one table: snapshots, and refs by their names."""

    snapshots: frozenset[int]
    refs: tuple[str, ...]


def without(
    document: dict[str, Any], removed: Removal, *, location: str, now: datetime
) -> dict[str, Any]:
    """Returns the metadata without what is removed. `document` is the content of the file at
    `location`, and is not changed."""
    kept = [each for each in document["snapshots"] if each["snapshot-id"] not in removed.snapshots]
    known = {each["snapshot-id"] for each in kept}
    changed = {
        "snapshots": kept,
        "snapshot-log": _unbroken(document.get("snapshot-log", []), known),
        **_now_at(document, location, now),
    }
    if "refs" in document:
        refs = document["refs"]
        changed["refs"] = {name: refs[name] for name in refs if name not in removed.refs}
    for name in STATISTICS:
        if name in document:
            changed[name] = [each for each in document[name] if each["snapshot-id"] in known]
    return document | changed


def restored(
    document: dict[str, Any], removed: Mapping[str, Any], *, location: str, now: datetime
) -> dict[str, Any] | None:
    """Returns the metadata with what an expiry `removed` from it: snapshots, their statistics, and
    refs whose names are free. None if it has all of that.

    Each snapshot at which no ref points gets a tag without an end.
    """
    listed = document.get("snapshots", [])
    known = {each["snapshot-id"] for each in listed}
    back = [each for each in removed["snapshots"] if each["snapshot-id"] not in known]
    refs = refs_of(document)
    dropped = {name: ref for name, ref in removed["refs"].items() if name not in refs}
    if not back and not dropped:
        return None
    refs |= dropped
    pointed = {each["snapshot-id"] for each in refs.values()}
    for each in (row["snapshot-id"] for row in back):
        if each not in pointed:
            tag = {"snapshot-id": each, "type": "tag", "max-ref-age-ms": _FOREVER}
            refs[f"{UNDO_TAG}{each}"] = tag
    changed = {
        "snapshots": sorted([*listed, *back], key=_in_order),
        "refs": refs,
        **_now_at(document, location, now),
    }
    ids = {each["snapshot-id"] for each in back}
    for name in STATISTICS:
        lost = [each for each in removed[name] if each["snapshot-id"] in ids]
        if lost:
            changed[name] = [*document.get(name, []), *lost]
    return document | changed


def refs_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the refs of a metadata file by their names. Version 1 may have none: `main` is the
    current snapshot."""
    refs = dict(document.get("refs") or {})
    if not refs and document.get("current-snapshot-id") not in (None, -1):
        refs["main"] = {"snapshot-id": document["current-snapshot-id"], "type": "branch"}
    return refs


def _in_order(snapshot: Mapping[str, Any]) -> tuple[int, int]:
    return snapshot.get("sequence-number", 0), snapshot["timestamp-ms"]


def _now_at(document: Mapping[str, Any], location: str, now: datetime) -> dict[str, Any]:
    """Returns the fields that tell when a file was made, and from which one."""
    before = {"timestamp-ms": document["last-updated-ms"], "metadata-file": location}
    count = max(int(document.get("properties", {}).get(_LOG_MAX, 100)), 1)
    return {
        "last-updated-ms": max(_millis(now), document["last-updated-ms"]),
        "metadata-log": [*document.get("metadata-log", []), before][-count:],
    }


def _unbroken(log: list[dict[str, Any]], known: Collection[int]) -> list[dict[str, Any]]:
    """Returns the end of the log that names only known snapshots. With a gap in it, a query of an
    older time would read the wrong snapshot."""
    for place in range(len(log), 0, -1):
        if log[place - 1]["snapshot-id"] not in known:
            return log[place:]
    return log


def _millis(at: datetime) -> int:
    return int((at - EPOCH).total_seconds() * 1000)


@dataclass(frozen=True, slots=True)
class SqlCommit:
    """Changes tables of an SQL catalog."""

    catalog: CatalogTables
    storage: Storage
    back: Collection[int] = ()

    def remove(
        self, table: str, location: str, address: str, removed: Removal, now: datetime
    ) -> bool:
        """Removes snapshots and refs from a table whose pointer is at `location`, the file
        `address`. Answers as `put`."""
        document = document_of(self.storage.get(address))
        return self.put(
            table, location, address, without(document, removed, location=location, now=now)
        )

    def put(self, table: str, location: str, address: str, document: Mapping[str, Any]) -> bool:
        """Makes a document the metadata of a table whose pointer is at `location`, the file
        `address`. Returns False, and changes nothing, if the pointer has moved.

        If no answer tells whether the pointer was changed, reads it. Raises Failed `catalog_error`
        if it cannot be read either: then the new file may be the current one.
        """
        name = _next_name(address)
        packed = json.dumps(document, separators=(",", ":")).encode()
        packed = gzip.compress(packed) if ".gz" in name else packed
        folder = posixpath.dirname(location)
        self.storage.put(
            f"{posixpath.dirname(address)}/{name}", packed, create_only=True, durable=True
        )
        namespace, _, own = table.rpartition(".")
        change = (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == self.catalog.name,
                IcebergTables.table_namespace == namespace,
                IcebergTables.table_name == own,
                IcebergTables.metadata_location == location,
            )
            .values(metadata_location=f"{folder}/{name}", previous_metadata_location=location)
        )
        try:
            with (
                self.catalog.opened() as catalog,
                cast("SqlCatalog", catalog).engine.begin() as done,
            ):
                return done.execute(change).rowcount == 1
        except Failed as error:
            try:
                return self.catalog.pointers().get(table) == f"{folder}/{name}"
            except Failed:
                raise Failed(
                    "catalog_error",
                    f"{error.message}. Whether table {table} was changed is not known: run it "
                    "again",
                ) from error


def _next_name(address: str) -> str:
    """Returns the name of the metadata file behind another one, packed like that one."""
    name = posixpath.basename(address)
    found = _NUMBER.match(name)
    number = 0 if found is None else int(found[1]) + 1
    ending = ".gz.metadata.json" if ".gz" in name else ".metadata.json"
    return f"{number:05d}-{uuid.uuid4()}{ending}"
