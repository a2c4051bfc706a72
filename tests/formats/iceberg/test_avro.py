"""Lists and manifests whose fields have other names, another order, or are not there."""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random
from typing import Any

import fastavro
import pytest

from ebbtide.formats.iceberg.avro import ListedManifest, read_list, read_manifest
from ebbtide.formats.iceberg.metadata import DamagedMetadataError
from tests.formats.iceberg.warehouse import unnamed
from tests.support.randomized import randomized

OPTIONAL = ["null", "long"]
LIST = [(500, "string"), (501, "long"), (504, OPTIONAL), (505, OPTIONAL), (506, OPTIONAL)]
MANY = {"type": "array", "items": {"type": "record", "name": "kv", "fields": []}}
COUNTED = [{"name": "k", "type": "int"}, {"name": "v", "type": "bytes"}]


def record(name: str, fields: list[tuple[int, Any]]) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind, "field-id": number} for number, kind in fields]
    return {"type": "record", "name": name, "fields": named}


def written(schema: dict[str, Any], *rows: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, codec="deflate")
    return out.getvalue()


@randomized("orders of fields in Avro files")
def test_fields_are_found_by_their_ids(seed: int) -> None:
    rng = Random(seed)
    fields = [*LIST, (502, "int"), (503, "long"), (517, "int"), (519, ["null", "bytes"])]
    counts = rng.choice(((3, 4), (None, 4), (3, None)))
    counted = {"f504": counts[0], "f505": counts[1], "f506": 2}
    row = {"f500": "file:///a", "f501": 7, "f502": 3, "f503": 9, "f517": 1, **counted}
    data = written(record("list", rng.sample(fields, len(fields))), row, row)
    manifest = ListedManifest("file:///a", 7, 3, 1, 9, counts[0], counts[1], 2)
    assert read_list(data) == [manifest] * 2
    assert manifest.live == (7 if None not in counts else None)
    assert ListedManifest.of_claims("file:///a", manifest.claims) == manifest
    bounds = {**MANY, "items": {**MANY["items"], "fields": COUNTED}}  # type: ignore[dict-item]
    file = [(134, "int"), (100, "string"), (125, ["null", bounds]), (102, record("p", []))]
    entry = [(0, "int"), (1, OPTIONAL), (2, record("file", rng.sample(file, len(file))))]
    rows: list[dict[str, Any]] = [
        {
            "f0": status,
            "f1": rng.choice((None, place)),
            "f2": {
                "f134": 0,
                "f100": f"file:///{place}",
                "f125": rng.choice((None, [{"k": 1, "v": b"x" * place}] * rng.randrange(3))),
                "f102": {},
            },
        }
        for place, status in enumerate(rng.choices((0, 1, 2), k=5))
    ]
    found = unnamed(written(record("entry", rng.sample(entry, len(entry))), *rows))
    assert found == [(row["f0"], row["f1"], row["f2"]["f100"]) for row in rows]


@pytest.mark.parametrize(
    ("fields", "row", "told"),
    [
        ([*LIST, (519, "bytes")], {"f500": "a", "f501": 1, "f519": b"k"}, "encrypted"),
        (LIST, {"f500": "", "f501": 1}, "the manifest ''"),
        (LIST[1:], {"f501": 1}, "the manifest None"),
        (LIST[:1], {"f500": "a"}, "of None bytes"),
        ([(500, "bytes"), (501, "long")], {"f500": b"a", "f501": 1}, "the manifest b'a'"),
    ],
)
def test_a_row_that_does_not_name_its_manifest(
    fields: list[tuple[int, Any]], row: dict[str, Any], told: str
) -> None:
    with pytest.raises(DamagedMetadataError, match=told):
        read_list(written(record("list", fields), row))


@pytest.mark.parametrize(
    ("fields", "row", "told"),
    [
        ([(0, "int")], {"f0": 1}, "has the status 1"),
        ([(2, record("file", [(100, "string")]))], {"f2": {"f100": "a"}}, "the status None"),
        ([(0, "int"), (2, record("file", []))], {"f0": 1, "f2": {}}, "the file None"),
        ([(0, "int"), (2, "string")], {"f0": 1, "f2": "a"}, "cannot be read"),
        (
            [(0, "int"), (2, record("file", [(100, "string")]))],
            {"f0": 3, "f2": {"f100": "a"}},
            "the status 3",
        ),
        (
            [(0, "int"), (2, record("file", [(100, "string")]))],
            {"f0": 1, "f2": {"f100": ""}},
            "the file ''",
        ),
    ],
)
def test_an_entry_that_does_not_name_its_file(
    fields: list[tuple[int, Any]], row: dict[str, Any], told: str
) -> None:
    with pytest.raises(DamagedMetadataError, match=told):
        unnamed(written(record("entry", fields), row))


ADDED, TAKEN_OVER, REMOVED = 1, 0, 2
PLAIN = record("file", [(100, "string")])
TOLD = {"spec_id": 0, "content": 0, "added_by": 5, "added": 1, "existing": 1, "deleted": 1}
HEADER = {"partition-spec-id": "0", "content": "data", "format-version": "2", "schema": "{}"}


def manifest_of(header: dict[str, str], *entries: tuple[int, int | None]) -> bytes:
    """A manifest with entries of this status and snapshot."""
    out = io.BytesIO()
    schema = record("entry", [(0, "int"), (1, OPTIONAL), (2, PLAIN)])
    found = [{"f0": status, "f1": by, "f2": {"f100": "a"}} for status, by in entries]
    fastavro.writer(out, schema, found, metadata=header)
    return out.getvalue()


ENTRIES = ((ADDED, 5), (TAKEN_OVER, 3), (REMOVED, 5))


@pytest.mark.parametrize(
    ("header", "entries", "told"),
    [
        (HEADER | {"partition-spec-id": "1"}, ENTRIES, "partition-spec-id: it has 1, "),
        (HEADER | {"content": "deletes"}, ENTRIES, "content: it has deletes, "),
        (HEADER, ((ADDED, 6), *ENTRIES[1:]), "snapshot: it has 6, and its list says 5"),
        (HEADER, ((ADDED, 5), (ADDED, 5), *ENTRIES[2:]), "added files: it has 2, "),
        (HEADER, (*ENTRIES, (TAKEN_OVER, 5)), "existing files: it has 2, "),
    ],
)
def test_a_manifest_that_contradicts_its_list(
    header: dict[str, str], entries: tuple[tuple[int, int | None], ...], told: str
) -> None:
    """As one of another table does that was put in its place."""
    data = manifest_of(header, *entries)
    with pytest.raises(DamagedMetadataError, match=told):
        read_manifest(data, ListedManifest("a", len(data), **TOLD))
    assert len(unnamed(data)) == len(entries)


@pytest.mark.parametrize("lacking", [*TOLD, None])
def test_a_manifest_that_agrees_with_its_list(lacking: str | None) -> None:
    """Whatever one of the two leaves out. Entries that inherit their snapshot have none."""
    told = {key: value for key, value in TOLD.items() if key != lacking}
    for header in (HEADER, {}):
        data = manifest_of(header, (ADDED, None), *ENTRIES[1:])
        assert len(read_manifest(data, ListedManifest("a", len(data), **told))) == 3
    with pytest.raises(DamagedMetadataError, match="bytes: it has"):
        read_manifest(data, ListedManifest("a", len(data) + 1, **told))


def test_a_file_of_no_records() -> None:
    for read in (read_list, unnamed):
        for data in (b"", b"Obj\x01", written({"type": "long"}, 1)):  # type: ignore[arg-type]
            with pytest.raises(DamagedMetadataError, match="cannot be read"):
                read(data)


@randomized("sequence numbers in Avro files")
def test_a_manifest_of_other_entries_with_equal_counts_contradicts_its_list(seed: int) -> None:
    """The number of a manifest is that of the snapshot that added it. Of two writers, one counts
    deleted entries for the smallest number."""
    rng = Random(seed)
    schema = record("entry", [(0, "int"), (3, OPTIONAL), (2, record("file", [(100, "string")]))])

    def manifest(numbers: list[int | None]) -> bytes:
        rows = [
            {"f0": status, "f3": number, "f2": {"f100": f"file:///{place}"}}
            for place, (status, number) in enumerate(zip(statuses, numbers, strict=True))
        ]
        return written(schema, *rows)

    def listed(numbers: list[int | None], data: bytes) -> ListedManifest:
        own = [sequence if each is None else each for each in numbers]
        live = [each for each, status in zip(own, statuses, strict=True) if status != 2]
        oldest = min(rng.choice((own, live)) or own)
        return ListedManifest(
            "a",
            len(data),
            added=statuses.count(1),
            existing=statuses.count(0),
            sequence=sequence,
            oldest=oldest,
        )

    sequence, count = rng.randrange(5, 20), rng.randrange(1, 5)
    statuses = rng.choices((0, 0, 0, 1, 2), k=count)
    numbers = [
        None if status == 1 and rng.random() < 0.7 else rng.randrange(sequence + 1)
        for status in statuses
    ]
    data = manifest(numbers)
    assert len(read_manifest(data, listed(numbers, data))) == count
    others = [rng.randrange(1, sequence + 3) for _ in statuses]
    other = manifest([*others])
    claims = replace(listed(numbers, data), length=len(other))
    if 2 in statuses or (claims.oldest == min(others) and max(others) <= sequence):
        return
    with pytest.raises(DamagedMetadataError, match="sequence numbers"):
        read_manifest(other, claims)
