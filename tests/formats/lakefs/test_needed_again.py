"""Files that a client needs again after they went to quarantine, or that are not there at all."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from ebbtide.audit.verify import verify
from ebbtide.formats.lakefs.repository import LakefsRepository
from ebbtide.gc import deletes
from ebbtide.gc.candidates import exists
from ebbtide.gc.committed import HELD_SCHEMA
from ebbtide.gc.parts import read_rows
from ebbtide.gc.quarantines import Quarantines
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from tests.formats.lakefs.fake import Entry
from tests.formats.lakefs.world import DAY, LakefsWorld, old_commit, open_lakefs_world, play
from tests.support.dying import Died
from tests.support.randomized import randomized

OBJECTS = 6
WEEK = 7 * DAY


@pytest.fixture
def expired(world: LakefsWorld) -> str:
    return old_commit(world, OBJECTS)[0]


def lacks(world: LakefsWorld, branch: str) -> set[str]:
    return {each.address for each in world.state.view(branch).values()} - world.objects()


def in_quarantine(world: LakefsWorld) -> int:
    return sum("/quarantine/" in key for key in world.bucket.objects)


def run(world: LakefsWorld) -> RunReport:
    return world.collector(quarantine=WEEK).run()


def restored(report: RunReport) -> int:
    assert report.recovered is not None
    count: int = report.recovered["restored"]
    (incident,) = [each for each in report.incidents if "this run has restored" in each]
    assert report.warnings.count(incident) == 1
    assert len(report.recovered["restored_names"]) == count
    assert RunReport.from_json(report.to_json()) == report
    return count


@pytest.mark.parametrize("how", ["a run", "a purge"])
def test_a_quarantine_that_ends_gives_back_what_is_needed(
    world: LakefsWorld, expired: str, how: str
) -> None:
    swept = run(world)
    assert swept.counts["quarantined"].objects == OBJECTS
    if how == "a purge":
        world.state.branch("back", expired)
        report = world.collector().purge(swept.run_id)
        assert report.quarantine is not None
        assert report.quarantine["state"] == "purged"
    else:
        world.grow_old(8 * DAY)
        made = world.collector(quarantine=WEEK)
        plan = made.plan()
        world.state.branch("back", expired)  # the plan did not see it
        report = made.sweep(plan.run_id)
        assert report.state == "swept"
    assert restored(report) == OBJECTS
    assert not lacks(world, "back")
    assert not in_quarantine(world)
    assert run(world).recovered is None


def test_the_next_run_gives_back_what_is_needed(world: LakefsWorld, expired: str) -> None:
    """It does not wait for the end of the quarantine."""
    run(world)
    world.state.branch("back", expired)
    plan = world.collector().plan()
    addresses = {each.address for each in world.state.view("back").values()}
    (warning,) = [each for each in plan.warnings if "kept commits need" in each]
    assert all(each in warning for each in addresses)
    assert f"(commit {expired}, branch back)" in warning
    assert lacks(world, "back") == addresses
    report = run(world)
    assert restored(report) == OBJECTS
    assert not lacks(world, "back")
    assert in_quarantine(world) == OBJECTS  # the copies stay until the quarantine ends
    world.grow_old(8 * DAY)
    assert run(world).recovered is None
    assert not lacks(world, "back")
    assert not in_quarantine(world)


def test_what_is_needed_while_a_quarantine_ends_stays_there(
    world: LakefsWorld, expired: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look is right before a batch of final deletes."""
    run(world)
    world.grow_old(8 * DAY)
    needed = Quarantines.needed

    def late(*given: Any) -> Any:
        found = needed(*given)
        world.state.branch("back", expired)
        return found

    monkeypatch.setattr(Quarantines, "needed", late)
    report = run(world)
    assert report.state == "swept"
    (told,) = report.unfinished
    assert "was not ended" in told["message"]
    assert "changed meanwhile" in told["message"]
    assert in_quarantine(world) == OBJECTS
    monkeypatch.undo()
    assert restored(run(world)) == OBJECTS
    assert not lacks(world, "back")


def killed_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Within a batch, before its outcomes are on record."""
    remove, calls = deletes._remove, itertools.count(1)

    def then(*given: Any) -> Any:
        remove(*given)
        if next(calls) == batches:
            raise Died

    monkeypatch.setattr(deletes, "_remove", then)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_sweep_that_continues_says_revived_only_of_what_is_there(
    world: LakefsWorld,
    expired: str,
    batches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LakefsRepository, "batch_max", 2)
    collector = world.collector(quarantine=WEEK)
    run_id = collector.plan().run_id
    with monkeypatch.context() as during, pytest.raises(Died):
        killed_after(during, batches)
        collector.sweep(run_id)
    moved = in_quarantine(world)
    assert 0 < moved < OBJECTS
    world.state.branch("back", expired)
    world.clock.advance(DAY / 24)
    report = world.collector().sweep(run_id)
    assert report.state == "swept"
    assert restored(report) == moved
    assert not lacks(world, "back")
    assert verify(world.collector(), run_id).counts == {}
    # The killed process may only be suspended: the copies stay, and the runs tell it.
    world.grow_old(8 * DAY)
    later = run(world)
    assert any(f"undo lakefs:repo {run_id} --sweeps-ended" in each for each in later.warnings)
    assert in_quarantine(world) == moved
    assert not lacks(world, "back")


def test_a_needed_file_in_no_quarantine_is_missing_and_not_revived(
    world: LakefsWorld, expired: str
) -> None:
    collector = world.collector(quarantine=WEEK)
    run_id = collector.plan().run_id
    world.state.branch("back", expired)
    gone = world.state.view("back")["a0"].address
    world.state.storage.delete([gone])
    report = collector.sweep(run_id)
    counts = {name: report.counts[name].objects for name in ("revived", "missing")}
    assert counts == {"revived": OBJECTS - 1, "missing": 1}
    assert report.recovered is not None and report.recovered["lost_names"] == [gone]


def test_an_absent_file_is_told_by_each_run_until_it_is_back(world: LakefsWorld) -> None:
    entry = world.state.upload("main", "a", b"1")
    commit_id = world.state.commit("main")
    world.grow_old()
    data = world.state.storage.get(entry.address)
    world.state.storage.delete([entry.address])
    for _ in range(2):
        report = run(world)
        assert report.state == "swept"
        assert report.recovered is not None
        assert report.recovered["lost_names"] == [entry.address]
        plan = world.collector().plan()
        assert any(entry.address in each and commit_id in each for each in plan.warnings)
    world.state.storage.put(entry.address, data)
    assert run(world).recovered is None
    assert not [each for each in world.collector().plan().warnings if "need" in each]


def test_files_that_a_listing_leaves_out_are_not_looked_up(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imported objects, and objects in young partitions."""
    world.state.stage("main", "i", Entry("s3://other/x", 1, "e", is_full=True))
    world.state.commit("main")
    world.grow_old()
    world.state.upload("main", "young", b"y")
    world.state.commit("main")

    def unexpected(*_: Any) -> Any:
        raise AssertionError("a file is looked up")

    monkeypatch.setattr("ebbtide.gc.candidates.exists", unexpected)
    assert world.collector().plan().error is None


def test_a_file_that_was_written_after_the_listing_is_not_absent(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.grow_old()
    reading = LakefsRepository.reading

    def late(self: LakefsRepository, *given: Any) -> Any:
        partition, world.state.partition = world.state.partition, "0" * 20  # as an old one
        world.state.upload("main", "late", b"l")
        world.state.commit("main")
        world.state.partition = partition
        return reading(self, *given)

    monkeypatch.setattr(LakefsRepository, "reading", late)
    looked: list[str] = []

    def noted(storage: Any, addresses: list[str]) -> Any:
        looked.extend(addresses)
        return exists(storage, addresses)

    monkeypatch.setattr("ebbtide.gc.candidates.exists", noted)
    report = world.collector().plan()
    assert report.warnings == ()
    assert len(looked) == 1


@randomized("absent lakeFS objects")
def test_absent_files_of_random_repositories(seed: int) -> None:
    """A plan names exactly the needed files that are not there."""
    random = Random(seed)
    with open_lakefs_world() as world:
        play(world, random)
        world.grow_old()
        needed = {
            entry.address
            for each in world.state.branches.values()
            for entry in world.state.commits[each.head].entries.values()
        }
        gone = {each for each in sorted(world.objects()) if random.random() < 0.2}
        world.state.storage.delete(sorted(gone))
        collector = world.collector()
        run_id = collector.plan().run_id
        plan = collector.plan_of(run_id)
        folder = RunFolder.inside(world.state.storage, run_id)
        rows = read_rows(folder, plan.absent, HELD_SCHEMA).column("address").to_pylist()
        assert len(rows) == len(set(rows))
        assert needed & gone <= set(rows) <= gone
        assert (plan.absent_warning is None) == (not rows)
