"""The storage classes of candidates in plans and reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.costs import ClassFigures, StorageClasses, classes_of, tell_classes
from ebbtide.gc.parts import Count, PartRows, checked
from ebbtide.gc.report import RunReport
from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.ceph import STORAGE_CLASS
from tests.support.clock import ManualClock
from tests.support.versioned import connect
from tests.support.world import AT_ONCE, collector_of

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)
ROWS: Final = [
    ("a", 89, "GLACIER"),
    ("b", 90, "GLACIER"),
    ("c", 29, "Cool"),
    ("d", 30, "Cool"),
    ("e", 1, "STANDARD"),
    ("f", 1, None),
]


def found_in(rows: list[tuple[str, int, str | None]], *, tasks: int = 1) -> StorageClasses | None:
    """What tasks tell of candidates with these addresses, ages in days, and classes."""
    told = []
    for task in range(tasks):
        answer = PartRows()
        some = [
            {
                "address": address,
                "size_bytes": 10,
                "last_modified": NOW - timedelta(days=days),
                "kind": "object",
                "storage_class": name,
            }
            for address, days, name in rows[task::tasks]
        ]
        tell_classes(pa.Table.from_pylist(some, schema=CANDIDATE_SCHEMA), NOW, answer)
        told += checked(answer.rows).counts
    return classes_of(told, len(rows))


@pytest.mark.parametrize("tasks", [1, 4])
def test_young_and_archived_candidates_are_counted(tasks: int) -> None:
    found = found_in(ROWS, tasks=tasks)
    assert found is not None
    assert found == StorageClasses(
        5,
        6,
        (
            ClassFigures("Cool", Count(2, 20), Count(1, 10), Count(), 30),
            ClassFigures("GLACIER", Count(2, 20), Count(1, 10), Count(2, 20), 90),
            ClassFigures("STANDARD", Count(1, 10), Count(), Count(), 0),
        ),
    )
    assert StorageClasses.from_json(found.to_json()) == found
    assert found.to_json()["unknown"] == 1
    among = "of 6 candidates, of which 5 have a known class, "
    young_cool, young, archived = found.warnings
    assert young_cool.startswith(f"{among}1 (10 B) are in the storage class Cool")
    assert "minimum of 90 days" in young
    assert f"{among}2 (20 B) are archived (GLACIER)" in archived
    assert replace(found, found=()).warnings == ()
    whole = found_in(ROWS[:2])
    assert whole is not None and whole.warnings[0].startswith("of 2 candidates, 1 (10 B) are in")


def test_without_classes_nothing_is_told() -> None:
    assert found_in(ROWS[-1:]) is None
    assert found_in([]) is None


@pytest.fixture
def lake(s3_url: str, tmp_path: Path) -> Iterator[tuple[Store, Repository, str]]:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        url = f"{s3_url}/{new_id()}"
        lake = store.create_repository("lake", storage_url=url)
        lake.objects.put("main", "useless", b"useless")
        yield store, lake, url


def test_plan_and_report_have_the_classes(lake: tuple[Store, Repository, str]) -> None:
    store, made, url = lake
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = connect()
    keys = [
        each["Key"]
        for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/data/")["Contents"]
    ]
    for key in keys:
        client.copy_object(
            Bucket=bucket,
            Key=key,
            CopySource={"Bucket": bucket, "Key": key},
            StorageClass=STORAGE_CLASS,
            MetadataDirective="COPY",
        )
    made.commits.reset("main")
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(datetime.now(UTC) + timedelta(seconds=2) - clock.now)
    collector = collector_of(store, made)
    planned = collector.plan()
    assert planned.error is None
    classes = planned.storage_classes
    assert classes is not None
    assert classes["looked_at"] == classes["of"] == planned.counts["candidate"].objects
    cold = {each["name"]: each for each in classes["found"]}[STORAGE_CLASS]
    assert cold["count"]["objects"] == cold["early"]["objects"] == len(keys) == 1
    assert [each for each in planned.warnings if "minimum of 90 days" in each]
    swept = collector.sweep(planned.run_id)
    assert swept.state == "swept", swept.error
    assert swept.storage_classes == classes
    assert {each for each in planned.warnings if STORAGE_CLASS in each} <= set(swept.warnings)
    assert RunReport.from_json(swept.to_json()) == swept
