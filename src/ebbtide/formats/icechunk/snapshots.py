"""Reads snapshots and manifests.

A snapshot has its manifests, and in version 1 its parent and date. A manifest has the chunks that
it refers to. Source: Icechunk specification, `snapshot.fbs` and `manifest.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.formats.icechunk.files import Buffer, DamagedError, FileType, Tables, pack, unpack
from ebbtide.formats.icechunk.ids import ID_BYTES, id_bytes, id_text, id_texts
from ebbtide.model import EPOCH

CHUNKS_PREFIX: Final = "chunks/"

_ID: Final = 0
_SNAPSHOT_FIELDS: Final = 9
_PARENT_ID, _NODES, _FLUSHED_AT, _MESSAGE, _FILES, _FILES_V2 = 1, 2, 3, 4, 6, 7
_NODE_FIELDS: Final = 6
_NODE_ID_BYTES: Final = 8
_NODE_PATH: Final = 1
_DATA_TYPE, _DATA = 3, 4
_ARRAY_DATA: Final = 1
_ARRAY_DATA_FIELDS: Final = 4
_MANIFESTS: Final = 2
_MANIFEST_REF_FIELDS: Final = 2
_FILE_FIELDS: Final = 4
_FILE_ID, _SIZE, _COUNT = 0, 1, 2
_FILE_BYTES: Final = 32
_SIZE_POSITION: Final = 16
_SIZE_AND_COUNT: Final = struct.Struct("<QI")
"""A manifest's entry of version 1: id (12), padding (4), size (8), count (4), padding (4)."""

_MANIFEST_FIELDS: Final = 5
_ARRAY_MANIFEST_FIELDS: Final = 3
_CHUNK_REF_FIELDS: Final = 10
_ARRAYS: Final = 1
_REFS: Final = 1
_INDEX, _INLINE, _CHUNK_ID, _LOCATION, _PACKED_LOCATION = 0, 1, 4, 5, 8

Columns = npt.NDArray[np.uint32]
"""Coordinates of chunks: one row for each dimension, one column for each chunk."""


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


@dataclass(frozen=True, slots=True)
class NamedArrays:
    """The arrays of a snapshot: their paths by node id, and the paths of each manifest's arrays."""

    paths: Mapping[bytes, str]
    by_manifest: Mapping[str, Sequence[str]]


def read_arrays(data: bytes, snapshot_id: str) -> NamedArrays:
    """Returns the arrays of a snapshot file. Raises as `read_snapshot` does."""
    root = _root(unpack(data, FileType.SNAPSHOT).payload, snapshot_id)
    paths: dict[bytes, str] = {}
    by_manifest: dict[str, list[str]] = {}
    for nodes in root.children(_NODES, fields=_NODE_FIELDS):
        for node in nodes.only(nodes.numbers(_DATA_TYPE, "<u1") == _ARRAY_DATA):
            path = node.struct_vectors(_NODE_PATH, 1).tobytes().decode("utf-8", "replace")
            paths[node.structs(_ID, _NODE_ID_BYTES)[0].tobytes()] = path
            array = node.child(_DATA, fields=_ARRAY_DATA_FIELDS)
            for refs in array.children(_MANIFESTS, fields=_MANIFEST_REF_FIELDS):
                for row in refs.structs(0, ID_BYTES):
                    by_manifest.setdefault(id_text(row.tobytes()), []).append(path)
    return NamedArrays(paths, by_manifest)


def chunk_keys(
    payload: bytes, paths: Mapping[bytes, str], wanted: pa.StringArray
) -> Iterator[tuple[str, str]]:
    """Yields those of the `wanted` addresses of chunks that a manifest refers to, each with its key
    in Zarr, such as `group/array/c/0/3`. `paths` are those of `NamedArrays`. Raises as
    `manifest_chunks` does."""
    root = Buffer(payload).root(fields=_MANIFEST_FIELDS)
    for arrays in root.children(_ARRAYS, fields=_ARRAY_MANIFEST_FIELDS):
        for array in arrays:
            path = paths.get(array.structs(_ID, _NODE_ID_BYTES)[0].tobytes())
            for refs in array.children(_REFS, fields=_CHUNK_REF_FIELDS):
                own = refs.only(refs.has(_CHUNK_ID))
                ids = id_texts(own.structs(_CHUNK_ID, ID_BYTES), prefix=CHUNKS_PREFIX)
                is_wanted = pc.is_in(ids, wanted)
                if path is None or not pc.any(is_wanted).as_py():
                    continue
                keys = own.only(np.asarray(is_wanted)).columns(_INDEX).T.tolist()
                for address, key in zip(texts(ids.filter(is_wanted)), keys, strict=True):
                    yield address, "/".join([path.strip("/"), "c", *map(str, key)])


def read_snapshot(data: bytes, snapshot_id: str) -> Snapshot:
    """Parses a snapshot file. Raises DamagedError, UnknownFieldError or UnknownVersionError."""
    root = _root(unpack(data, FileType.SNAPSHOT).payload, snapshot_id)
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
    opened = unpack(data, FileType.SNAPSHOT)
    (position,) = _root(opened.payload, snapshot_id).field(_PARENT_ID, ID_BYTES).tolist()
    if not position or opened.payload[position : position + ID_BYTES] != id_bytes(expected):
        return None
    payload = bytearray(opened.payload)
    payload[position : position + ID_BYTES] = id_bytes(parent_id)
    return pack(
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
    root = Buffer(payload).root(fields=_SNAPSHOT_FIELDS)
    if _id_of(root) != snapshot_id:
        raise DamagedError(f"it holds snapshot {_id_of(root)}")
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
        arrays = nodes.only(arrays_only).child(_DATA, fields=_ARRAY_DATA_FIELDS)
        for refs in arrays.children(_MANIFESTS, fields=_MANIFEST_REF_FIELDS):
            found |= {row.tobytes() for row in refs.structs(0, ID_BYTES)}
    return {id_text(data) for data in found}


def manifest_chunks(payload: bytes, manifest_id: str, *, entry_count: int) -> pa.StringArray:
    """Returns the addresses of the repository's own chunks that a manifest refers to.

    `entry_count` is the number of references that the manifest must have. It includes inline and
    virtual references, which have no address here. Raises DamagedError or UnknownFieldError.
    """
    root = Buffer(payload).root(fields=_MANIFEST_FIELDS)
    if _id_of(root) != manifest_id:
        raise DamagedError(f"it holds manifest {_id_of(root)}")
    found: list[pa.StringArray] = []
    count = 0
    for arrays in root.children(_ARRAYS, fields=_ARRAY_MANIFEST_FIELDS):
        for array in arrays:
            last: Columns | None = None
            for refs in array.children(_REFS, fields=_CHUNK_REF_FIELDS):
                _check_kinds(refs)
                last = _check_order(refs, last)
                count += len(refs)
                found.append(id_texts(refs.structs(_CHUNK_ID, ID_BYTES), prefix=CHUNKS_PREFIX))
    if count != entry_count:
        raise DamagedError(f"it has {count:,} references, but its snapshot says {entry_count:,}")
    return pa.concat_arrays(found) if found else pa.array([], pa.string())


def _check_kinds(refs: Tables) -> None:
    """Raises DamagedError unless each reference is of one kind: inline, to a chunk, or virtual.

    A reference of no kind, of two kinds, or to a place outside the file can stand for a needed
    chunk.
    """
    kinds = refs.has(_INLINE).astype(np.int8) + refs.has(_CHUNK_ID)
    kinds += refs.has(_LOCATION) | refs.has(_PACKED_LOCATION)
    if (kinds != 1).any():
        raise DamagedError("it has a reference that is not of one kind")
    for slot in (_INLINE, _LOCATION, _PACKED_LOCATION):
        refs.check_vectors(slot, 1)


def _check_order(refs: Tables, last: Columns | None) -> Columns:
    """Raises DamagedError unless the references are in the order of their chunks' coordinates.

    Each coordinate is allowed once. This detects a reference that was overwritten with a copy of
    another. `last` has the coordinates of the reference before `refs`, or None. Returns those of
    the last reference.
    """
    found = refs.columns(_INDEX)
    if last is not None:
        if len(last) != len(found):
            raise DamagedError("the number of coordinates differs between its references")
        found = np.concatenate([last, found], axis=1)
    before, after = found[:, :-1], found[:, 1:]
    rising = np.zeros(before.shape[1], np.bool_)
    equal = np.ones(before.shape[1], np.bool_)
    for first, second in zip(before, after, strict=True):
        rising |= equal & (second > first)
        equal &= second == first
    if not rising.all():
        raise DamagedError("its references are not in order")
    return found[:, -1:]


def _id_of(root: Tables) -> str:
    """Returns the id of a file. Raises DamagedError if there is none."""
    rows = root.structs(_ID, ID_BYTES)
    if len(rows) != 1:
        raise DamagedError("it has no id")
    return id_text(rows[0].tobytes())
