"""The storage classes of candidates in plans and reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from ebbtide.gc.counts import Count
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.planning.classes import CandidateClasses, ClassFigures, look_at_classes
from ebbtide.gc.planning.subtract import CANDIDATE_SCHEMA
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage.classes import StorageClass
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.ceph import STORAGE_CLASS
from tests.support.clock import ManualClock
from tests.support.memory import Bucket, MemoryStorage
from tests.support.versioned import connect
from tests.support.world import AT_ONCE, collector_of

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)
OLD: Final = StorageClass("GLACIER", readable=False)
COOL: Final = StorageClass("Cool", readable=True)


@dataclass(frozen=True, slots=True)
class ColdStorage(MemoryStorage):
    """Objects whose class is the beginning of their names."""

    asked: list[str] = field(default_factory=list)

    @property
    def has_classes(self) -> bool:
        return True

    def classes(self, addresses: Any) -> list[StorageClass | None]:
        self.asked[:] = addresses
        names = {"glacier": OLD, "cool": COOL}
        return [names.get(each.partition("/")[0]) for each in addresses]


def parts_of(folder: RunFolder, *groups: list[tuple[str, int]]) -> list[Part]:
    """A part for each group of addresses with the ages of their files in days."""
    answer = PartRows()
    for number, rows in enumerate(groups):
        found = [
            {
                "address": address,
                "size_bytes": 10,
                "last_modified": NOW - timedelta(days=days),
                "kind": "object",
            }
            for address, days in rows
        ]
        table = pa.Table.from_pylist(found, schema=CANDIDATE_SCHEMA)
        answer.wrote(folder, f"candidates/{number:05d}.parquet", table, kind="object")
    return answer.parts()


def look(
    storage: MemoryStorage, parts: list[Part], looks_max: int, run_id: str = "run"
) -> CandidateClasses | None:
    options = RunOptions.of(Settings(class_looks=looks_max))
    folder = RunFolder(storage, f"{run_id}/")
    return look_at_classes(storage, folder, parts, options, now=NOW)


@pytest.fixture
def storage() -> ColdStorage:
    return ColdStorage("memory:cold", Bucket("cold", lambda: NOW), "")


def test_young_and_archived_candidates_are_counted(storage: ColdStorage) -> None:
    parts = parts_of(
        RunFolder(storage, "run/"),
        [("glacier/a", 89), ("glacier/b", 90), ("cool/a", 29)],
        [("cool/b", 30), ("other/a", 1)],
    )
    found = look(storage, parts, 100)
    assert found is not None
    assert found == CandidateClasses(
        5,
        5,
        1,
        (
            ClassFigures("Cool", Count(2, 20), Count(1, 10), Count(), 30),
            ClassFigures("GLACIER", Count(2, 20), Count(1, 10), Count(2, 20), 90),
        ),
    )
    assert CandidateClasses.from_json(found.to_json()) == found
    young_cool, young, archived = found.warnings
    assert young_cool.startswith("of 5 candidates, 1 (10 B) are in the storage class Cool")
    assert "minimum of 90 days" in young
    assert "2 (20 B) are archived (GLACIER)" in archived
    assert replace(found, found=()).warnings == ()


def test_a_choice_is_bounded_and_the_same_for_the_same_run(storage: ColdStorage) -> None:
    groups = [[(f"cool/{part}-{row}", 1) for row in range(7)] for part in range(40)]
    parts = parts_of(RunFolder(storage, "run/"), *groups)
    found = look(storage, parts, 12)
    assert found is not None
    assert (found.looked_at, found.of, found.unknown) == (12, 280, 0)
    first = list(storage.asked)
    assert len(set(first)) == 12
    look(storage, parts, 12)
    assert storage.asked == first
    other = parts_of(RunFolder(storage, "other/"), *groups)
    look(storage, other, 12, run_id="other")
    assert storage.asked != first
    assert "12 candidates that were looked at, out of 280" in found.warnings[0]


def test_nothing_is_asked_in_vain(storage: ColdStorage) -> None:
    parts = parts_of(RunFolder(storage, "run/"), [("cool/a", 1)])
    assert look(storage, parts, 0) is None
    assert look(storage, [], 5) is None
    assert look(MemoryStorage("memory:usual", storage.bucket, ""), parts, 5) is None


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
