"""The 39 bytes that every Icechunk metadata file begins with, and what is packed behind them.

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
"""How hard to compress: what Icechunk does by default."""

_NONE, _ZSTD = 0, 1


class FileType(IntEnum):
    """What a metadata file is."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO = 6


class UnknownVersionError(ValueError):
    """A file of a version of the format, or packed in a way, that this program does not know."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A metadata file, unpacked. `writer` is the name and version of the program that wrote it."""

    writer: str
    spec_version: int
    payload: bytes


def unpack(data: bytes, file_type: FileType) -> Envelope:
    """Check the header and unpack the rest. DamagedError, UnknownVersionError."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise DamagedError("it does not begin as Icechunk's files do")
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
    """A metadata file."""
    name = writer.encode("ascii")[:WRITER_BYTES].ljust(WRITER_BYTES)
    header = MAGIC + name + bytes([spec_version, file_type, _ZSTD])
    return header + zstandard.ZstdCompressor(level=LEVEL).compress(payload)


def _expand(packed: bytes) -> bytes:
    expander = zstandard.ZstdDecompressor().decompressobj()
    try:
        payload = expander.decompress(packed)
    except zstandard.ZstdError as error:
        raise DamagedError(f"it cannot be unpacked: {error}") from error
    if not expander.eof or expander.unused_data:
        raise DamagedError("it is cut short, or has something behind its end")
    return payload
