"""A table's metadata file: what it names, and whether this program understands it.

Only what the collector needs is read, and everything that is read is checked: a list that is
missing, or a path of another type, must never look like a table that needs fewer files. Source:
Iceberg table specification, "Table Metadata and Snapshots", versions 1 to 3.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.errors import Refused
from ebbtide.formats.iceberg.places import Places
from ebbtide.model import EPOCH

VERSIONS: Final = (1, 2, 3)
UNPACKED_BYTES_MAX: Final = 1 << 30
"""The most bytes that a file may unpack to. A larger one is refused: it may be a bomb."""
UNPACKED_BYTES_FREE: Final = 16 << 20
"""The bytes that any file may unpack to."""
EXPANSION_MAX: Final = 100
"""The most bytes that one packed byte may unpack to, in a larger file. Real metadata files of many
snapshots shrink by a factor of 10. As values of Python, JSON takes at most 23 bytes for each of
its own."""
FOREVER_MS: Final = 60_000_000_000_000
"""Longer ages are cut to this one, of some two thousand years."""
STATISTICS: Final = ("statistics", "partition-statistics")
"""The lists of a metadata file with the files of statistics."""
_GZIP: Final = b"\x1f\x8b"
_MAIN: Final = "main"
_FOLDER_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


class DamagedMetadataError(ValueError):
    """A metadata file is not what the specification says."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One snapshot. `list_address` is its manifest list; None in version 1 if the metadata file
    itself names the `manifests`."""

    snapshot_id: int
    parent_id: int | None
    at: datetime
    list_address: str | None
    manifests: tuple[str, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableRef:
    """A branch or tag of a table. `kind` is `branch` or `tag`."""

    name: str
    kind: str
    snapshot_id: int
    max_ref_age: timedelta | None = None
    max_snapshot_age: timedelta | None = None
    min_snapshots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """What one metadata file names. All files are addresses, or URLs outside the root.

    `address` is the file itself, `log` are the metadata files before it, the oldest first, with
    their dates. `statistics` has the files of both kinds, each with its snapshot. `folders` are
    where writers put files.
    """

    address: str
    uuid: str
    version: int
    location: str
    at: datetime
    snapshots: Mapping[int, TableSnapshot]
    refs: tuple[TableRef, ...]
    log: tuple[tuple[str, datetime], ...]
    statistics: tuple[tuple[str, int], ...]
    folders: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def allows_deletes(self) -> bool:
        """Whether the table's owners allow that files are deleted (`gc.enabled`)."""
        return str(self.properties.get("gc.enabled", "true")).lower() != "false"

    def tree_id(self, snapshot: TableSnapshot) -> str:
        """Returns the address of the manifest list; without one, the metadata file and the id of
        the snapshot, with `#` between them."""
        return snapshot.list_address or f"{self.address}#{snapshot.snapshot_id}"

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """Yields the files that the table needs beside those of its snapshots, each with the
        reason."""
        yield self.address, "current metadata"
        yield from ((address, "in the metadata log") for address, _ in self.log)
        yield from ((address, "statistics") for address, _ in self.statistics)

    def without(self, snapshots: Collection[int], refs: Collection[str]) -> TableMetadata:
        """Returns the table as it would be without some snapshots and refs."""
        return replace(
            self,
            snapshots={k: each for k, each in self.snapshots.items() if k not in snapshots},
            refs=tuple(ref for ref in self.refs if ref.name not in refs),
            statistics=tuple(each for each in self.statistics if each[1] not in snapshots),
        )


def unpacked_max(packed_bytes: int) -> int:
    """Returns the bytes that a file of `packed_bytes` may unpack to."""
    return min(max(UNPACKED_BYTES_FREE, EXPANSION_MAX * packed_bytes), UNPACKED_BYTES_MAX)


def unpacked(data: bytes) -> bytes:
    """Returns the text of a metadata file, which may be packed with gzip. Raises
    DamagedMetadataError."""
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(unpacked_max(len(data)) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedMetadataError(f"it cannot be unpacked: {error}") from error
    if len(text) > unpacked_max(len(data)):
        raise DamagedMetadataError(f"it unpacks to more than {unpacked_max(len(data)):,} bytes")
    return text


def document_of(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in a metadata file. Raises DamagedMetadataError."""
    try:
        found = json.loads(unpacked(data))
    except (ValueError, RecursionError) as error:
        raise DamagedMetadataError(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DamagedMetadataError("it is no JSON object")
    return found


def read_metadata(data: bytes, address: str, places: Places) -> TableMetadata:
    """Returns the content of a metadata file, which was read at `address`.

    Raises DamagedMetadataError, and Refused `unknown_format_version` for another version of the
    format and for encrypted tables, and `prefix_mismatch`.
    """
    document = document_of(data)
    version = _field(document, "format-version", int)
    if version not in VERSIONS:
        raise Refused(
            "unknown_format_version",
            f"{address} has version {version} of Iceberg's format, and this program reads 1 to "
            f"{VERSIONS[-1]}: use a newer version of this program",
        )
    if document.get("encryption-keys"):
        raise Refused(
            "unknown_format_version",
            f"{address} is of an encrypted table: its lists cannot be read, so that nothing in its "
            "folders can be deleted",
        )
    location = _field(document, "location", str)
    properties = _field(document, "properties", dict, default={})
    snapshots = {
        each.snapshot_id: each
        for each in (read_snapshot(row, places) for row in _list(document, "snapshots"))
    }
    folders = [location, *(properties[name] for name in _FOLDER_PROPERTIES if name in properties)]
    return TableMetadata(
        address=address,
        uuid=_field(document, "table-uuid", str, default="" if version == 1 else None),
        version=version,
        location=location,
        at=_instant(document, "last-updated-ms"),
        snapshots=snapshots,
        refs=_refs(document, snapshots),
        log=tuple(
            (places.address(_field(row, "metadata-file", str)), _instant(row, "timestamp-ms"))
            for row in _list(document, "metadata-log")
        ),
        statistics=read_statistics(document, places),
        folders=tuple(
            folder for each in folders if (folder := places.folder(str(each))) is not None
        ),
        properties=properties,
    )


def read_statistics(document: Mapping[str, Any], places: Places) -> tuple[tuple[str, int], ...]:
    """Returns the files of statistics of both kinds, each with its snapshot. Raises as
    `read_metadata`."""
    return tuple(
        (places.address(_field(row, "statistics-path", str)), _field(row, "snapshot-id", int))
        for name in STATISTICS
        for row in _list(document, name)
    )


def read_snapshot(row: Mapping[str, Any], places: Places) -> TableSnapshot:
    """Returns a snapshot as a metadata file lists it. Raises as `read_metadata`."""
    if row.get("key-id") is not None:
        raise Refused(
            "unknown_format_version",
            "a snapshot is encrypted: its list cannot be read, so that nothing in the table's "
            "folders can be deleted",
        )
    listed = row.get("manifest-list")
    inline = row.get("manifests")
    if listed is None and inline is None:
        raise DamagedMetadataError(f"snapshot {row.get('snapshot-id')} has no manifest list")
    parent = row.get("parent-snapshot-id")
    return TableSnapshot(
        snapshot_id=_field(row, "snapshot-id", int),
        parent_id=None if parent is None else _field(row, "parent-snapshot-id", int),
        at=_instant(row, "timestamp-ms"),
        list_address=(
            None if listed is None else places.address(_field(row, "manifest-list", str))
        ),
        manifests=tuple(
            places.address(each)
            for each in (_list(row, "manifests", str) if listed is None else ())
        ),
        summary=_field(row, "summary", dict, default={}),
    )


def _refs(
    document: Mapping[str, Any], snapshots: Mapping[int, TableSnapshot]
) -> tuple[TableRef, ...]:
    """Returns the refs. Version 1 may have none: `main` is the current snapshot."""
    rows = _field(document, "refs", dict, default={})
    refs = [read_ref(name, row) for name, row in rows.items()]
    current = document.get("current-snapshot-id")
    if _MAIN not in rows and current not in (None, -1):
        refs.append(TableRef(_MAIN, "branch", _field(document, "current-snapshot-id", int)))
    for ref in refs:
        if ref.snapshot_id not in snapshots:
            raise DamagedMetadataError(
                f"ref {ref.name} names snapshot {ref.snapshot_id}, which it does not list"
            )
    return tuple(refs)


def read_ref(
    name: str,
    row: Any,  # what JSON has
) -> TableRef:
    """Returns a ref as a metadata file lists it. Raises DamagedMetadataError."""
    if not isinstance(row, dict):
        raise DamagedMetadataError(f"ref {name} is no object")
    kind = _field(row, "type", str)
    if kind not in ("branch", "tag"):
        raise DamagedMetadataError(f"ref {name} is of the unknown type {kind!r}")
    return TableRef(
        name,
        kind,
        _field(row, "snapshot-id", int),
        max_ref_age=_age(row, "max-ref-age-ms"),
        max_snapshot_age=_age(row, "max-snapshot-age-ms"),
        min_snapshots=_optional(row, "min-snapshots-to-keep"),
    )


def _field(
    row: Mapping[str, Any],
    name: str,
    kind: type,
    *,
    default: Any = None,  # of `kind`
) -> Any:
    found = row.get(name)
    if found is None and default is not None:
        return default
    # A boolean is an int for Python, and no number for Iceberg.
    if not isinstance(found, kind) or isinstance(found, bool):
        raise DamagedMetadataError(
            f"{name} is {found!r:.80}, and should be of the type {kind.__name__}"
        )
    return found


def _optional(row: Mapping[str, Any], name: str) -> int | None:
    return None if row.get(name) is None else int(_field(row, name, int))


def _age(row: Mapping[str, Any], name: str) -> timedelta | None:
    found = _optional(row, name)
    return None if found is None else age_of(found)


def age_of(ms: int) -> timedelta:
    """Returns an age of milliseconds, at most FOREVER_MS: the largest number of Java means for
    ever."""
    return timedelta(milliseconds=max(min(ms, FOREVER_MS), -FOREVER_MS))


def _list(row: Mapping[str, Any], name: str, kind: type = dict) -> list[Any]:
    found: list[Any] = _field(row, name, list, default=[])  # of `kind`
    if not all(isinstance(each, kind) for each in found):
        raise DamagedMetadataError(f"{name} has entries that are not of the type {kind.__name__}")
    return found


def _instant(row: Mapping[str, Any], name: str) -> datetime:
    try:
        return EPOCH + timedelta(milliseconds=_field(row, name, int))
    except OverflowError as error:
        raise DamagedMetadataError(f"{name} is no date") from error
