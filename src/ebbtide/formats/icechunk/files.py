"""Icechunk's metadata files: the header of 39 bytes, and the packed FlatBuffer after it.

FlatBuffers are read by columns: one field of many tables at a time, with all positions checked.
The library's own accessors read one field of one table: 0.3 million references per second. A
damaged file must not cause a read past its end, or a loop. Therefore each position is compared with
the buffer's bounds before it is read. Source: Icechunk specification, "Binary File Format";
FlatBuffers, "Internals"; all numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zstandard

from ebbtide.formats.icechunk.ids import ByteRows

MAGIC: Final = "ICE🧊CHUNK".encode()
WRITER_BYTES: Final = 24
HEADER_BYTES: Final = len(MAGIC) + WRITER_BYTES + 3
SPEC_VERSIONS: Final = (1, 2)
LEVEL: Final = 3
"""The level of compression: Icechunk's default."""

PAYLOAD_BYTES_MAX: Final = 2**31
"""No FlatBuffer is larger: its offsets have 31 bits."""

PAYLOAD_BYTES_FREE: Final = 64 * 2**20
"""The bytes that any file may unpack to."""

EXPANSION_MAX: Final = 1_000
"""The most bytes that one packed byte may unpack to, in a file above PAYLOAD_BYTES_FREE.

Ids hardly shrink. Equal content in many places shrinks most: the same 2 KB of attributes in many
arrays shrink by a factor of 90. Inline chunks of zeros shrink by a factor of 70, if each has 512
bytes, Icechunk's own limit."""

_NONE, _ZSTD = 0, 1
_ZSTD_EXPANSION: Final = 2**15
"""The most bytes that zstd makes of one byte: a block of four bytes makes 128 KiB."""

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ROWS_MAX: Final = 1 << 20
"""The most tables that are read together. This bounds the memory of their positions."""

_VTABLE_HEADER: Final = 4
_OFFSET_BYTES: Final = 4


class FileType(IntEnum):
    """The kind of a metadata file."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO = 6


class DamagedError(ValueError):
    """The bytes are not a valid file of the expected kind."""


class UnknownFieldError(ValueError):
    """A table has a field that this program's schema lacks, so that a newer program wrote it."""


class UnknownVersionError(ValueError):
    """The file has a version of the format, or a compression, that this program does not know."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A metadata file, unpacked. `writer` is the name and version of the program that wrote it."""

    writer: str
    spec_version: int
    payload: bytes


def unpack(data: bytes, file_type: FileType) -> Envelope:
    """Checks the header and unpacks the payload. Raises DamagedError or UnknownVersionError."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise DamagedError("it does not begin with the header of an Icechunk file")
    writer = data[len(MAGIC) : len(MAGIC) + WRITER_BYTES].decode("utf-8", "replace").rstrip()
    spec_version, found_type, compression = data[HEADER_BYTES - 3 : HEADER_BYTES]
    if spec_version not in SPEC_VERSIONS:
        raise UnknownVersionError(f"it has spec version {spec_version}, written by {writer}")
    if found_type != file_type:
        raise DamagedError(f"it has file type {found_type}, not {file_type.value}")
    if compression not in (_NONE, _ZSTD):
        raise UnknownVersionError(f"it has compression {compression}, written by {writer}")
    packed = data[HEADER_BYTES:]
    return Envelope(writer, spec_version, _expand(packed) if compression == _ZSTD else packed)


def pack(payload: bytes, file_type: FileType, *, writer: str, spec_version: int) -> bytes:
    """Returns the bytes of a metadata file."""
    name = writer.encode("ascii")[:WRITER_BYTES].ljust(WRITER_BYTES)
    header = MAGIC + name + bytes([spec_version, file_type, _ZSTD])
    return header + zstandard.ZstdCompressor(level=LEVEL).compress(payload)


def payload_limit(packed_bytes: int) -> int:
    """Returns the bytes that a file of `packed_bytes` may unpack to. Icechunk writes no small file
    that would fill the memory."""
    return min(max(PAYLOAD_BYTES_FREE, EXPANSION_MAX * packed_bytes), PAYLOAD_BYTES_MAX)


def _expand(packed: bytes) -> bytes:
    """Unpacks piece by piece. Pieces are so small that the result exceeds the limit by at most one
    block."""
    expander = zstandard.ZstdDecompressor().decompressobj()
    limit = payload_limit(len(packed))
    pieces: list[bytes] = []
    position = size = 0
    try:
        while position < len(packed) and not expander.eof:
            end = position + max(1, (limit - size) // _ZSTD_EXPANSION)
            pieces.append(expander.decompress(packed[position:end]))
            size += len(pieces[-1])
            position = end
            if size > limit:
                raise DamagedError(f"it unpacks to more than {limit:,} bytes")
    except zstandard.ZstdError as error:
        raise DamagedError(f"it cannot be unpacked: {error}") from error
    if not expander.eof or expander.unused_data or position < len(packed):
        raise DamagedError("it is cut short, or has bytes after its end")
    return b"".join(pieces)


class Buffer:
    """The bytes of one FlatBuffer, which can be read at any position."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._views: dict[str, npt.NDArray[Any]] = {}

    def root(self, *, fields: int) -> Tables:
        """Returns the root table, whose schema has `fields` fields."""
        start = self.read("<u4", np.zeros(1, np.int64)).astype(np.int64)
        return Tables(self, start, fields=fields)

    def read(self, dtype: str, positions: Positions) -> npt.NDArray[Any]:
        """Returns the value of a type at each position. Raises DamagedError if a position lies
        outside the file."""
        view = self._views.get(dtype)
        if view is None:
            size = np.dtype(dtype).itemsize
            count = max(len(self.data) - size + 1, 0)
            view = np.ndarray((count,), dtype, self.data, strides=(1,))
            self._views[dtype] = view
        if positions.size and (np.min(positions) < 0 or np.max(positions) >= len(view)):
            raise DamagedError("a position lies outside the file")
        return view[positions]


class Tables:
    """Tables of one kind, given by their positions. A field is read from all of them at once."""

    def __init__(self, buffer: Buffer, positions: Positions, *, fields: int) -> None:
        self._buffer = buffer
        self._fields = fields
        self.positions = positions
        self._vtables = positions - buffer.read("<i4", positions)
        self._vtable_bytes = buffer.read("<u2", self._vtables)
        self._table_bytes = buffer.read("<u2", self._vtables + 2)
        if (self._vtable_bytes < _VTABLE_HEADER).any() or (self._vtable_bytes % 2).any():
            raise DamagedError("a table has no layout")
        known = _VTABLE_HEADER + 2 * fields
        if positions.size and np.max(self._vtable_bytes) > known:
            self._check_unknown(known)

    def __len__(self) -> int:
        return len(self.positions)

    def _check_unknown(self, known: int) -> None:
        """Raises UnknownFieldError if a table has an unknown field. An entry of zero is an absent
        field."""
        longest = int(np.max(self._vtable_bytes))
        for entry in range(known, longest, 2):
            rows = self._vtable_bytes > entry
            if self._buffer.read("<u2", self._vtables[rows] + entry).any():
                raise UnknownFieldError("it has a field that this program does not know")

    def field(self, slot: int, size: int = _OFFSET_BYTES) -> Positions:
        """Returns the position of the field of `size` bytes in each table, or 0 if it is absent.
        Raises DamagedError if it lies outside its table."""
        entry = _VTABLE_HEADER + 2 * slot
        has_entry = self._vtable_bytes > entry
        if has_entry.all():
            offsets = self._buffer.read("<u2", self._vtables + entry).astype(np.int64)
        else:
            offsets = np.zeros(len(self), np.int64)
            offsets[has_entry] = self._buffer.read("<u2", self._vtables[has_entry] + entry)
        present = offsets != 0
        outside = (offsets < _OFFSET_BYTES) | (offsets + size > self._table_bytes)
        if (present & outside).any():
            raise DamagedError("a field lies outside its table")
        return np.where(present, self.positions + offsets, 0)

    def __iter__(self) -> Iterator[Tables]:
        """Yields each table alone."""
        for place in range(len(self)):
            yield Tables(self._buffer, self.positions[place : place + 1], fields=self._fields)

    def only(self, mask: Mask) -> Tables:
        """Returns the tables that the mask selects."""
        return Tables(self._buffer, self.positions[mask], fields=self._fields)

    def has(self, slot: int) -> Mask:
        """Returns whether each table has the field."""
        found: Mask = self.field(slot) != 0
        return found

    def numbers(self, slot: int, dtype: str, *, default: int = 0) -> npt.NDArray[Any]:
        """Returns a number of each table, or `default` if the field is absent."""
        found = self.field(slot, np.dtype(dtype).itemsize)
        present = found != 0
        values = np.full(len(self), default, dtype)
        values[present] = self._buffer.read(dtype, found[present])
        return values

    def structs(self, slot: int, size: int) -> ByteRows:
        """Returns the bytes of a struct of `size` bytes, from the tables that have it, in order."""
        found = self.field(slot, size)
        return _rows(self._buffer.read(f"V{size}", found[found != 0]), size)

    def struct_vectors(self, slot: int, size: int) -> ByteRows:
        """Returns the structs of `size` bytes in the vectors of all tables, in order."""
        starts, lengths = self._vectors(slot, size)
        return _rows(self._buffer.read(f"V{size}", _spread(starts, lengths, size)), size)

    def check_vectors(self, slot: int, size: int) -> None:
        """Raises DamagedError unless each existing vector, with elements of `size` bytes, lies
        within the file."""
        self._vectors(slot, size)

    def columns(self, slot: int) -> npt.NDArray[np.uint32]:
        """Returns a vector of 32-bit numbers of each table, as columns: one row for each place in
        the vectors, one column for each table.

        Raises DamagedError if a table lacks the vector, or if the vectors differ in length.
        """
        starts, lengths = self._vectors(slot, 4)
        if len(starts) != len(self) or (lengths != lengths[:1]).any():
            raise DamagedError("vectors that belong together differ in length")
        width = int(lengths[0]) if len(lengths) else 0
        found = np.empty((width, len(self)), np.uint32)
        for place in range(width):
            found[place] = self._buffer.read("<u4", starts + 4 * place)
        return found

    def child(self, slot: int, *, fields: int) -> Tables:
        """Returns the tables that the field points at, from the tables that have it."""
        found = self.field(slot)
        return Tables(self._buffer, self._follow(found[found != 0]), fields=fields)

    def children(self, slot: int, *, fields: int) -> Iterator[Tables]:
        """Yields the tables in the vectors of all tables, in order, at most ROWS_MAX at a time."""
        starts, lengths = self._vectors(slot, 4)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            for first in range(0, length, ROWS_MAX):
                count = min(ROWS_MAX, length - first)
                places = start + 4 * np.arange(first, first + count, dtype=np.int64)
                yield Tables(self._buffer, self._follow(places), fields=fields)

    def _vectors(self, slot: int, size: int) -> tuple[Positions, npt.NDArray[np.int64]]:
        """Returns the position of each vector's first element, and the number of its elements."""
        found = self.field(slot)
        vectors = self._follow(found[found != 0])
        lengths = self._buffer.read("<u4", vectors).astype(np.int64)
        ends = vectors + 4 + lengths * size
        if ends.size and np.max(ends) > len(self._buffer.data):
            raise DamagedError("a vector is longer than the file")
        return vectors + 4, lengths

    def _follow(self, positions: Positions) -> Positions:
        """Returns the positions that the offsets at `positions` point at. Offsets only point
        forward."""
        offsets = self._buffer.read("<u4", positions)
        if offsets.size and np.min(offsets) < _OFFSET_BYTES:
            raise DamagedError("an offset points at itself")
        found: Positions = positions + offsets
        return found


def _spread(starts: Positions, lengths: npt.NDArray[np.int64], size: int) -> Positions:
    """Returns the position of each element of each vector."""
    if not lengths.size:
        return np.zeros(0, np.int64)
    parts = [
        start + size * np.arange(length, dtype=np.int64)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    return np.concatenate(parts)


def _rows(values: npt.NDArray[Any], size: int) -> ByteRows:
    """Returns values of `size` bytes as rows of bytes."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, size)
