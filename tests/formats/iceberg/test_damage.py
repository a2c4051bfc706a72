"""Damaged, foreign and hostile files of Iceberg tables: none makes a needed file a candidate, fills
the memory, or raises an error that is not documented."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from random import Random
from struct import error as StructError  # noqa: N812
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from fastavro.io.binary_encoder import BinaryEncoder

from ebbtide.arrow import texts
from ebbtide.audit.explain import Explainer
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.iceberg.avro import ListedManifest, read_list
from ebbtide.formats.iceberg.expiries import RECORDS_PREFIX
from ebbtide.formats.iceberg.metadata import (
    UNPACKED_BYTES_FREE,
    DamagedMetadataError,
    document_of,
    unpacked_max,
)
from ebbtide.formats.iceberg.reading import IcebergReading
from ebbtide.formats.iceberg.repository import IcebergRepository
from ebbtide.formats.iceberg.rest import NOTES_PREFIX
from ebbtide.formats.iceberg.tables import CATALOGS_ADDRESS
from tests.formats.iceberg.histories import ids_of, litter
from tests.formats.iceberg.warehouse import GRACE, Warehouse, request, rows, unnamed
from tests.support.icechunk_lake import candidates
from tests.support.randomized import randomized

KINDS: Final = {
    "corrupt_node",
    "corrupt_tree",
    "foreign_table",
    "missing_node",
    "missing_object",
    "missing_tree",
    "prefix_mismatch",
    "repository_readonly",
    "unknown_format_version",
    "zero_commits",
}
"""The refusals that docs/iceberg.md and docs/safety.md have for files that cannot be understood."""
ODD: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        -1,
        0,
        2**31,
        2**63,
        10**400,
        -(10**400),
        1.5,
        float("inf"),
        "",
        "x",
        "\ud800",
        "a\0b",
        "false",
    ),
    *([], {}, [[]], [None], {"a": 1}, "file:///nowhere/x", "../x"),
)
"""Values that do not belong where they are put."""
DEEP: Final = "[" * 100_000


def rewritten(rng: Random, data: bytes) -> bytes:
    """An Avro file of the same schema, with one value of a row in place of another."""
    reader = fastavro.reader(BytesIO(data))
    found: list[Any] = list(reader)
    row = rng.choice(found)
    inner = row.get("data_file")
    row = inner if isinstance(inner, dict) and rng.random() < 0.5 else row
    row[rng.choice(sorted(row))] = rng.choice(ODD)
    out, schema = BytesIO(), json.loads(reader.metadata["avro.schema"])
    try:
        fastavro.writer(out, schema, found, codec=rng.choice(("null", "deflate")))
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError, StructError):
        # The schema has no such value.
        return b""
    return out.getvalue()


def altered(rng: Random, data: bytes) -> bytes:
    """A metadata file with an odd value in some place, or without one."""
    document = place = json.loads(data)
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        if isinstance(place, dict) and rng.random() < 0.2:
            del place[key]
        else:
            place[key] = rng.choice(ODD)
        return json.dumps(document).encode()


def damaged(rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
    """What a file could be in place of what it is."""
    kind, changed = rng.randrange(6), bytearray(data)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        for _ in range(rng.choice((1, 1, 1, 20))):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(changed)
    if kind == 2:
        return rng.choice(others)
    if kind == 3:
        text = rng.choice(("[]", "{}", "null", "1", '"x"', "NaN", DEEP, "\ufeff{}", "{" * 99, ""))
        return text.encode() if rng.random() < 0.5 else gzip.compress(text.encode())
    if kind == 4 and name.endswith(".json"):
        packed = gzip.compress(data)
        return packed[: rng.randrange(len(packed))] if rng.random() < 0.5 else bytes(len(data))
    return altered(rng, data) if name.endswith(".json") else rewritten(rng, data)


def named_by(repository: IcebergRepository) -> set[str]:
    """The files that a run would take for needed."""
    states = repository._warehouse.read()
    reading = IcebergReading(states, datetime.now(UTC))
    reading.roots()
    found = {each for table in reading.protected() for each in texts(table["address"])}
    found |= dict(repository._warehouse.added(states, frozenset())).keys()
    repository.layout.classify(pa.array(sorted(found), pa.string()))
    return found


def make(lake: Warehouse) -> tuple[set[str], list[bytes]]:
    """A table of several snapshots, each with a tag. Returns the files that nothing but its
    metadata file says it needs, and files of another table."""
    table, other = lake.table("events"), lake.table("other")
    for number in range(3):
        table.append(rows(number, number + 1))
        other.append(rows(number, number + 1))
    table.delete("id == 1")
    for each in table.metadata.snapshots:
        table.manage_snapshots().create_tag(each.snapshot_id, f"t{each.snapshot_id}").commit()
    foreign = [
        (lake.path / each).read_bytes()
        for each in sorted(lake.needed())
        if each.startswith("other/metadata/")
    ]
    lake.catalog.drop_table("db.other")
    return {lake.relative(each.metadata_file) for each in table.metadata.metadata_log}, foreign


@randomized("damaged Iceberg files")
def test_damage_never_makes_a_needed_file_a_candidate(seed: int, tmp_path: Path) -> None:
    """A run refuses, or plans what it would have planned anyway."""
    rng = Random(seed)
    with closing(Warehouse(tmp_path)) as lake, ids_of(seed):
        logged, others = make(lake)
        # The dropped table is collected if its metadata file is in the place of the other's.
        left = litter(lake, lake.tables()[0], 1)
        left |= {each for each in lake.files() if each.startswith("other/")}
        lake.age()
        needed = lake.needed()
        metadata = sorted(each for each in needed - logged if "/metadata/" in each)
        # A list or a manifest of the table itself is in the place of another.
        others += [(lake.path / each).read_bytes() for each in metadata]
        for _ in range(30):
            chosen = rng.choice(metadata)
            before = (lake.path / chosen).read_bytes()
            data = damaged(rng, chosen, before, others)
            (lake.path / chosen).write_bytes(data)
            check_damage(lake, needed - logged, left | logged)
            (lake.path / chosen).write_bytes(before)


def test_a_manifest_of_another_table_in_the_place_of_one(tmp_path: Path) -> None:
    """It has the length and the number of files that the list says."""
    with closing(Warehouse(tmp_path)) as lake:
        for name in ("events", "other"):
            lake.table(name).append(rows(1, 2))
        lake.age()
        lists, manifests = (
            sorted((lake.path / each for each in lake.files() if mark in each), key=str)
            for mark in ("/snap-", "-m0.avro")
        )
        other = manifests[1].read_bytes()
        size = {"manifest_length": len(other)}
        lists[0].write_bytes(changed(lists[0].read_bytes(), lambda row: row.update(size)))
        manifests[0].write_bytes(other)
        report = lake.collector().plan()
        assert report.error is not None
        assert report.error["kind"] == "corrupt_node"
        assert "snapshot: it has" in report.error["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        "{right}x",
        "{root}/evenus/data/x.parquet",
        "file:///nowhere/x.parquet",
        "file://nowhere/x.parquet",
        "file:///nowhere/\0",
        "fjle:///nowhere/x.parquet",
        "gs://bucket/x.parquet",
    ],
)
def test_a_wrong_path_in_a_manifest_may_lead_anywhere(tmp_path: Path, wrong: str) -> None:
    """Nothing else tells it from the right one, whose file would be a candidate."""
    with closing(Warehouse(tmp_path)) as lake:
        table = lake.table("events")
        table.append(rows(1))
        lake.age()
        [file] = table.scan().plan_files()
        right = file.file.file_path
        lists, manifests = sorted(lake.path.rglob("events/metadata/*.avro"), reverse=True)
        path = wrong.format(right=right, root=lake.path.as_uri())
        data = changed(manifests.read_bytes(), lambda row: row["data_file"].update(file_path=path))
        manifests.write_bytes(data)
        size = {"manifest_length": len(data)}
        lists.write_bytes(changed(lists.read_bytes(), lambda row: row.update(size)))
        report = lake.collector().plan()
        assert report.error is not None
        assert report.error["kind"] == "missing_object"
        assert lake.relative(right) in lake.files()


def changed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """An Avro file with its first row changed."""
    reader = fastavro.reader(BytesIO(data))
    found: list[Any] = list(reader)
    change(found[0])
    own = {name: text for name, text in reader.metadata.items() if "avro." not in name}
    out = BytesIO()
    fastavro.writer(out, json.loads(reader.metadata["avro.schema"]), found, metadata=own)
    return out.getvalue()


def check_damage(lake: Warehouse, needed: set[str], left: set[str]) -> None:
    try:
        repository = lake.open()
        if needed <= named_by(repository):
            return
    except EbbtideError as error:
        assert error.kind in KINDS, error
        return
    lake.age()
    report = lake.collector(repository=repository).plan()
    if report.error is None:
        assert candidates(report).keys() <= left, candidates(report).keys() - left
    else:
        assert report.error["kind"] in KINDS, report.error


RECORD_KINDS: Final = KINDS | {"commit_expired", "plan_corrupt", "run_not_found", "ref_not_found"}
"""A record that was altered may name another run, or another snapshot."""
UNREADABLE: Final = (b"", b"{", b"[]", b"null", b"\xff", DEEP.encode(), b'{"a": 1}', b'["a", 1]')


@randomized("damaged records of expiries")
def test_damaged_records_of_expiries(seed: int, tmp_path: Path) -> None:
    """An undo, an expiry and an explanation name the file, or do not need what is damaged."""
    rng = Random(seed)
    with closing(Warehouse(tmp_path)) as lake:
        table = lake.table("events", **{"history.expire.max-snapshot-age-ms": "0"})
        for number in range(3):
            table.append(rows(number))
        first, second, _ = table.metadata.snapshots
        table.manage_snapshots().create_tag(second.snapshot_id, "old", max_ref_age_ms=1).commit()
        own_list = lake.relative(first.manifest_list)
        lake.expire(request())
        [record] = (lake.path / RECORDS_PREFIX).rglob("*.json")
        before = record.read_bytes()
        explainer = Explainer(lake.open(), engine=lake.engine, grace=GRACE)
        expire: Callable[[], object] = lambda: lake.expire(request())  # noqa: E731
        acts: list[Callable[[], object]] = [
            lambda: explainer.explain(own_list),
            lambda: explainer.explain(str(first.snapshot_id)),
            lake.undo_expiry,
        ]
        for data in UNREADABLE:
            record.write_bytes(data)
            for act in [*acts, expire]:
                with pytest.raises(Refused, match=record.name) as refused:
                    act()
                assert refused.value.kind == "plan_corrupt"
        for _ in range(20):
            record.write_bytes(altered(rng, before))
            for act in acts:
                try:
                    act()
                except EbbtideError as error:
                    assert error.kind in RECORD_KINDS, error


@pytest.mark.parametrize("data", UNREADABLE)
def test_damaged_notes(tmp_path: Path, data: bytes) -> None:
    """The list of catalogs that sweeps have read, and the note of an unfinished expiry."""
    with closing(Warehouse(tmp_path)) as lake:
        lake.table("events").append(rows(1))
        for address in (CATALOGS_ADDRESS, f"{NOTES_PREFIX}aa.json"):
            place = lake.path / address
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            with pytest.raises(Refused, match=address) as refused:
                lake.expire(request())
            assert refused.value.kind == "plan_corrupt"
            place.unlink()


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """What Python allocates meanwhile is never more."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < limit, f"{most:,} bytes"


def zeros(mebibytes: int) -> Iterator[bytes]:
    for _ in range(mebibytes):
        yield bytes(1 << 20)


def packed(codec: str, pieces: Iterable[bytes]) -> bytes:
    """The pieces in a form that readers of Iceberg unpack."""
    if codec == "zstandard":
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd") as stream:
            for each in pieces:
                stream.write(each)
        return bytes(out.getvalue())
    packer = zlib.compressobj(9, wbits=31 if codec == "gzip" else -15)
    return b"".join([*map(packer.compress, pieces), packer.flush()])


ENCODER: Final[Any] = BinaryEncoder  # fastavro gives no types
LIST: Final[dict[str, Any]] = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
    ],
}


def avro(
    schema: Any, block: bytes, *, count: int = 1, codec: str = "null", size: int | None = None
) -> bytes:
    """A file with one block, which claims to have so many rows and bytes."""
    out = BytesIO(b"Obj\x01")
    out.seek(4)
    encoder = ENCODER(out)
    encoder.write_long(2)
    for name, value in (("avro.schema", json.dumps(schema)), ("avro.codec", codec)):
        encoder.write_utf8(name)
        encoder.write_utf8(value)
    encoder.write_long(0)
    out.write(bytes(16))
    encoder.write_long(count)
    encoder.write_long(len(block) if size is None else size)
    out.write(block + bytes(16))
    return out.getvalue()


COUNTED: Final = LIST | {
    "fields": [
        *LIST["fields"],
        {"name": "added_files_count", "type": "long", "field-id": 504},
        {"name": "existing_files_count", "type": "long", "field-id": 505},
    ]
}


def with_field(kind: Any) -> dict[str, Any]:
    return LIST | {"fields": [{"name": "more", "type": kind}, *LIST["fields"]]}


NESTED: Final = {
    "type": "record",
    "name": "deep",
    "fields": [{"name": "d", "type": ["null", "deep"]}],
}
HUGE: Final = b"\xfe" + b"\xff" * 7 + b"\x7f"
"""A number of Avro that is about 2**62."""
HOSTILE: Final[dict[str, Callable[[], bytes]]] = {
    "deflate": lambda: avro(LIST, packed("deflate", zeros(256)), codec="deflate"),
    "zstandard": lambda: avro(LIST, packed("zstandard", zeros(256)), codec="zstandard"),
    "another codec": lambda: avro(LIST, b"x", codec="brotli"),
    "rows": lambda: avro(LIST, b"", count=2**62),
    "rows without bytes": lambda: avro(LIST | {"fields": []}, b"", count=2**62),
    "bytes": lambda: avro(LIST, b"", size=2**62),
    "a negative size": lambda: avro(LIST, b"", size=-5),
    "a long text": lambda: avro(LIST, HUGE),
    "a list of nulls": lambda: avro(
        with_field({"type": "array", "items": "null"}), HUGE + bytes(9)
    ),
    "a list of empty records": lambda: avro(
        with_field({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}), HUGE
    ),
    "nested records": lambda: avro(with_field(NESTED), b"\x02" * 3_000_000),
    "a nested schema": lambda: avro(json.loads(DEEP[:400] + "]" * 400), b""),
    "counts": lambda: avro(COUNTED, b"\x02x\x02" + HUGE * 2),
    "no records": lambda: avro("string", b"\x02x"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [read_list, unnamed])
def test_hostile_lists_and_manifests(read: Callable[[bytes], Any], name: str) -> None:
    """Small files that would fill the memory or keep a reader busy. The bound is five times what a
    file may unpack to."""
    data = HOSTILE[name]()
    assert len(data) < 4 << 20
    with memory_below(5 * unpacked_max(len(data))), pytest.raises(DamagedMetadataError):
        read(data)


def test_hostile_metadata() -> None:
    """It is not unpacked beyond its bound. As many values as the bound allows take 23 times the
    bytes of their text."""
    bomb = packed("gzip", zeros(256))
    limit = unpacked_max(len(bomb))
    assert limit < 64 << 20
    with (
        memory_below(2 * limit + (1 << 20)),
        pytest.raises(DamagedMetadataError, match="unpacks to more than"),
    ):
        document_of(bomb)
    for text in (DEEP, '{"a":' * 100_000, "1" * 100_000, "[" + "[]," * (1 << 18) + "[]]"):
        for data in (text.encode(), gzip.compress(text.encode())):
            with memory_below(30 * len(text) + (36 << 20)), pytest.raises(DamagedMetadataError):
                document_of(data)


def test_packed_metadata_whose_bytes_are_others() -> None:
    document = {"a": "some text that is packed"}
    data = gzip.compress(json.dumps(document).encode())
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        try:
            assert document_of(bytes(changed)) == document
        except DamagedMetadataError:
            continue


def test_what_any_file_may_unpack_to() -> None:
    whole = gzip.compress(b'{"a": 1}' + b" " * (UNPACKED_BYTES_FREE - 8))
    assert document_of(whole) == {"a": 1}
    with pytest.raises(DamagedMetadataError, match="unpacks to more than 16,777,216 bytes"):
        document_of(gzip.compress(b'{"a": 1}' + b" " * (UNPACKED_BYTES_FREE - 7)))


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_codecs_of_writers(codec: str) -> None:
    out = BytesIO()
    encoder = ENCODER(out)
    for number in range(5_000):
        encoder.write_utf8(f"m{number}")
        encoder.write_long(number)
    block = out.getvalue() if codec == "null" else packed(codec, [out.getvalue()])
    found = read_list(avro(LIST, block, count=5_000, codec=codec))
    assert found == [ListedManifest(f"m{number}", number) for number in range(5_000)]
