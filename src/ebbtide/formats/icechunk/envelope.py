"""The header of 39 bytes of every Icechunk metadata file, and the packed payload after it.

Source: Icechunk specification, "Binary File Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import zstandard

from ebbtide.formats.icechunk.flatbuffer import DamagedError

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


class FileType(IntEnum):
    """The kind of a metadata file."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO = 6


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
