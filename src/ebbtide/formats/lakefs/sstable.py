"""The container of lakeFS's committed data: a sorted string table in RocksDB's block format.

A file has data blocks, an index of them, properties, and a footer. Each block can be packed with
Snappy, and has a checksum. Data blocks are decoded as columns. In a block, a key is stored without
the beginning that it shares with the key before it. Only keys at restart points are complete.
Therefore the entries behind different restart points can be read at the same time, as rows of
arrays: all restart points of all blocks in lockstep.

Source: RocksDB, "BlockBasedTable Format"; Pebble's package `sstable` writes it for lakeFS. Not for:
the meaning of keys and values (`committed`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
SUFFIX_BYTES: Final = 8
"""The bytes after each key: a sequence number and the kind of the entry."""
GROUP_BYTES: Final = 1 << 20
"""The bytes of blocks that are decoded together. Their arrays fit in the processor's cache."""
KEY_BYTES_MAX: Final = 1 << 16
"""A longer key counts as damage: no object storage has names of this length."""
KEY_CELLS_MAX: Final = 1 << 27
"""The most bytes that the keys of a group may take, each padded to the longest."""
_VARINT_SHIFT_MAX: Final = 56
_INLINE_BYTES: Final = 12
"""An Arrow view of at most this many bytes contains the bytes. A longer one has a reference."""
_BAR: Final = pa.scalar(b"|", pa.large_binary())
_NOTHING: Final = pa.scalar(b"", pa.large_binary())
_NO_BYTES: Final = pa.array([], pa.large_binary())


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


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys and values of some blocks, in the order of the blocks, and the number in each block."""

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    counts: Ints


@dataclass(frozen=True, slots=True)
class _Turn:
    """All entries with the same number after their restart points, such as the third ones. `lanes`
    are these restart points. `key_at` and `value_at` are positions. A key takes `shared` bytes from
    the key before it, and has `unshared` bytes of its own."""

    lanes: Ints
    key_at: Ints
    shared: Ints
    unshared: Ints
    value_at: Ints
    value_size: Ints


def decode(blocks: Sequence[bytes]) -> list[Entries]:
    """Returns the entries of unpacked data blocks, for groups of blocks. Raises
    DamagedTableError."""
    return [_decode(group) for group in _groups(blocks)]


def _groups(blocks: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for place, block in enumerate(blocks):
        size += len(block)
        if size >= GROUP_BYTES:
            yield blocks[start : place + 1]
            start, size = place + 1, 0
    if start < len(blocks):
        yield blocks[start:]


def _decode(blocks: Sequence[bytes]) -> Entries:
    # `_keys` reads windows of this length, which can begin before a block or end after it.
    padding = bytes(KEY_BYTES_MAX)
    data = np.frombuffer(b"".join([padding, *blocks, padding]), np.uint8)
    starts, stops, owners = _lanes(data, blocks, len(padding))
    turns = _turns(data, starts, stops)
    if not turns:
        return Entries(_NO_BYTES, _NO_BYTES, np.zeros(len(blocks), np.int64))
    keys, order = _keys(data, turns, len(starts))
    at = np.concatenate([turn.value_at for turn in turns])[order]
    sizes = np.concatenate([turn.value_size for turn in turns])[order]
    lanes = np.concatenate([turn.lanes for turn in turns])
    counts = np.bincount(owners[lanes], minlength=len(blocks))
    return Entries(keys, binary(data, at, sizes), counts)


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Returns the numbers that begin at the positions `at`, and the positions after them. Most
    numbers have one byte.

    `data` has at least ten bytes after the last position. Raises DamagedTableError.
    """
    first = data[at]
    found, behind = (first & 0x7F).astype(np.int64), at + 1
    more, shift = np.flatnonzero(first & 0x80), 7
    while more.size:
        if shift > _VARINT_SHIFT_MAX:
            raise DamagedTableError("a number has more than 63 bits")
        byte = data[behind[more]]
        found[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more, shift = more[(byte & 0x80) != 0], shift + 7
    return found, behind


def binary(data: Bytes, at: Ints, sizes: Ints) -> pa.LargeBinaryArray:
    """Returns copies of slices of `data` as an array. `data` has less than 2 GB."""
    views = np.zeros((len(at), 4), np.int32)
    views[:, 0], views[:, 3] = sizes, at
    heads = views.view(np.uint8).reshape(len(at), 16)
    windows = np.lib.stride_tricks.sliding_window_view(data, _INLINE_BYTES)
    short = sizes <= _INLINE_BYTES
    heads[:, 4:8] = windows[at][:, :4]
    if short.any():
        inline = windows[at[short]]
        inline = np.where(np.arange(_INLINE_BYTES) < sizes[short][:, None], inline, 0)
        heads[short, 4:] = inline
    buffers = [None, pa.py_buffer(views), pa.py_buffer(data)]
    found: Any = pa.Array.from_buffers(pa.binary_view(), len(at), buffers)
    return cast("pa.LargeBinaryArray", found.cast(pa.large_binary()))


def _lanes(data: Bytes, blocks: Sequence[bytes], offset: int) -> tuple[Ints, Ints, Ints]:
    """Returns where the entries of each restart point begin and end, and the number of its block.

    A block ends with a list of its restart points and their number.
    """
    sizes = np.array([len(each) for each in blocks], np.int64)
    ends = np.cumsum(sizes) + offset
    starts = ends - sizes
    counts = _uint32(data, ends - 4)
    data_ends = ends - 4 * (counts + 1)
    if (sizes < 8).any() or (counts < 1).any() or (data_ends < starts).any():
        raise DamagedTableError("a block has a wrong number of restart points")
    block = np.repeat(np.arange(len(blocks)), counts)
    number = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[block] + _uint32(data, data_ends[block] + 4 * number)
    stops = np.empty_like(begins)
    stops[:-1] = begins[1:]
    stops[np.cumsum(counts) - 1] = data_ends
    is_first = number == 0
    # A table without entries has one empty block, with one restart point.
    is_empty = is_first & (counts[block] == 1) & (begins == stops)
    if (begins[is_first] != starts).any() or ((begins >= stops) & ~is_empty).any():
        raise DamagedTableError("the restart points of a block are in no order")
    return begins[~is_empty], stops[~is_empty], block[~is_empty]


def _uint32(data: Bytes, at: Ints) -> Ints:
    parts = (data[at + k].astype(np.int64) << (8 * k) for k in range(4))
    return sum(parts, np.zeros(len(at), np.int64))


def _turns(data: Bytes, starts: Ints, stops: Ints) -> list[_Turn]:
    """Finds all entries. A lane has the entries of one restart point. Each turn reads one entry of
    every lane."""
    lanes, at, ends = np.arange(len(starts)), starts, stops
    turns: list[_Turn] = []
    while at.size:
        shared, place = varints(data, at)
        unshared, place = varints(data, place)
        value_size, key_at = varints(data, place)
        sizes = shared + unshared
        if (sizes < SUFFIX_BYTES).any() or np.max(sizes) > KEY_BYTES_MAX:
            raise DamagedTableError("a key is too short or too long")
        value_at = key_at + unshared
        at = value_at + value_size
        if (at > ends).any() or (value_size < 0).any():
            raise DamagedTableError("an entry goes beyond its restart point")
        turns.append(_Turn(lanes, key_at, shared, unshared, value_at, value_size))
        going = at < ends
        lanes, at, ends = lanes[going], at[going], ends[going]
    return turns


def _keys(data: Bytes, turns: Sequence[_Turn], lane_count: int) -> tuple[pa.LargeBinaryArray, Ints]:
    """Returns the complete keys without their suffixes, lane by lane, and the places of all entries
    of the turns in this order.

    A lane's row of `cells` has the keys of the lane, one after the other. Each key begins with the
    part that it shares with the key before it.
    """
    width = max(int(np.max(turn.shared + turn.unshared)) for turn in turns)
    if lane_count * len(turns) * width > KEY_CELLS_MAX:
        raise DamagedTableError("the keys of its blocks are too long")
    cells = np.zeros((lane_count, len(turns), width), np.uint8)
    sizes = np.full((lane_count, len(turns)), -1, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(data, width)
    columns, before = np.arange(width), np.zeros((lane_count, width), np.uint8)
    lengths = np.zeros(lane_count, np.int64)
    for number, turn in enumerate(turns):
        if (turn.shared > lengths[turn.lanes]).any():
            raise DamagedTableError("a key shares more than the key before it has")
        lengths[turn.lanes] = turn.shared + turn.unshared
        fresh = windows[turn.key_at - turn.shared]
        keys = np.where(columns < turn.shared[:, None], before[turn.lanes], fresh)
        before[turn.lanes] = keys
        cells[turn.lanes, number] = keys
        sizes[turn.lanes, number] = lengths[turn.lanes] - SUFFIX_BYTES
    flat = cells[columns < sizes[:, :, None]]
    kept = sizes[sizes >= 0]
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    found: Any = pa.Array.from_buffers(pa.large_binary(), len(kept), buffers)
    lanes = np.concatenate([turn.lanes for turn in turns])
    return found, np.argsort(lanes, kind="stable")


def digest_stream(entries: Entries) -> tuple[memoryview, Ints]:
    """Returns the bytes of entries that lakeFS hashes to the id of a table, and where each entry
    ends. Each key and each value has its length before it, and a bar after it."""
    keys, values = entries.keys, entries.values
    parts: tuple[Any, ...] = (_lengths(keys), keys, _BAR, _lengths(values), values, _BAR, _NOTHING)
    joined: Any = pc.binary_join_element_wise(*parts)
    offsets = np.frombuffer(joined.buffers()[1], np.int64)[: len(joined) + 1]
    return memoryview(joined.buffers()[2])[: int(offsets[-1])], offsets[1:]


def _lengths(column: pa.LargeBinaryArray) -> Any:
    """Returns the lengths of values as texts of digits."""
    return pc.binary_length(column).cast(pa.large_string()).cast(pa.large_binary())
