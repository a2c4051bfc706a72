"""Writes tables as lakeFS's server does: blocks of 4 KiB, a restart point every 16 entries."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import google_crc32c
import pyarrow as pa

BLOCK_BYTES: Final = 4096
RESTART: Final = 16
DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"
YEAR_4000: Final = datetime.fromisoformat("4000-01-01T00:00:00+00:00")
MAGIC: Final = bytes.fromhex("f7cff485b741e288")
Pair = tuple[bytes, bytes]


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def zigzag(number: int) -> bytes:
    """A length as Go writes a signed number."""
    return varint(number << 1)


def value(identity: bytes, data: bytes) -> bytes:
    return zigzag(len(identity)) + identity + zigzag(len(data)) + data


def block(pairs: Sequence[Pair], *, restart: int = RESTART) -> bytes:
    """A block, not packed."""
    found, restarts, before = bytearray(), [], b""
    for number, (key, each) in enumerate(pairs):
        shared = 0
        if number % restart == 0:
            restarts.append(len(found))
        else:
            most = min(len(before), len(key))
            while shared < most and before[shared] == key[shared]:
                shared += 1
        found += varint(shared) + varint(len(key) - shared) + varint(len(each))
        found += key[shared:] + each
        before = key
    return bytes(found) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


class Writer:
    def __init__(self, *, snappy: bool = True) -> None:
        self.data = bytearray()
        self._snappy = snappy

    def add(self, unpacked: bytes, *, packs: bool = True) -> bytes:
        packed = unpacked
        if packs and self._snappy:
            packed = pa.compress(unpacked, codec="snappy", asbytes=True)
        kind = bytes([int(packs and self._snappy)])
        crc = google_crc32c.value(packed + kind)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        handle = varint(len(self.data)) + varint(len(packed))
        self.data += packed + kind + struct.pack("<I", masked)
        return handle


def table(
    pairs: Iterable[Pair],
    properties: Mapping[bytes, bytes],
    *,
    snappy: bool = True,
    levels: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> bytes:
    """A file with keys in order, and user properties."""
    writer, index, waiting, size = Writer(snappy=snappy), [], list[Pair](), 0

    def flush() -> None:
        if waiting:
            index.append((waiting[-1][0], writer.add(block(waiting))))
            waiting.clear()

    for number, (key, each) in enumerate(pairs):
        waiting.append((key + struct.pack("<Q", number << 8 | 1), each))
        size += len(key) + len(each)
        if size >= block_bytes:
            flush()
            size = 0
    flush()
    if not index:
        index.append((b"\xff" + bytes(8), writer.add(struct.pack("<2I", 0, 1))))
    if levels == 2:
        parts = [index[place : place + 32] for place in range(0, len(index), 32)]
        index = [(part[-1][0], writer.add(block(part, restart=1))) for part in parts]
    index_at = writer.add(block(index, restart=1))
    own = {
        b"rocksdb.block.based.table.index.type": struct.pack("<I", 2 if levels == 2 else 0),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
    }
    named = sorted({**own, **properties}.items())
    properties_at = writer.add(block(named, restart=len(named) + 1), packs=False)
    meta_at = writer.add(block([(b"rocksdb.properties", properties_at)]), packs=False)
    handles = (meta_at + index_at).ljust(40, b"\0")
    return bytes(writer.data) + b"\1" + handles + struct.pack("<I", 2) + MAGIC


def table_id(pairs: Sequence[Pair], properties: Mapping[bytes, bytes]) -> str:
    """The id: a SHA-256 of keys, values and the properties that were set before the end."""
    found = hashlib.sha256()
    for pair in pairs:
        for each in pair:
            found.update(b"%d" % len(each) + each + b"|")
    found.update(b"\4" + _number(len(properties)))
    for pair in sorted(properties.items()):
        for each in pair:
            found.update(b"\1" + _number(len(each)) + each)
    return found.hexdigest()


def _number(number: int) -> bytes:
    return b"\2\x08" + struct.pack(">q", number)


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message; numbers of zero and empty texts are left out."""
    found = b""
    for number, each in fields:
        if isinstance(each, int):
            found += varint(number << 3) + varint(each) if each else b""
        elif each:
            found += varint(number << 3 | 2) + varint(len(each)) + each
    return found


def written(pairs: Sequence[Pair], properties: Mapping[bytes, bytes]) -> Pair:
    """The id and the content of a file, with the properties that the server adds at the end."""
    first, last = (pairs[0][0], pairs[-1][0]) if pairs else (b"", b"")
    late = {b"count": b"%d" % len(pairs), b"min_key": first, b"max_key": last}
    return table_id(pairs, properties).encode(), table(pairs, {**properties, **late})


def range_row(range_id: bytes, pairs: Sequence[Pair]) -> Pair:
    first, last = pairs[0][0], pairs[-1][0]
    return last, value(range_id, message((1, first), (2, last), (3, 100), (4, len(pairs))))


def partition(began: datetime, number: int = 0) -> str:
    """The name of a partition that the server began then; of the same second, by number."""
    seconds = round((YEAR_4000 - began).total_seconds()) % (1 << 32)
    bits = seconds << 64 | number
    bits <<= 4  # twenty characters have a hundred bits, and an id has 96
    return "".join(DIGITS[bits >> shift & 31] for shift in range(95, -1, -5))
