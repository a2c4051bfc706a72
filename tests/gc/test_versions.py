"""Runs on a bucket with versions: what they say, and which versions they delete."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.gc.collector import Collector
from ebbtide.gc.parts import Count
from ebbtide.gc.report import RunReport
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.dying import Died
from tests.support.faulty import SharedFaultyStorage
from tests.support.versioned import VersionedBucket
from tests.support.world import AT_ONCE, DAY, collector_of

USELESS: Final = 3


class Versioned:
    """A store whose repository is in a bucket with versions: one object in use, three of no use."""

    def __init__(self, directory: Path, bucket: VersionedBucket | None = None) -> None:
        self.bucket = bucket or VersionedBucket.made()
        self.clock = ManualClock(datetime.now(UTC))
        self.store = Store.init(directory, settings=AT_ONCE, clock=self.clock)
        self.lake: Repository = self.store.create_repository(
            "lake", storage_url=f"{self.bucket.url}/lake"
        )
        self.lake.objects.put("main", "kept", b"kept")
        self.lake.commits.commit("main", "kept")
        data = set(self.data())
        made = (NewObject(f"useless/{n}", b"useless") for n in range(USELESS))
        self.lake.objects.put_many("main", made)
        self.useless = set(self.data()) - data
        self.kept = data
        self.lake.commits.reset("main")
        # A neighbour of a candidate, which begins with its key.
        self.neighbour = f"{min(self.useless)}0"
        self.bucket.client.put_object(Bucket=self.bucket.name, Key=self.neighbour, Body=b"x")
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=self.neighbour)
        # All files are older than the clock then, however long this took.
        self.clock.advance(datetime.now(UTC) + timedelta(seconds=2) - self.clock.now)

    def data(self) -> dict[str, tuple[int, int]]:
        return self.bucket.left("lake/data/")

    def collector(self, **options: Any) -> Collector:
        return collector_of(self.store, self.lake, **options)

    def run(self, **options: Any) -> RunReport:
        report = self.collector(**options).run()
        assert report.state == "swept", report.error
        return report


@pytest.fixture
def world(s3_url: str, tmp_path: Path) -> Iterator[Versioned]:
    del s3_url
    made = Versioned(tmp_path / "store")
    with made.store:
        yield made


def test_plan_and_report_say_that_bytes_stay(world: Versioned) -> None:
    planned = world.collector().plan()
    assert planned.retained is not None and planned.retained["state"] == "versions"
    (warning,) = [each for each in planned.warnings if "--delete-versions" in each]
    swept = world.run()
    assert warning in swept.warnings and not swept.versions_deleted
    assert RunReport.from_json(swept.to_json()) == swept
    assert {world.data()[key] for key in world.useless} == {(1, 1)}


def test_versions_of_candidates_are_deleted(world: Versioned) -> None:
    report = world.run(delete_versions=True)
    assert report.versions_deleted
    assert not [each for each in report.warnings if "versions" in each]
    assert report.counts["deleted"].objects >= USELESS
    left = world.data()
    assert not left.keys() & world.useless
    assert left.keys() == world.kept | {world.neighbour}
    assert world.lake.objects.get("main", "kept") == b"kept"


def test_a_sweep_that_is_killed_before_its_versions_continues(world: Versioned) -> None:
    def kill(method: str, _address: str) -> None:
        if method == "delete_versions":
            raise Died

    collector = world.collector(delete_versions=True)
    run_id = collector.plan().run_id
    repository = collector._repository
    whole = repository.storage
    repository.storage = SharedFaultyStorage(whole, before=kill)  # type: ignore[misc]
    with pytest.raises(Died):
        collector.sweep(run_id)
    assert all(world.data()[key][0] == 1 for key in world.useless)
    again = world.collector(delete_versions=True).sweep(run_id)
    assert again.state == "swept", again.error
    assert not world.data().keys() & world.useless


def test_versions_go_at_the_end_of_a_quarantine(world: Versioned) -> None:
    report = world.run(delete_versions=True, quarantine=DAY)
    assert report.counts["quarantined"].objects >= USELESS
    assert world.data().keys() >= world.useless
    restored = min(world.useless).removeprefix("lake/")
    world.collector().undo(report.run_id, under=restored)
    assert world.lake.storage.get(restored) == b"useless"
    before = world.data()[f"lake/{restored}"]
    world.collector().purge(report.run_id)
    assert not world.bucket.left(f"lake/_ebbtide/gc/runs/{report.run_id}/quarantine/")
    assert world.data()[f"lake/{restored}"] == before
    assert world.data().keys() & world.useless == {f"lake/{restored}"}
    assert world.neighbour in world.data()


def test_locked_versions_are_counted_apart(s3_url: str, tmp_path: Path) -> None:
    """All kinds of files are tried, and a sweep after the end of the locks deletes the versions."""
    del s3_url
    world = Versioned(tmp_path / "store", VersionedBucket.with_lock(None))
    with world.store:
        world.bucket.hold("ON")
        world.bucket.lock_by_default("GOVERNANCE", Days=3)
        collector = world.collector(delete_versions=True)
        run_id = collector.plan().run_id
        locked = collector.sweep(run_id)
        assert locked.state == "incomplete" and locked.error is not None
        assert "mode GOVERNANCE for 3 days" in locked.error["message"]
        assert " 0 not tried" in locked.error["message"]
        assert locked.counts["locked"] == locked.counts["failed"] == locked.counts["candidate"]
        assert RunReport.from_json(locked.to_json()) == locked
        assert any("has object lock" in each for each in locked.warnings)
        assert {world.data()[key] for key in world.useless} == {(1, 1)}
        again = collector.sweep(run_id)
        assert again.counts["locked"] == locked.counts["locked"] != Count(), "they count once"
        assert again.counts["failed"] == locked.counts["failed"]
        world.bucket.hold("OFF")
        swept = world.collector(delete_versions=True).sweep(run_id)
        assert swept.state == "swept", swept.error
        assert swept.counts["locked"].objects == swept.counts["failed"].objects == 0
        assert not world.data().keys() & world.useless


def test_azure_is_refused(azure_url: str, tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", settings=AT_ONCE) as store:
        lake = store.create_repository("lake", storage_url=f"{azure_url}/versions")
        with pytest.raises(InvalidInput, match="only those of S3"):
            collector_of(store, lake, delete_versions=True).plan()
        assert lake.storage.retained().state == "unknown"
