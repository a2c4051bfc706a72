"""Reads snapshot files: their manifests, and in version 1 their parent and date.

Source: Icechunk specification, `snapshot.fbs`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ebbtide.formats.icechunk import envelope
from ebbtide.formats.icechunk.envelope import FileType
from ebbtide.formats.icechunk.flatbuffer import Buffer, DamagedError, Tables
from ebbtide.formats.icechunk.ids import ID_BYTES, id_bytes, id_text
from ebbtide.formats.icechunk.manifests import id_of
from ebbtide.model import EPOCH

_FIELDS: Final = 9
_ID, _PARENT_ID, _NODES, _FLUSHED_AT, _MESSAGE, _FILES, _FILES_V2 = 0, 1, 2, 3, 4, 6, 7
_NODE_FIELDS: Final = 6
_DATA_TYPE, _DATA = 3, 4
_ARRAY_DATA: Final = 1
_ARRAY_FIELDS: Final = 4
_MANIFESTS: Final = 2
_REF_FIELDS: Final = 2
_FILE_FIELDS: Final = 4
_FILE_ID, _SIZE, _COUNT = 0, 1, 2
_FILE_BYTES: Final = 32
_SIZE_POSITION: Final = 16
_SIZE_AND_COUNT: Final = struct.Struct("<QI")
"""A manifest's entry of version 1: id (12), padding (4), size (8), count (4), padding (4)."""


@dataclass(frozen=True, slots=True)
class ManifestInfo:
    """A snapshot's record of a manifest: the size of its file, and the number of its references."""

    manifest_id: str
    size_bytes: int
    entry_count: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file. `parent_id` is the parent in the file; version 2 has parents in `repo`."""

    snapshot_id: str
    parent_id: str | None
    flushed_at: datetime
    message: str
    manifests: tuple[ManifestInfo, ...]


def read_snapshot(data: bytes, snapshot_id: str) -> Snapshot:
    """Parses a snapshot file. Raises DamagedError, UnknownFieldError or UnknownVersionError."""
    root = _root(envelope.unpack(data, FileType.SNAPSHOT).payload, snapshot_id)
    parents = root.structs(_PARENT_ID, ID_BYTES)
    manifests = {info.manifest_id: info for info in (*_listed(root), *_listed_v2(root))}
    named = _named_by_arrays(root)
    if not named <= manifests.keys():
        missing = min(named - manifests.keys())
        raise DamagedError(
            f"an array refers to manifest {missing}, which the snapshot does not list"
        )
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_id=id_text(parents[0].tobytes()) if len(parents) else None,
        flushed_at=instant(int(root.numbers(_FLUSHED_AT, "<u8")[0])),
        message=root.struct_vectors(_MESSAGE, 1).tobytes().decode("utf-8", "replace"),
        manifests=tuple(manifests[manifest_id] for manifest_id in sorted(manifests)),
    )


def with_parent(data: bytes, snapshot_id: str, parent_id: str, *, expected: str) -> bytes | None:
    """Returns the snapshot file with another parent and no other change. Returns None if its parent
    is not `expected`."""
    opened = envelope.unpack(data, FileType.SNAPSHOT)
    (position,) = _root(opened.payload, snapshot_id).field(_PARENT_ID, ID_BYTES).tolist()
    if not position or opened.payload[position : position + ID_BYTES] != id_bytes(expected):
        return None
    payload = bytearray(opened.payload)
    payload[position : position + ID_BYTES] = id_bytes(parent_id)
    return envelope.pack(
        bytes(payload),
        FileType.SNAPSHOT,
        writer=opened.writer,
        spec_version=opened.spec_version,
    )


def instant(micros: int) -> datetime:
    """Returns the date (UTC) for microseconds since 1970. Raises DamagedError after year 9999."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise DamagedError(f"it is dated {micros} µs after 1970") from None


def _root(payload: bytes, snapshot_id: str) -> Tables:
    root = Buffer(payload).root(fields=_FIELDS)
    if id_of(root, _ID) != snapshot_id:
        raise DamagedError(f"it holds snapshot {id_of(root, _ID)}")
    return root


def _listed(root: Tables) -> list[ManifestInfo]:
    return [
        ManifestInfo(id_text(data[:ID_BYTES]), *_SIZE_AND_COUNT.unpack_from(data, _SIZE_POSITION))
        for data in (row.tobytes() for row in root.struct_vectors(_FILES, _FILE_BYTES))
    ]


def _listed_v2(root: Tables) -> list[ManifestInfo]:
    found = []
    for files in root.children(_FILES_V2, fields=_FILE_FIELDS):
        ids = files.structs(_FILE_ID, ID_BYTES)
        if len(ids) != len(files):
            raise DamagedError("a manifest in its list has no id")
        sizes, counts = files.numbers(_SIZE, "<u8"), files.numbers(_COUNT, "<u4")
        found += [
            ManifestInfo(id_text(row.tobytes()), int(size), int(count))
            for row, size, count in zip(ids, sizes, counts, strict=True)
        ]
    return found


def _named_by_arrays(root: Tables) -> set[str]:
    """Returns the manifests that arrays refer to. All of them must be listed, because only the list
    is used."""
    found: set[bytes] = set()
    for nodes in root.children(_NODES, fields=_NODE_FIELDS):
        arrays_only = nodes.numbers(_DATA_TYPE, "<u1") == _ARRAY_DATA
        arrays = nodes.only(arrays_only).child(_DATA, fields=_ARRAY_FIELDS)
        for refs in arrays.children(_MANIFESTS, fields=_REF_FIELDS):
            found |= {row.tobytes() for row in refs.structs(0, ID_BYTES)}
    return {id_text(data) for data in found}
