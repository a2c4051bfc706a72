"""The files of lakeFS's committed data: metaranges, which list ranges, and ranges of entries.

The id of a file is a SHA-256 of its content. Each file that is read is checked against its id:
keys, values and kind. Source: lakeFS, `pkg/graveler/committed` and `pkg/graveler/sstable`. Not for:
the container of the files (`sstable`), or their addresses (`layout`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema
from ebbtide.formats.base import NODES_SCHEMA
from ebbtide.formats.lakefs.sstable import (
    Bytes,
    DamagedTableError,
    Entries,
    Ints,
    SortedTable,
    binary,
    decode,
    digest_stream,
    read_table,
    varints,
)

ENTRIES_SCHEMA: Final = make_schema(
    ("path", pa.string()),
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("checksum", pa.string()),
)
"""An entry of a range. The checksum is the storage's ETag, or the text that a client gave."""

RANGES: Final = b"ranges"
METARANGES: Final = b"metaranges"

_TYPE: Final = b"type"
_WRITTEN_LAST: Final = frozenset({b"min_key", b"max_key", b"count", b"estimated_size_bytes"})
"""Properties that the writer sets after it has computed the id. The id does not cover them."""

_VARINT, _BYTES = 0, 2
_PADDING: Final = 16
"""Bytes after the last message, because `varints` can read past it. A number has at most ten
bytes."""
_ADDRESS, _SIZE, _CHECKSUM, _ADDRESS_TYPE = 1, 3, 4, 6
"""Fields of the message `Entry`."""
_MAX_KEY, _COUNT = 2, 4
"""Fields of the message `RangeData`."""
_BY_PREFIX, _RELATIVE, _FULL = 0, 1, 2
_DATA_URL: Final = r"^.*/(?P<data>data/.*)$"
_TYPES: Final = (_BY_PREFIX, _RELATIVE, _FULL)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of many protobuf messages. A missing number is 0, and a missing text is empty."""

    numbers: Mapping[int, Ints]
    texts: Mapping[int, pa.LargeBinaryArray]


def read_metarange(data: bytes, metarange_id: str) -> pa.Table:
    """Returns the ranges of a metarange (NODES_SCHEMA). The checksum of a range is its id.

    Raises DamagedTableError if the file is not the metarange of that id.
    """
    tables = [NODES_SCHEMA.empty_table()]
    for entries in _read([(metarange_id, data)], METARANGES)[0]:
        values = _values(entries)
        found = _parse(values, numbers=[_COUNT], texts=[_MAX_KEY])
        if not pc.all(pc.equal(found.texts[_MAX_KEY], entries.keys)).as_py():
            raise DamagedTableError("a range's last key differs from its place")
        ids = _texts(values.identities())
        columns: list[Any] = [ids, ids, pa.array(found.numbers[_COUNT])]
        tables.append(pa.Table.from_arrays(columns, schema=NODES_SCHEMA))
    return pa.concat_tables(tables)


def read_ranges(
    files: Sequence[tuple[str, bytes]], *, namespaces: Sequence[str]
) -> list[pa.StringArray]:
    """Returns the addresses of the entries of some ranges, each in the order of the paths. `files`
    are ids and contents. An address in the storage namespace is relative to it; any other is a URL.

    Raises DamagedTableError if a file is not the range of its id.
    """
    read: list[Any] = [pa.array([], pa.string())]
    groups, counts = _read(files, RANGES)
    for entries in groups:
        found = _parse(_values(entries), numbers=[_ADDRESS_TYPE], texts=[_ADDRESS])
        read.append(_addresses(found, namespaces))
    whole: Any = pa.concat_arrays(read)
    starts = np.cumsum(counts) - counts
    pairs = zip(starts.tolist(), counts.tolist(), strict=True)
    return [whole.slice(start, count) for start, count in pairs]


def read_entries(data: bytes, range_id: str, *, namespaces: Sequence[str]) -> pa.Table:
    """Returns the entries of a range (ENTRIES_SCHEMA). Raises as `read_ranges` does."""
    tables = [ENTRIES_SCHEMA.empty_table()]
    for entries in _read([(range_id, data)], RANGES)[0]:
        found = _parse(
            _values(entries), numbers=[_ADDRESS_TYPE, _SIZE], texts=[_ADDRESS, _CHECKSUM]
        )
        columns: list[Any] = [
            _texts(entries.keys),
            _addresses(found, namespaces),
            pa.array(found.numbers[_SIZE]),
            _texts(found.texts[_CHECKSUM]),
        ]
        tables.append(pa.Table.from_arrays(columns, schema=ENTRIES_SCHEMA))
    return pa.concat_tables(tables)


def _addresses(found: Fields, namespaces: Sequence[str]) -> pa.StringArray:
    types = found.numbers[_ADDRESS_TYPE]
    if not np.isin(types, _TYPES).all():
        raise DamagedTableError("an entry has an unknown type of address")
    return relative(_texts(found.texts[_ADDRESS]), types, namespaces)


def relative(addresses: pa.StringArray, types: Ints, namespaces: Sequence[str]) -> pa.StringArray:
    """Returns addresses in the storage namespace relative to it, and others unchanged. `namespaces`
    are the beginnings of URLs in the namespace, each ending in `/`.

    Entries of old servers have no type: a URL is full there, anything else is relative. If a URL
    has another beginning, the part from the last `data/` on is returned, if there is one. The
    namespace may have had another name, and no id of an object is used twice.
    """
    is_url = pc.match_substring(addresses, "://")
    left = pc.or_(pa.array(types == _FULL), pc.and_(pa.array(types == _BY_PREFIX), is_url))
    if not pc.any(left, min_count=0).as_py():
        return addresses
    found: Any = addresses
    for namespace in namespaces:
        is_inside = pc.and_(left, pc.starts_with(found, namespace))
        found = pc.if_else(is_inside, pc.utf8_slice_codeunits(found, len(namespace)), found)
        left = pc.and_not(left, is_inside)
    behind = pc.struct_field(pc.extract_regex(found, _DATA_URL), "data")
    found = pc.if_else(pc.and_(left, pc.is_valid(behind)), behind, found)
    return cast("pa.StringArray", found)


def read_messages(data: bytes, file_id: str) -> list[bytes]:
    """Returns the messages in a range of a dump of refs. Raises DamagedTableError."""
    read: list[bytes] = []
    for entries in _read([(file_id, data)], RANGES)[0]:
        messages: Any = _values(entries).messages()
        read += messages.to_pylist()
    return read


def _read(files: Sequence[tuple[str, bytes]], kind: bytes) -> tuple[list[Entries], Ints]:
    """Returns the entries of files in groups, and the number of entries of each file. Raises
    DamagedTableError unless each file has its id and is of this kind."""
    tables = [read_table(data) for _, data in files]
    groups = decode([block for table in tables for block in table.blocks])
    owners = np.repeat(np.arange(len(tables)), [len(table.blocks) for table in tables])
    counts = np.zeros(len(tables), np.int64)
    of_blocks = [np.zeros(0, np.int64), *(group.counts for group in groups)]
    np.add.at(counts, owners, np.concatenate(of_blocks))
    groups = [group for group in groups if len(group.keys)]
    for (file_id, _), table, found in zip(files, tables, _ids(tables, groups, counts), strict=True):
        if found != file_id:
            raise DamagedTableError(f"its content has the id {found}")
        if table.properties.get(_TYPE) != kind:
            raise DamagedTableError(f"it is not one of lakeFS's {kind.decode()}")
    return groups, counts


def _ids(tables: Sequence[SortedTable], groups: Iterable[Entries], counts: Ints) -> Iterator[str]:
    """Yields the id of each table, from its entries and properties."""
    digests = [hashlib.sha256() for _ in tables]
    ends, number, first = np.cumsum(counts).tolist(), 0, 0
    for group in groups:
        stream, stops = digest_stream(group)
        place = at = 0
        while place < len(stops):
            while ends[number] <= first + place:
                number += 1
            place = min(len(stops), ends[number] - first)
            stop = int(stops[place - 1])
            digests[number].update(stream[at:stop])
            at = stop
        first += len(stops)
    for table, digest in zip(tables, digests, strict=True):
        own = {name: each for name, each in table.properties.items() if name not in _WRITTEN_LAST}
        digest.update(b"\x04" + _number(len(own)))
        for pair in sorted(own.items()):
            for text in pair:
                digest.update(b"\x01" + _number(len(text)) + text)
        yield digest.hexdigest()


def _number(number: int) -> bytes:
    """Returns a number as lakeFS's package `ident` writes it."""
    return b"\x02\x08" + struct.pack(">q", number)


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of entries: where in `data` their identities and messages are."""

    data: Bytes
    identity_at: Ints
    identity_sizes: Ints
    at: Ints
    ends: Ints

    def identities(self) -> pa.LargeBinaryArray:
        """Returns the identities."""
        return binary(self.data, self.identity_at, self.identity_sizes)

    def messages(self) -> pa.LargeBinaryArray:
        """Returns the messages."""
        return binary(self.data, self.at, self.ends - self.at)


def _values(entries: Entries) -> _Values:
    """Finds the parts of values. Each has its length before it, as Go writes signed numbers."""
    data, starts, ends = _buffer(entries.values)
    sizes, identity_at = varints(data, starts)
    sizes >>= 1
    behind = identity_at + sizes
    if (behind >= ends).any():
        raise DamagedTableError("a value is shorter than its parts")
    message_sizes, message_at = varints(data, behind)
    if (message_at + (message_sizes >> 1) != ends).any():
        raise DamagedTableError("a value is not as long as its parts")
    return _Values(data, identity_at, sizes, message_at, ends)


def _parse(values: _Values, *, numbers: list[int], texts: list[int]) -> Fields:
    """Reads fields of protobuf messages: in each turn one field of every message. If a message has
    a field twice, the last one counts. Raises DamagedTableError."""
    data, count = values.data, len(values.at)
    found = {number: np.zeros(count, np.int64) for number in numbers}
    text_at = {number: np.zeros(count, np.int64) for number in texts}
    text_sizes = {number: np.zeros(count, np.int64) for number in texts}
    rows = np.flatnonzero(values.at < values.ends)
    at, ends = values.at[rows], values.ends[rows]
    while rows.size:
        tags, place = varints(data, at)
        kinds, fields = tags & 7, tags >> 3
        is_bytes = kinds == _BYTES
        if not (is_bytes | (kinds == _VARINT)).all():
            raise DamagedTableError("a message has a field of an unknown kind")
        sizes, place = varints(data, place)
        at = np.where(is_bytes, place + sizes, place)
        if (at > ends).any():
            raise DamagedTableError("a field goes beyond its message")
        for number, column in found.items():
            chosen = (fields == number) & ~is_bytes
            column[rows[chosen]] = sizes[chosen]
        for number in texts:
            chosen = (fields == number) & is_bytes
            text_at[number][rows[chosen]] = place[chosen]
            text_sizes[number][rows[chosen]] = sizes[chosen]
        going = at < ends
        rows, at, ends = rows[going], at[going], ends[going]
    named = {number: binary(data, text_at[number], text_sizes[number]) for number in texts}
    return Fields(found, named)


def _buffer(column: pa.LargeBinaryArray) -> tuple[Bytes, Ints, Ints]:
    """Returns the bytes of an array with _PADDING more bytes, and where each element begins and
    ends."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.zeros(1, np.int64)
    if len(column):
        offsets = np.frombuffer(offsets_buffer, np.int64)[: len(column) + 1]
    flat = np.frombuffer(data_buffer or b"", np.uint8)[: offsets[-1]]
    return np.concatenate([flat, np.zeros(_PADDING, np.uint8)]), offsets[:-1], offsets[1:]


def _texts(column: pa.LargeBinaryArray) -> pa.StringArray:
    """Returns texts. Raises DamagedTableError if one is not UTF-8."""
    try:
        return cast("pa.StringArray", column.cast(pa.binary()).cast(pa.string()))
    except pa.ArrowInvalid as error:
        raise DamagedTableError(f"a text is not UTF-8: {error}") from error
