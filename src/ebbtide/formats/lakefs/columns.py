"""Decodes the data blocks of a table as columns: all restart points of all blocks in lockstep.

In a block each key leaves out what it shares with the key before it, except at restart points.
Therefore the entries behind different restart points can be read at the same time, as rows of
arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.formats.lakefs.sstable import DamagedTableError

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

SUFFIX_BYTES: Final = 8
"""Behind each key: a sequence number and the kind of the entry."""
GROUP_BYTES: Final = 1 << 20
"""How much of the blocks is decoded at a time, so that the arrays stay in the processor's cache."""
KEY_BYTES_MAX: Final = 1 << 16
"""Longer keys are taken for damage. No object storage has names of this length."""
KEY_CELLS_MAX: Final = 1 << 27
"""The most bytes that the keys of a group may take, each padded to the longest."""
_VARINT_BITS_MAX: Final = 56
_INLINE_BYTES: Final = 12
"""Arrow's views of at most so many bytes have them in place of a reference."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys and values of some blocks, in the order of the blocks, and how many each block has."""

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    counts: Ints


@dataclass(frozen=True, slots=True)
class _Turn:
    """The entries that come as the same number behind their restart points: the restart points, and
    where the parts of the entries are. `shared` and `unshared` are lengths of a key's parts."""

    lanes: Ints
    key_at: Ints
    shared: Ints
    unshared: Ints
    value_at: Ints
    value_size: Ints


def decode(blocks: Sequence[bytes]) -> list[Entries]:
    """Returns the entries of unpacked data blocks, of some blocks at a time. Raises
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
    # What a key shares may reach to before the block: the room for it must exist.
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
    """Returns the numbers that begin at places, and the places behind them. Most have one byte.

    `data` has at least ten bytes behind the last place. Raises DamagedTableError.
    """
    first = data[at]
    found, behind = (first & 0x7F).astype(np.int64), at + 1
    more, shift = np.flatnonzero(first & 0x80), 7
    while more.size:
        if shift > _VARINT_BITS_MAX:
            raise DamagedTableError("a number has more than 63 bits")
        byte = data[behind[more]]
        found[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more, shift = more[(byte & 0x80) != 0], shift + 7
    return found, behind


def binary(data: Bytes, at: Ints, sizes: Ints) -> pa.LargeBinaryArray:
    """Returns slices of less than 2 GB of bytes as an array, copied."""
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
    """Finds all entries. In each turn every lane, which is a restart point, moves on by one."""
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
    """Returns the whole keys without their suffixes, in order, and the order of all entries: the
    first lane has the first ones.

    A lane's row of `cells` has its keys one behind the other. Each begins with what it shares with
    the one before it.
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
    """Returns the bytes of entries from which lakeFS makes the id of a table: each key and each
    value with its length before it, and a bar behind it. Returns also where each entry ends."""
    keys, values = entries.keys, entries.values
    parts: tuple[Any, ...] = (_lengths(keys), keys, _BAR, _lengths(values), values, _BAR, _NOTHING)
    joined: Any = pc.binary_join_element_wise(*parts)
    offsets = np.frombuffer(joined.buffers()[1], np.int64)[: len(joined) + 1]
    return memoryview(joined.buffers()[2])[: int(offsets[-1])], offsets[1:]


_BAR: Final = pa.scalar(b"|", pa.large_binary())
_NOTHING: Final = pa.scalar(b"", pa.large_binary())
_NO_BYTES: Final = pa.array([], pa.large_binary())


def _lengths(column: pa.LargeBinaryArray) -> Any:
    """Returns the lengths of values as texts of digits."""
    return pc.binary_length(column).cast(pa.large_string()).cast(pa.large_binary())
