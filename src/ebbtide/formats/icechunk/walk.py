"""A second reader of Icechunk's snapshots and manifests, for verification.

It uses the accessors of FlatBuffers' own library, one reference after the other: slow and obvious.
It imports nothing that reads these files for a run, so that both readers cannot have the same
defect. Source: Icechunk specification, `snapshot.fbs` and `manifest.fbs`. Not for: deciding or
deleting.
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
"""The most bytes that one packed byte of a large file may unpack to. Icechunk keeps below it."""
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
    """The second reader of snapshots and manifests (`formats.base.Walk`)."""

    storage: Storage

    def tree(self, tree_id: str) -> str:
        """Returns the address of a tree's file, which is a snapshot."""
        return f"snapshots/{tree_id}"

    def nodes(self, tree: str) -> list[str]:
        """Returns the manifests that a snapshot lists, and those that its arrays name."""
        try:
            return sorted({f"manifests/{_id(data)}" for data in _manifests(self._root(tree))})
        except (struct.error, IndexError, TypeError) as error:
            raise ValueError(f"{tree} is damaged: {error}") from error

    def content(self, node: str) -> Iterator[str]:
        """Yields the chunks of a manifest, without inline chunks and those outside the
        repository."""
        try:
            for array in _tables(self._root(node), _MANIFEST_ARRAYS):
                for reference in _tables(array, _ARRAY_REFS):
                    data = _struct(reference, _REF_CHUNK, _ID_BYTES)
                    if data is not None:
                        yield f"chunks/{_id(data)}"
        except (struct.error, IndexError, TypeError) as error:
            raise ValueError(f"{node} is damaged: {error}") from error

    def _root(self, address: str) -> Table:
        """Returns the root table of a metadata file."""
        data = self.storage.get(address)
        if not data.startswith(_MAGIC) or len(data) < _HEADER_BYTES:
            raise ValueError(f"{address} does not begin with the header of an Icechunk file")
        payload = data[_HEADER_BYTES:]
        if data[_HEADER_BYTES - 1] == _IS_PACKED:
            try:
                payload = _unpacked(payload)
            except (zstandard.ZstdError, ValueError) as error:
                raise ValueError(f"{address} can't be unpacked: {error}") from error
        return Table(payload, int.from_bytes(payload[:4], "little"))


def _unpacked(packed: bytes) -> bytes:
    """Returns the content of a zstd frame. Raises ValueError if it is larger than a file of
    Icechunk's can be."""
    found = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        while piece := stream.read(_PIECE_BYTES):
            found += piece
            if len(found) > max(_UNPACKED_FREE, _EXPANSION_MAX * len(packed)):
                raise ValueError(f"it unpacks to more than {len(found) - len(piece):,} bytes")
    return bytes(found)


def _manifests(snapshot: Table) -> Iterator[bytes]:
    """Yields the ids of a snapshot's manifests, some of them more than once."""
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
    """Returns the position of a field of a table, or 0 if the field is absent."""
    offset = table.Offset(4 + 2 * number)
    return table.Pos + offset if offset else 0


def _vector(table: Table, number: int) -> tuple[int, int]:
    """Returns the position of a vector's first element, and the number of its elements."""
    offset = table.Offset(4 + 2 * number)
    return (table.Vector(offset), table.VectorLen(offset)) if offset else (0, 0)


def _tables(table: Table, number: int) -> Iterator[Table]:
    """Yields the tables in a vector."""
    start, count = _vector(table, number)
    for place in range(count):
        yield Table(table.Bytes, table.Indirect(start + 4 * place))


def _struct(table: Table, number: int, size: int) -> bytes | None:
    """Returns the bytes of a struct, or None if the table does not have it."""
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
    """Returns 96 bits, followed by four zero bits, in Crockford's base32."""
    number = int.from_bytes(data, "big") << 4
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))
