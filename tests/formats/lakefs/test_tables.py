"""Tables are read as their writer wrote them, by both readers; damaged ones are refused."""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Final, cast

import google_crc32c
import pyarrow as pa
import pytest

from ebbtide.errors import EbbtideError
from ebbtide.formats.base import AskedNode
from ebbtide.formats.capabilities import read_nodes
from ebbtide.formats.lakefs import sstable
from ebbtide.formats.lakefs.committed import read_entries, read_metarange, read_ranges
from ebbtide.formats.lakefs.layout import LakefsLayout
from ebbtide.formats.lakefs.sstable import KEY_BYTES_MAX, DamagedTableError, decode, read_table
from ebbtide.formats.lakefs.walk import LakefsWalk
from tests.formats.lakefs.tables import (
    MAGIC,
    Pair,
    Writer,
    block,
    message,
    table,
    table_id,
    value,
    varint,
)
from tests.support.memory import Bucket
from tests.support.randomized import randomized

NAMESPACE: Final = "s3://lake/repo/"
PLACES: Final = ("data/p/", f"{NAMESPACE}data/p/", "s3://other/", "https://s3.x/lake/repo/data/p/")
RANGES: Final = {b"type": b"ranges"}


def entries(random: Random, count: int) -> list[tuple[str, str, int, str, int]]:
    """Path, address, size, checksum and type of address, sorted by path."""
    found = {}
    for number in range(count):
        depth = random.randrange(1, 4)
        path = "/".join(random.choice(("a", "bé", "year=2026", "x" * 30)) for _ in range(depth))
        kind = random.randrange(3)
        address = random.choice(PLACES) + str(number)
        if kind == 1 and "://" in address:
            kind = 2
        size = random.choice((0, 5, 1 << 20, 1 << 40))
        found[f"{path}/{number}"] = (address, size, f"{number:032x}", kind)
    return [(path, *each) for path, each in sorted(found.items(), key=lambda e: e[0].encode())]


def pairs_of(rows: list[tuple[str, str, int, str, int]]) -> list[Pair]:
    return [
        (
            path.encode(),
            value(
                hashlib.sha256(path.encode()).digest(),
                message(
                    (1, address.encode()),
                    (2, message((1, 1_700_000_000), (2, 5))),
                    (3, size),
                    (4, checksum.encode()),
                    (5, message((1, b"k"), (2, b"v"))),
                    (6, kind),
                ),
            ),
        )
        for path, address, size, checksum, kind in rows
    ]


def expected(address: str, kind: int) -> str:
    """Without the namespace, where the address is a URL in it."""
    is_url = kind == 2 or (kind == 0 and "://" in address)
    if is_url and not address.startswith(NAMESPACE) and "/data/" in address:
        return f"data/{address.rpartition('/data/')[2]}"
    return address.removeprefix(NAMESPACE) if is_url else address


def read_range(data: bytes, name: str) -> pa.StringArray:
    return read_ranges([(name, data)], namespaces=[NAMESPACE])[0]


@randomized("lakeFS tables")
def test_what_was_written_is_read(seed: int) -> None:
    random = Random(seed)
    rows = entries(random, random.choice((0, 1, 2, 15, 16, 17, 200, 1500)))
    pairs = pairs_of(rows)
    data = table(
        pairs,
        {**RANGES, b"count": b"%d" % len(pairs)},
        snappy=random.random() < 0.8,
        levels=random.choice((1, 2)),
        block_bytes=random.choice((64, 4096)),
    )
    name = table_id(pairs, RANGES)
    found = read_entries(data, name, namespaces=[NAMESPACE])
    assert found.column("path").to_pylist() == [row[0] for row in rows]
    assert found.column("size_bytes").to_pylist() == [row[2] for row in rows]
    assert found.column("checksum").to_pylist() == [row[3] for row in rows]
    addresses = [expected(row[1], row[4]) for row in rows]
    assert read_range(data, name).to_pylist() == addresses
    storage = Bucket("lake", lambda: datetime(2030, 1, 1, tzinfo=UTC)).storage("s3://lake/repo")
    storage.put(f"_lakefs/{name}", data)
    assert [*LakefsWalk(storage, (NAMESPACE,)).content(f"_lakefs/{name}")] == addresses


@randomized("lakeFS tables")
def test_many_are_read_together(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However their blocks are divided. Of those that cannot be read each has its own error."""
    random = Random(seed)
    monkeypatch.setattr(sstable, "GROUP_BYTES", random.choice((1, 3_000, 1 << 20)))
    storage = Bucket("lake", lambda: datetime(2030, 1, 1, tzinfo=UTC)).storage("s3://lake/repo")
    layout = LakefsLayout((NAMESPACE,))
    asked, expected_addresses = [], []
    for _ in range(random.randrange(1, 12)):
        rows = entries(random, random.choice((0, 1, 2, 16, 17, 90)))
        pairs = pairs_of(rows)
        name, data = table_id(pairs, RANGES), table(pairs, RANGES, block_bytes=256)
        storage.put(f"_lakefs/{name}", data)
        asked.append(AskedNode(storage, name, name, len(rows)))
        expected_addresses.append([expected(row[1], row[4]) for row in rows])
    assert [
        cast("pa.StringArray", each).to_pylist() for each in read_nodes(layout, asked)
    ] == expected_addresses

    spoiled = random.randrange(len(asked))
    wrong = random.choice(("missing", "damaged", "count"))
    node = asked[spoiled]
    address = f"_lakefs/{node.node_id}"
    if wrong == "missing":
        storage.delete([address])
    elif wrong == "damaged":
        storage.put(address, storage.get(address)[:-1])
    else:
        asked[spoiled] = replace(node, entry_count=node.entry_count + 1)
    found = read_nodes(layout, asked)
    for each, one, addresses in zip(asked, found, expected_addresses, strict=True):
        if each.node_id != node.node_id:
            assert isinstance(one, pa.Array)
            assert one.to_pylist() == addresses
        elif each is asked[spoiled]:
            assert isinstance(one, EbbtideError)
            assert one.kind == ("missing_node" if wrong == "missing" else "corrupt_node")


def test_a_table_without_blocks_has_no_entries() -> None:
    writer = Writer(snappy=False)
    index_at = writer.add(block([], restart=1))
    own = {b"rocksdb.block.based.table.index.type": struct.pack("<I", 0), **RANGES}
    properties_at = writer.add(block(sorted(own.items()), restart=9))
    meta_at = writer.add(block([(b"rocksdb.properties", properties_at)]))
    handles = (meta_at + index_at).ljust(40, b"\0")
    data = bytes(writer.data) + b"\1" + handles + struct.pack("<I", 2) + MAGIC
    assert read_range(data, table_id([], RANGES)).to_pylist() == []
    with pytest.raises(DamagedTableError):
        read_range(data, "another")


def small() -> tuple[bytes, str]:
    pairs = pairs_of(entries(Random(1), 40))
    return table(pairs, RANGES, levels=2), table_id(pairs, RANGES)


@randomized("lakeFS tables, damaged")
def test_a_damaged_table_is_refused_or_reads_the_same(seed: int) -> None:
    random = Random(seed)
    data, name = small()
    intact = read_range(data, name)
    changed = bytearray(data)
    kind = random.randrange(4)
    if kind == 0:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    elif kind == 1:
        del changed[random.randrange(len(changed)) :]
    elif kind == 2:
        place = random.randrange(len(changed))
        changed[place : place + random.randrange(1, 60)] = random.randbytes(random.randrange(60))
    else:
        first, second = random.randrange(len(changed)), random.randrange(len(changed))
        changed[first : first + 50] = changed[second : second + 50]
    try:
        found = read_range(bytes(changed), name)
    except DamagedTableError:
        return
    assert found == intact


@randomized("lakeFS tables, damaged")
def test_a_damaged_block_is_refused(seed: int) -> None:
    """Behind its checksum: whatever the bytes are, no error but DamagedTableError."""
    random = Random(seed)
    good = bytearray(block([(b"k%03d" % n + b"\0" * 8, random.randbytes(9)) for n in range(40)]))
    for _ in range(random.randrange(1, 4)):
        good[random.randrange(len(good))] = random.randrange(256)
    if random.random() < 0.2:
        del good[random.randrange(len(good)) :]
    with suppress(DamagedTableError):
        decode([bytes(good)])


def test_a_valid_range_in_the_place_of_another_is_refused() -> None:
    pairs = pairs_of(entries(Random(1), 40))
    other = [*pairs[:20], (pairs[20][0], pairs[21][1]), *pairs[21:]]
    data = table(other, RANGES)
    with pytest.raises(DamagedTableError, match="its content has the id"):
        read_range(data, table_id(pairs, RANGES))


def test_a_metarange_is_no_range() -> None:
    rows = [(b"z", value(b"f" * 64, message((2, b"z"), (4, 3))))]
    kind = {b"type": b"metaranges"}
    data, name = table(rows, kind), table_id(rows, kind)
    assert read_metarange(data, name).to_pydict() == {
        "node_id": ["f" * 64],
        "checksum": ["f" * 64],
        "entry_count": [3],
    }
    with pytest.raises(DamagedTableError, match="not one of lakeFS's ranges"):
        read_range(data, name)


def test_a_block_that_claims_too_much_is_refused_before_it_is_unpacked() -> None:
    packed = varint(1 << 30) + b"\xfe\x01\x00" * 10
    crc = google_crc32c.value(packed + b"\1")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    handles = (varint(0) + varint(len(packed))) * 2
    footer = b"\1" + handles.ljust(40, b"\0") + struct.pack("<I", 2) + MAGIC
    with pytest.raises(DamagedTableError, match="claims 1073741824 bytes"):
        read_table(packed + b"\1" + struct.pack("<I", masked) + footer)


def sharing(length: int, count: int) -> bytes:
    """A block with keys that all begin with the first one's so many bytes."""
    first = varint(0) + varint(length + 8) + varint(1) + b"k" * length + b"%08dv" % 0
    others = (varint(length) + varint(8) + varint(1) + b"%08dv" % n for n in range(1, count))
    return first + b"".join(others) + struct.pack("<2I", 0, 1)


def test_keys_that_would_take_much_memory_are_refused() -> None:
    """One long key, and many keys that share a long one."""
    assert decode([sharing(60, 4_000)])
    for long in (block([(b"k" * (KEY_BYTES_MAX + 1), b"v")]), sharing(60_000, 4_000)):
        with pytest.raises(DamagedTableError, match="too long"):
            decode([long])
