"""Inventories that were made elsewhere, in place of a listing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import InvalidInput, Refused
from ebbtide.gc.inventory_report import (
    InventoryFile,
    InventoryReport,
    open_inventory,
    read_inventory,
)
from ebbtide.gc.parts import Answers, read_rows
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import INVENTORY_SCHEMA
from ebbtide.ids import new_id
from ebbtide.storage import LISTING_SCHEMA, LocalStorage, Storage, open_storage
from tests.support.engines import INLINE
from tests.support.histories import PlannedWorld, kept_contents
from tests.support.refusals import check_refused, nothing_deleted
from tests.support.world import START, World

DATE = START - timedelta(hours=2)


def listed(storage: Storage) -> pa.Table:
    return pa.Table.from_batches(list(storage.list()), schema=LISTING_SCHEMA)


def own_form(table: pa.Table) -> pa.Table:
    """Rows of a listing as our own form of inventories has them."""
    return table.drop_columns(["regular"])


def s3_form(table: pa.Table, *, bucket: str = "lake", prefix: str = "") -> pa.Table:
    rows = table.num_rows
    return pa.table(
        {
            "bucket": pa.repeat(pa.scalar(bucket), rows),
            "key": pa.array([prefix + address for address in texts(table.column("address"))]),
            "size": table.column("size_bytes"),
            "last_modified_date": table.column("last_modified").cast(
                pa.timestamp("ms", "UTC"), safe=False
            ),
            "storage_class": pa.repeat(pa.scalar("STANDARD"), rows),
        }
    )


def write(table: pa.Table, *places: Path) -> None:
    size = -(-table.num_rows // len(places))
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(number * size, size), place)


def manifest(place: Path, files: Iterable[Path], /, **more: Any) -> Path:
    content = {
        "sourceBucket": "lake",
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str(int(DATE.timestamp() * 1000)),
        "fileFormat": "Parquet",
        "fileSchema": "message s3.inventory { … }",
        "files": [
            {
                "key": f"some/prefix/lake/daily/data/{file.name}",
                "size": file.stat().st_size,
                "MD5checksum": hashlib.md5(file.read_bytes()).hexdigest(),
            }
            for file in files
        ],
    } | more
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(content))
    checksum = hashlib.md5(place.read_bytes()).hexdigest()
    place.with_suffix(".checksum").write_text(f"{checksum}\n")
    return place


def rows_of(planned: World, report: RunReport) -> set[tuple[str, str]]:
    plan = planned.collector().plan_of(report.run_id)
    found = read_rows(RunFolder.at(report.run_path), plan.candidates, INVENTORY_SCHEMA)
    return set(zip(texts(found.column("address")), texts(found.column("kind")), strict=True))


@pytest.fixture
def inventory(planned: PlannedWorld, tmp_path: Path) -> Path:
    place = tmp_path / "inventory"
    files = [place / f"{number}.parquet" for number in range(3)]
    write(s3_form(listed(LocalStorage(str(planned.root)))), *files)
    return place


def by(planned: World, place: Path | str, date: datetime | None = DATE, **more: Any) -> Any:
    return planned.collector(inventory=str(place), inventory_date=date, **more)


def test_plan_is_that_of_a_listing(planned: PlannedWorld, tmp_path: Path) -> None:
    expected = rows_of(planned, planned.collector().plan())
    for form, files in product((own_form, s3_form), (1, 4)):
        folder = tmp_path / f"{form.__name__}-{files}"
        places = [folder / f"deep/{number}.parquet" for number in range(files)]
        write(form(listed(LocalStorage(str(planned.root)))), *places)
        report = by(planned, places[0] if files == 1 else folder).plan()
        assert report.state == "planned"
        assert report.inventory_url is not None
        assert rows_of(planned, report) == expected


def test_what_came_later_is_unknown_and_stays(planned: PlannedWorld, inventory: Path) -> None:
    planned.lake.objects.put("main", "later", b"later")
    planned.lake.objects.delete("main", "later")
    report = by(planned, inventory).run()
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert kept_contents(planned, planned.history) == planned.template.contents
    assert b"later" in {(planned.root / each).read_bytes() for each in planned.files()}
    assert planned.collector().run().counts["deleted"].objects == 1


def test_what_is_listed_and_newer_than_the_inventory_stays(
    planned: PlannedWorld, tmp_path: Path
) -> None:
    """S3 writes down what comes while it looks."""
    table = listed(LocalStorage(str(planned.root)))
    dates = pa.array([DATE + timedelta(minutes=5)] * table.num_rows, pa.timestamp("us", "UTC"))
    place = tmp_path / "inventory.parquet"
    write(own_form(table).set_column(2, "last_modified", dates), place)
    report = by(planned, place).plan()
    assert report.counts["candidate"].objects == 0
    assert report.counts["young"].objects > 5


def test_what_went_or_changed_since(planned: PlannedWorld, inventory: Path) -> None:
    names = sorted(address for address, kind in rows_of(planned, planned.collector().plan()))
    objects = [each for each in names if each.startswith("data/") and "#" not in each]
    gone, changed, resized = objects[:3]
    (planned.root / gone).unlink()
    file = planned.root / changed
    os.utime(file, (0, file.stat().st_mtime + 5))
    file = planned.root / resized
    times = file.stat().st_mtime
    file.write_bytes(b"another object")
    os.utime(file, (0, times))
    report = by(planned, inventory).run()
    assert report.state == "swept"
    assert report.counts["missing"].objects == 1
    assert report.counts["revived"].objects == 2
    left = {changed, resized}
    assert {each for each in names if (planned.root / each).exists()} == left
    assert report.counts["deleted"].objects == len(names) - 3


def test_no_incremental_run_goes_on_from_one(planned: PlannedWorld, inventory: Path) -> None:
    assert by(planned, inventory, mode="auto").run().mode == "clean"
    report = planned.collector(mode="auto").run()
    assert (report.state, report.mode) == ("swept", "clean")
    assert "used an inventory" in str(report.mode_reason)


def test_manifest(planned: PlannedWorld, inventory: Path, tmp_path: Path) -> None:
    """As `aws s3 sync` leaves it on a disk; an older inventory's files lie beside."""
    data = tmp_path / "daily" / "data"
    data.mkdir(parents=True)
    files = [file.rename(data / file.name) for file in inventory.iterdir()]
    write(s3_form(listed(LocalStorage(str(planned.root))).slice(0, 1)), data / "older.parquet")
    place = manifest(tmp_path / "daily" / "2027-01-01T01-00Z" / "manifest.json", files)
    given = open_inventory(str(place), None)
    assert given.date == DATE
    place.with_suffix(".checksum").unlink()
    assert open_inventory(str(place), None) == given  # a manifest that was copied alone
    folder = RunFolder(LocalStorage(str(tmp_path)), "run/")
    anywhere = replace(given, bucket=None)
    found = read_inventory(INLINE, planned.format(), folder, anywhere)
    assert counted(found) == listed(LocalStorage(str(planned.root))).num_rows
    whole = files[0].read_bytes()
    for content, says in (
        (whole[:-1] + b"\0", "checksum is not the one in the manifest"),
        (whole[:-1], "size is not the one in the manifest"),
        (None, files[0].name),
    ):
        files[0].unlink() if content is None else files[0].write_bytes(content)
        with pytest.raises(Refused, match=says):
            read_inventory(INLINE, planned.format(), folder, anywhere)
    # A directory is no bucket.
    with nothing_deleted(planned):
        check_refused(by(planned, place, None).plan(), "inventory_foreign", "bucket lake")


class _Bucketed:
    """The planned world's repository as if it lay in a bucket."""

    def __init__(self, planned: PlannedWorld, prefix: str) -> None:
        self.storage = open_storage(f"s3://lake/{prefix}")
        self.layout = planned.format().layout
        self.landmark = planned.format().landmark


def counted(found: Answers) -> int:
    return sum(each.count.objects for each in found.counts)


def _read(
    planned: PlannedWorld, table: pa.Table, tmp_path: Path, *, prefix: str = "deep/root"
) -> Answers:
    write(table, tmp_path / "bucket.parquet")
    given = InventoryReport(
        "inventory", DATE, LocalStorage(str(tmp_path)), (InventoryFile("bucket.parquet"),)
    )
    repository: Any = _Bucketed(planned, prefix)
    return read_inventory(INLINE, repository, RunFolder(LocalStorage(str(tmp_path)), "run/"), given)


def test_a_prefix_is_taken_as_it_is_spelled(planned: PlannedWorld, tmp_path: Path) -> None:
    table = listed(LocalStorage(str(planned.root)))
    for prefix in ("deep%20root", "deep root", "50%/é"):
        found = _read(planned, s3_form(table, prefix=f"{prefix}/"), tmp_path, prefix=prefix)
        assert counted(found) == table.num_rows


def test_the_name_of_an_inventory_in_a_bucket_is_taken_as_it_is_spelled(s3_url: str) -> None:
    storage = open_storage(f"{s3_url}/{new_id()}%20x")
    for name in ("a%20b.parquet", "a%20b.json"):
        storage.put(name, b"no inventory")
    given = open_inventory(f"{storage.url}/a%20b.parquet", DATE)
    assert given.storage.get(given.files[0].name) == b"no inventory"
    with pytest.raises(InvalidInput, match="no manifest"):
        open_inventory(f"{storage.url}/a%20b.json", None)


def test_bucket_with_versions_and_other_prefixes(planned: PlannedWorld, tmp_path: Path) -> None:
    table = listed(LocalStorage(str(planned.root)))
    inside = s3_form(table, prefix="deep/root/")
    marked = inside.set_column(2, "size", pa.nulls(table.num_rows, pa.int64()))
    parts = []
    for rows, latest, marker in (
        (inside, True, False),
        (s3_form(table, prefix="deep/rooted/"), None, None),
        (inside, False, False),
        (marked, True, True),
    ):
        for name, value in (("is_latest", latest), ("is_delete_marker", marker)):
            rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.bool_()))
        parts.append(rows)
    answers = _read(planned, pa.concat_tables(parts), tmp_path)
    folder = RunFolder(LocalStorage(str(tmp_path)), "run/")
    found = texts(read_rows(folder, answers.parts, INVENTORY_SCHEMA).column("address"))
    assert {*found, planned.format().landmark} >= {
        each for each in texts(table.column("address")) if not each.startswith("_ebbtide/gc")
    }
    assert counted(answers) == table.num_rows
    with pytest.raises(Refused) as caught:
        _read(planned, s3_form(table, bucket="other", prefix="deep/root/"), tmp_path)
    assert caught.value.kind == "inventory_foreign"
    assert "other" in caught.value.message


def test_inventory_of_something_else(planned: PlannedWorld, tmp_path: Path) -> None:
    whole = own_form(listed(LocalStorage(str(planned.root))))
    is_data = [each.startswith("data/") for each in texts(whole.column("address"))]
    for table, says in (
        (whole.filter(pa.array(is_data)), "nowhere"),
        (pa.concat_tables([whole, whole]), "more than once"),
        (whole.slice(0, 0), "nowhere"),
    ):
        write(table, tmp_path / "inventory.parquet")
        with nothing_deleted(planned):
            report = by(planned, tmp_path / "inventory.parquet").run()
        check_refused(report, "inventory_foreign", says)


def not_text(keys: pa.ChunkedArray[Any]) -> pa.StringArray:
    """The same keys, of which the last byte of the last is not UTF-8."""
    whole = pa.concat_arrays(keys.chunks)
    _, offsets, data = whole.buffers()
    assert offsets is not None and data is not None
    spoiled = data.to_pybytes()[:-1] + b"\xff"
    return pa.StringArray.from_buffers(len(whole), offsets, pa.py_buffer(spoiled))


def test_files_that_cannot_be_read(planned: PlannedWorld, inventory: Path) -> None:
    file = inventory / "0.parquet"
    data, table = file.read_bytes(), pq.read_table(file)
    dates = table.column("last_modified_date").cast(pa.string())
    for spoiled in (
        None,
        table.drop_columns(["last_modified_date"]),
        table.set_column(3, "last_modified_date", dates),
        table.set_column(2, "size", pa.nulls(table.num_rows, pa.int64())),
        table.set_column(1, "key", not_text(table.column("key"))),
    ):
        if spoiled is None:
            file.write_bytes(data[:-100])
        else:
            write(spoiled, file)
        with nothing_deleted(planned):
            check_refused(by(planned, inventory).run(), "inventory_corrupt", "0.parquet")
    file.write_bytes(data)
    with pytest.raises(InvalidInput, match="leave out"):
        by(planned, inventory, mode="incremental").plan()
    with pytest.raises(InvalidInput, match="needs an inventory"):
        planned.collector(inventory_date=DATE).plan()


PLACES: list[tuple[str, datetime | None, str]] = [
    ("nowhere.parquet", DATE, "no file"),
    ("inventory", None, "give its date"),
    ("inventory", DATE.replace(tzinfo=None), "no zone"),
    ("inventory", START + timedelta(minutes=1), "in the future"),
    ("empty", DATE, "no Parquet file"),
    ("text.json", None, "no manifest"),
    ("csv.json", None, "configure S3 to write it in Parquet"),
    ("good.json", DATE + timedelta(1), "leave out the date"),
    ("good.json", datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), "years 1 to"),
    ("empty.json", None, "names no files"),
    ("twice.json", None, "one twice"),
    ("changed.json", None, "not the MD5 checksum"),
]


def test_places_and_dates(planned: PlannedWorld, inventory: Path, tmp_path: Path) -> None:
    files = sorted(inventory.iterdir())
    (tmp_path / "text.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    manifest(tmp_path / "csv.json", files, fileFormat="CSV")
    manifest(tmp_path / "good.json", files)
    manifest(tmp_path / "empty.json", [])
    manifest(tmp_path / "twice.json", files + files[:1])
    changed = manifest(tmp_path / "changed.json", files)
    changed.write_text(changed.read_text().replace("1.parquet", "0.parquet"))
    with nothing_deleted(planned):
        for place, date, says in PLACES:
            with pytest.raises(InvalidInput, match=says) as caught:
                by(planned, tmp_path / place, date).run()
            assert caught.value.kind == "invalid_inventory"
