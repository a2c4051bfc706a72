"""Snapshots and manifests of Icechunk, read a second time, for verification.

By the accessors of FlatBuffers' own library, one reference after the other: slow and obvious.
Whatever reads these files for a run is not imported here, so that the two do not err alike.
Source: Icechunk specification, `snapshot.fbs` and `manifest.fbs`. Not for: anything that decides or
deletes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zstandard
from flatbuffers.table import Table

from ebbtide.storage import Storage

_MAGIC: Final = "ICE🧊CHUNK".encode()
_HEADER_BYTES: Final = 39
_IS_PACKED: Final = 1
_PIECE_BYTES: Final = 2**20
_UNPACKED_FREE: Final = 64 * 2**20
_EXPANSION_MAX: Final = 1_000
"""What is large, and was packed closer, is no file of Icechunk's."""
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID_BYTES: Final = 12

_SNAPSHOT_NODES, _SNAPSHOT_FILES, _SNAPSHOT_FILES_V2 = 2, 6, 7
_NODE_KIND, _NODE_DATA = 3, 4
_IS_ARRAY: Final = 1
_ARRAY_MANIFESTS: Final = 2
_FILE_BYTES: Final = 32
_MANIFEST_ARRAYS, _ARRAY_REFS, _REF_CHUNK = 1, 1, 4


@dataclass(frozen=True, slots=True)
class IcechunkWalk:
    """See `formats.base.Walk`."""

    storage: Storage

    def tree(self, tree_id: str) -> str:
        """A snapshot's file."""
        return f"snapshots/{tree_id}"

    def nodes(self, tree: str) -> list[str]:
        """The manifests that a snapshot lists, and those that its arrays name."""
        try:
            return sorted({f"manifests/{_id(data)}" for data in _manifests(self._root(tree))})
        except (struct.error, IndexError, TypeError) as error:
            raise ValueError(f"{tree} is damaged: {error}") from error

    def content(self, node: str) -> Iterator[str]:
        """The chunks of a manifest, but for those that lie in it or outside the repository."""
        try:
            for array in _tables(self._root(node), _MANIFEST_ARRAYS):
                for reference in _tables(array, _ARRAY_REFS):
                    data = _struct(reference, _REF_CHUNK, _ID_BYTES)
                    if data is not None:
                        yield f"chunks/{_id(data)}"
        except (struct.error, IndexError, TypeError) as error:
            raise ValueError(f"{node} is damaged: {error}") from error

    def _root(self, address: str) -> Table:
        """The root table of a metadata file."""
        data = self.storage.get(address)
        if not data.startswith(_MAGIC) or len(data) < _HEADER_BYTES:
            raise ValueError(f"{address} does not begin as Icechunk's files do")
        payload = data[_HEADER_BYTES:]
        if data[_HEADER_BYTES - 1] == _IS_PACKED:
            try:
                payload = _unpacked(payload)
            except (zstandard.ZstdError, ValueError) as error:
                raise ValueError(f"{address} can't be unpacked: {error}") from error
        return Table(payload, int.from_bytes(payload[:4], "little"))


def _unpacked(packed: bytes) -> bytes:
    """What is in a frame of zstd. ValueError where that is more than a file of Icechunk's holds."""
    found = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        while piece := stream.read(_PIECE_BYTES):
            found += piece
            if len(found) > max(_UNPACKED_FREE, _EXPANSION_MAX * len(packed)):
                raise ValueError(f"there are more than {len(found) - len(piece):,} bytes in it")
    return bytes(found)


def _manifests(snapshot: Table) -> Iterator[bytes]:
    """The ids of the manifests of a snapshot, some more than once."""
    start, count = _vector(snapshot, _SNAPSHOT_FILES)
    for place in range(count):
        yield _bytes(snapshot, start + place * _FILE_BYTES, _ID_BYTES)
    for file in _tables(snapshot, _SNAPSHOT_FILES_V2):
        yield _needed(_struct(file, 0, _ID_BYTES))
    for node in _tables(snapshot, _SNAPSHOT_NODES):
        kind, data = _slot(node, _NODE_KIND), _slot(node, _NODE_DATA)
        if kind and data and node.Bytes[kind] == _IS_ARRAY:
            for reference in _tables(Table(node.Bytes, node.Indirect(data)), _ARRAY_MANIFESTS):
                yield _needed(_struct(reference, 0, _ID_BYTES))


def _slot(table: Table, number: int) -> int:
    """Where a field of a table is; 0 where it has none."""
    offset = table.Offset(4 + 2 * number)
    return table.Pos + offset if offset else 0


def _vector(table: Table, number: int) -> tuple[int, int]:
    """Where a vector begins, and how many elements it has."""
    offset = table.Offset(4 + 2 * number)
    return (table.Vector(offset), table.VectorLen(offset)) if offset else (0, 0)


def _tables(table: Table, number: int) -> Iterator[Table]:
    """The tables in a vector."""
    start, count = _vector(table, number)
    for place in range(count):
        yield Table(table.Bytes, table.Indirect(start + 4 * place))


def _struct(table: Table, number: int, size: int) -> bytes | None:
    """The bytes of a struct, if the table has it."""
    position = _slot(table, number)
    return _bytes(table, position, size) if position else None


def _bytes(table: Table, position: int, size: int) -> bytes:
    found = bytes(table.Bytes[position : position + size])
    if len(found) != size:
        raise IndexError("a value lies outside the file")
    return found


def _needed(data: bytes | None) -> bytes:
    if data is None:
        raise IndexError("a manifest has no id")
    return data


def _id(data: bytes) -> str:
    """Crockford's base32 of 96 bits, with four zero bits behind."""
    number = int.from_bytes(data, "big") << 4
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))
