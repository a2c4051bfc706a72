"""The container of lakeFS's committed data: a sorted string table in RocksDB's block format.

A file has data blocks, an index of them, properties, and a footer. Each block can be packed with
Snappy, and has a checksum. Source: RocksDB, "BlockBasedTable Format"; Pebble's package `sstable`
writes it for lakeFS. Not for: the meaning of keys and values (`committed`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import pyarrow as pa

_FOOTER_BYTES: Final = 53
_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_CRC32C: Final = 1
_TRAILER_BYTES: Final = 5
"""The bytes after each block: one for the kind of compression, and four for the checksum."""
_PLAIN, _SNAPPY = 0, 1
_SNAPPY_GROWS_MAX: Final = 24
"""A block that claims to grow by a greater factor is damaged. Snappy's shortest element for 64
bytes has three bytes."""
_SNAPPY_SMALL: Final = 64
_MASK_DELTA: Final = 0xA282EAD8
_UINT32: Final = 0xFFFFFFFF
_VARINT_BITS_MAX: Final = 63
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_TWO_LEVELS: Final = 2
_PROPERTIES: Final = b"rocksdb.properties"
_OWN: Final = b"rocksdb."
_Bytes = bytes | memoryview


class DamagedTableError(ValueError):
    """A file is not what its format says. The message says what is wrong, without the address."""


@dataclass(frozen=True, slots=True)
class SortedTable:
    """The data blocks of a file, unpacked, in the order of their keys, and the properties that its
    writer has set."""

    blocks: list[bytes]
    properties: dict[bytes, bytes]


def read_table(data: bytes) -> SortedTable:
    """Reads a file. Raises DamagedTableError if it is no table, or if a block has a wrong checksum.

    No block is unpacked to more than Snappy can make of it.
    """
    try:
        view = memoryview(data)
        meta_at, index_at = _footer(data)
        meta = dict(_entries(_block(view, *meta_at)))
        properties = dict(_entries(_block(view, *_handle(meta[_PROPERTIES]))))
        handles = [value for _, value in _entries(_block(view, *index_at))]
        if int.from_bytes(properties[_INDEX_TYPE], "little") == _TWO_LEVELS:
            inner = (_block(view, *_handle(each)) for each in handles)
            handles = [value for block in inner for _, value in _entries(block)]
        blocks = [_block(view, *_handle(each)) for each in handles]
    except (IndexError, KeyError, struct.error) as error:
        raise DamagedTableError(f"it is no table of lakeFS: {error!r}") from error
    own = {name: each for name, each in properties.items() if not name.startswith(_OWN)}
    return SortedTable(blocks, own)


def _footer(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns offset and size of two blocks: the one that names other blocks, and the index."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-len(_MAGIC) :] != _MAGIC or footer[0] != _CRC32C:
        raise DamagedTableError("it does not end as a table of lakeFS does")
    meta_offset, place = _varint(footer, 1)
    meta_size, place = _varint(footer, place)
    index_offset, place = _varint(footer, place)
    index_size, place = _varint(footer, place)
    return (meta_offset, meta_size), (index_offset, index_size)


def _block(data: memoryview, offset: int, size: int) -> bytes:
    """Returns a block, unpacked."""
    end = offset + size
    if end + _TRAILER_BYTES > len(data):
        raise DamagedTableError(f"a block ends at {end}, behind the end of the file")
    crc = google_crc32c.value(bytes(data[offset : end + 1]))
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32
    if masked != struct.unpack_from("<I", data, end + 1)[0]:
        raise DamagedTableError(f"the block at {offset} has another checksum")
    kind, packed = data[end], data[offset:end]
    if kind == _PLAIN:
        return bytes(packed)
    if kind != _SNAPPY:
        raise DamagedTableError(f"the block at {offset} is packed in an unknown way ({kind})")
    unpacked_size, _ = _varint(packed, 0)
    if unpacked_size > _SNAPPY_GROWS_MAX * size + _SNAPPY_SMALL:
        raise DamagedTableError(f"the block at {offset} claims {unpacked_size} bytes of {size}")
    try:
        return bytes(pa.decompress(packed, unpacked_size, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise DamagedTableError(f"the block at {offset} cannot be unpacked: {error}") from error


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a block, one by one. Only for index and property blocks, which have
    few entries."""
    restarts = struct.unpack_from("<I", block, len(block) - 4)[0]
    end, place, key = len(block) - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, unshared, size = block[place], block[place + 1], block[place + 2]
        if (shared | unshared | size) < 0x80:  # almost always
            place += 3
        else:
            shared, place = _varint(block, place)
            unshared, place = _varint(block, place)
            size, place = _varint(block, place)
        value_at = place + unshared
        if shared > len(key) or value_at + size > end:
            raise DamagedTableError("an entry goes beyond its block")
        key = key[:shared] + block[place:value_at]
        place = value_at + size
        yield key, block[value_at:place]


def _handle(value: bytes) -> tuple[int, int]:
    """Returns offset and size of a block."""
    offset, place = _varint(value, 0)
    return offset, _varint(value, place)[0]


def _varint(data: _Bytes, place: int) -> tuple[int, int]:
    """Returns a number that has seven bits in each byte, and the position after it."""
    found = shift = 0
    while shift <= _VARINT_BITS_MAX:
        byte = data[place]
        place += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, place
        shift += 7
    raise DamagedTableError("a number has more than 64 bits")
