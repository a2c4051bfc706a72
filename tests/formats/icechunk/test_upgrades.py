"""Repositories that Icechunk upgraded from version 1 to 2: what version 1 had to remember holds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zarr

from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.state import load_repo
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.storage import open_storage
from tests.support.clock import ManualClock
from tests.support.icechunk import (
    SPEC_VERSIONS,
    contents,
    create_repository,
    listing,
    open_repository,
    read_snapshot,
    upgrade,
)
from tests.support.icechunk_lake import GRACE, IcechunkLake, candidates

pytestmark = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="nothing can be upgraded here")

WEEK = timedelta(days=7)


class Lake(IcechunkLake):
    """A repository of version 1 with three commits on main, of which the branch `old` has the last;
    main is at the first of them. All files are old."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        repository = create_repository(path, 1)
        self.made = []
        for value in range(3):
            session = repository.writable_session("main")
            root = zarr.open_group(session.store, mode="a")
            root.require_array("values", shape=(4,), chunks=(1,), dtype="int32")[...] = value + 1
            self.made.append(session.commit(f"value {value}", metadata={"number": value}))
        repository.create_branch("old", self.made[-1])
        repository.reset_branch("main", self.made[0])
        self.age()
        self.clock = ManualClock(datetime.now(UTC))
        self.reads = {each: read_snapshot(repository, each) for each in self.made}

    def candidates(self) -> set[str]:
        """What a plan would take now, with sessions open."""
        report = self.collector(quiet=False).plan()
        assert report.state == "planned", report.error
        return set(candidates(report))

    def wait(self, time: timedelta) -> None:
        """Let time pass."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(time)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def delete_branch(lake: Lake) -> None:
    open_repository(lake.path).delete_branch("old")


def expire(lake: Lake) -> None:
    """Cut the branch down to its newest snapshot."""
    now = lake.format().now()
    request = ExpiryRequest.of(now=now, sessions=timedelta(0), rule={"keep_last": 1}, unsafe=True)
    _, expiry = lake.format(quiet=False).expire(request)
    assert expiry.released == {lake.made[1]}


@pytest.mark.parametrize("lets_go", [delete_branch, expire])
def test_what_was_let_go_before_stays_for_a_grace(
    lake: Lake, lets_go: Callable[[Lake], None]
) -> None:
    lets_go(lake)
    upgrade(lake.path)
    lake.age()
    assert lake.candidates() == set()
    lake.wait(GRACE - timedelta(minutes=1))
    assert lake.candidates() == set()
    lake.wait(timedelta(minutes=2))
    assert f"snapshots/{lake.made[1]}" in lake.candidates()


def test_what_plans_saw_before_counts(lake: Lake) -> None:
    delete_branch(lake)
    assert lake.candidates() == set()
    lake.wait(GRACE - timedelta(minutes=1))
    upgrade(lake.path)
    lake.age()
    assert lake.candidates() == set()
    lake.wait(timedelta(minutes=2))
    gone = {f"snapshots/{each}" for each in lake.made[1:]}
    assert gone <= lake.candidates()


def test_with_nobody_there_only_age_counts(lake: Lake) -> None:
    delete_branch(lake)
    upgrade(lake.path)
    lake.age()
    report = lake.collector(quiet=True).plan()
    assert {f"snapshots/{each}" for each in lake.made[1:]} <= candidates(report).keys()


def test_a_plan_of_before_takes_nothing_that_is_needed_now(lake: Lake) -> None:
    delete_branch(lake)
    planned = lake.collector().plan()
    assert f"snapshots/{lake.made[2]}" in candidates(planned)
    open_repository(lake.path).create_tag("back", lake.made[2])
    upgrade(lake.path)
    before = contents(lake.path)
    report = lake.collector().sweep(planned.run_id)
    assert report.state == "swept", report.error
    assert report.counts["deleted"].objects == 0
    assert contents(lake.path) == before


class TestUndoing:
    def swept(self, lake: Lake) -> str:
        """A run of version 1 that took what the branch had."""
        delete_branch(lake)
        report = lake.collect(quarantine=WEEK)
        assert report.state == "swept", report.error
        assert not {f"snapshots/{each}" for each in lake.made[1:]} & listing(lake.path).keys()
        return report.run_id

    def test_a_run_of_before(self, lake: Lake) -> None:
        """Files come back, and Icechunk knows the snapshots again."""
        before = listing(lake.path)
        run_id = self.swept(lake)
        upgrade(lake.path)
        report = lake.collector().undo(run_id)
        assert report.state == "undone", report.error
        assert report.quarantine is not None
        assert report.quarantine["reopened_commits"] == 2
        assert report.quarantine["closed_commits"] == 0
        back = {name for name in before if name.split("/")[0] not in ("refs", "config.yaml")}
        assert back <= listing(lake.path).keys()
        repository = open_repository(lake.path)
        assert {each: read_snapshot(repository, each) for each in lake.made} == lake.reads
        found = list(repository.ancestry(snapshot_id=lake.made[2]))
        assert [each.id for each in found] == [*reversed(lake.made), ROOT_ID]
        assert [each.message for each in found][:3] == ["value 2", "value 1", "value 0"]
        # It is held for a week.
        lake.age()
        lake.wait(WEEK - 2 * GRACE)
        assert lake.collect().state == "swept"
        repository = open_repository(lake.path)
        assert {each: read_snapshot(repository, each) for each in lake.made} == lake.reads

    def test_what_was_undone_before_is_held(self, lake: Lake) -> None:
        run_id = self.swept(lake)
        assert lake.collector().undo(run_id).state == "undone"
        upgrade(lake.path)
        lake.age()
        kept = {f"snapshots/{each}" for each in lake.made[1:]}
        lake.wait(WEEK - 2 * GRACE)
        assert lake.collect().state == "swept"
        assert kept <= listing(lake.path).keys()
        lake.wait(3 * GRACE)
        lake.collect()
        assert not kept & listing(lake.path).keys()

    def test_one_whose_parent_the_upgrade_did_not_take_over_stays_closed(self, lake: Lake) -> None:
        """It was out of reach, and in no list, as was what came of it."""
        repository = open_repository(lake.path)
        repository.create_tag("between", lake.made[1])
        run_id = self.swept_the_last(lake)
        repository = open_repository(lake.path)
        repository.delete_tag("between")
        upgrade(lake.path)
        report = lake.collector().undo(run_id)
        assert report.state == "undone", report.error
        assert report.quarantine is not None
        assert report.quarantine["closed_commits"] == 1
        assert f"snapshots/{lake.made[2]}" in listing(lake.path)
        assert lake.made[2] not in load_repo(open_storage(str(lake.path))).ids

    def swept_the_last(self, lake: Lake) -> str:
        delete_branch(lake)
        report = lake.collect(quarantine=WEEK)
        assert report.state == "swept", report.error
        return report.run_id
