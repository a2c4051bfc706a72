"""A second reader of metaranges and ranges, for verification: entry by entry, from the files alone.

It imports nothing that reads them for a run, so that both readers cannot have the same defect. It
checks no checksums. Not for: deciding or deleting.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class LakefsWalk:
    """The second reader (`formats.base.Walk`). `namespaces` end in `/`."""

    storage: Storage
    namespaces: tuple[str, ...]

    def tree(self, tree_id: str) -> str:
        """Returns the address of a metarange. For a commit without one, returns an empty
        address."""
        return f"_lakefs/{tree_id}" if tree_id else ""

    def nodes(self, tree: str) -> list[str]:
        """Returns the addresses of a metarange's ranges: the identities of its values."""
        if not tree:
            return []
        return [f"_lakefs/{identity.decode()}" for identity, _ in self._values(tree)]

    def content(self, node: str) -> Iterator[str]:
        """Yields the address of each entry of a range: the first field of its message."""
        for _, message in self._values(node):
            address, kind = "", 0
            for number, value in _fields(message):
                if number == 1 and isinstance(value, bytes):
                    address = value.decode()
                elif number == 6 and isinstance(value, int):
                    kind = value
            is_url = kind == 2 or (kind == 0 and "://" in address)
            yield self._inside(address) if is_url else address

    def _inside(self, url: str) -> str:
        for namespace in self.namespaces:
            if url.startswith(namespace):
                return url[len(namespace) :]
        before, data, behind = url.rpartition("/data/")
        return f"{data}{behind}".lstrip("/") if before else url

    def _values(self, address: str) -> Iterator[tuple[bytes, bytes]]:
        """Yields identity and message of each entry."""
        data = self.storage.get(address)
        try:
            for value in _table(data):
                size, place = _number(value, 0)
                identity = value[place : place + (size >> 1)]
                size, behind = _number(value, place + (size >> 1))
                yield identity, value[behind : behind + (size >> 1)]
        except (IndexError, KeyError, struct.error, pa.ArrowException, OSError) as error:
            raise ValueError(f"{address} cannot be read: {error}") from error


def _table(data: bytes) -> Iterator[bytes]:
    """Yields the values of a table, in order."""
    footer = data[-53:]
    meta, place = _handle(footer, 1)
    index, _ = _handle(footer, place)
    where = dict(_pairs(_block(data, meta)))[b"rocksdb.properties"]
    properties = dict(_pairs(_block(data, _handle(where, 0)[0])))
    handles = [_handle(value, 0)[0] for _, value in _pairs(_block(data, index))]
    if properties[b"rocksdb.block.based.table.index.type"][0] == 2:
        inner = [_block(data, handle) for handle in handles]
        handles = [_handle(value, 0)[0] for block in inner for _, value in _pairs(block)]
    for handle in handles:
        yield from (value for _, value in _pairs(_block(data, handle)))


def _block(data: bytes, handle: tuple[int, int]) -> bytes:
    at, size = handle
    packed = data[at : at + size]
    if data[at + size] == 0:
        return packed
    return bytes(pa.decompress(packed, _number(packed, 0)[0], codec="snappy", asbytes=True))


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    end = len(block) - 4 * (1 + struct.unpack("<I", block[-4:])[0])
    place, key = 0, b""
    while place < end:
        shared, place = _number(block, place)
        rest, place = _number(block, place)
        size, place = _number(block, place)
        key = key[:shared] + block[place : place + rest]
        place += rest + size
        yield key, block[place - size : place]


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    at, place = _number(data, place)
    size, place = _number(data, place)
    return (at, size), place


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        value, place = _number(message, place)
        if tag & 7 == 2:
            yield tag >> 3, message[place : place + value]
            place += value
        else:
            yield tag >> 3, value


def _number(data: bytes, place: int) -> tuple[int, int]:
    found = shift = 0
    while data[place] & 0x80:
        found |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return found | data[place] << shift, place + 1
