"""Runs over the repository of a fake lakeFS server: what goes, stays, and is needed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ebbtide.arrow import Column
from ebbtide.audit.verify import verify
from ebbtide.errors import InvalidInput
from ebbtide.formats.capabilities import forget
from ebbtide.formats.lakefs.needed import REASON, LakefsGuard
from ebbtide.formats.lakefs.repository import LakefsRepository
from ebbtide.formats.lakefs.server import AnsweredRules
from ebbtide.formats.notes import POLICY_ADDRESS
from ebbtide.gc import deletes, sweep
from ebbtide.gc.engines.base import Engine
from tests.formats.lakefs.fake import Entry, State, needed
from tests.formats.lakefs.oracle import KnownCommit, active
from tests.formats.lakefs.world import (
    DAY,
    LakefsWorld,
    old_commit,
    on_disk,
    open_lakefs_world,
    play,
)
from tests.support.engines import INLINE, on_engines
from tests.support.icechunk_lake import candidates, planned_rows
from tests.support.randomized import randomized
from tests.support.refusals import check_refused

RULE = 7 * DAY


def test_what_only_an_expired_commit_has_goes(world: LakefsWorld) -> None:
    """An undo brings it back, and holds it."""
    _, entry = old_commit(world)
    report = world.collector(quarantine=7 * DAY).plan()
    assert report.error is None
    assert set(candidates(report)) == {entry.address}
    swept = world.collector(quarantine=7 * DAY).sweep(report.run_id)
    assert (swept.state, swept.counts["quarantined"].objects) == ("swept", 1)
    assert entry.address not in world.objects()
    assert verify(world.collector(), swept.run_id).counts == {}
    assert world.collector().undo(swept.run_id).state == "undone"
    assert entry.address in world.objects()
    assert not candidates(world.collector().plan())


def test_a_damaged_metarange_of_an_expired_commit_is_not_read(world: LakefsWorld) -> None:
    """That of a commit that stays refuses the run."""
    commit_id, entry = old_commit(world)
    for name, planned in ((commit_id, {entry.address}), (world.state.branches["main"].head, None)):
        world.state.storage.put(f"_lakefs/{world.state.commits[name].metarange_id}", b"damaged")
        report = world.collector().plan()
        if planned is None:
            check_refused(report, "corrupt_tree")
        else:
            assert set(candidates(report)) == planned
            assert world.collector().sweep(report.run_id).state == "swept"


def test_every_run_is_clean(world: LakefsWorld) -> None:
    """Also one that is to continue. A summary lies where tools of lakeFS look."""
    old_commit(world)
    report = world.collector().run()
    assert report.state == "swept"
    address = f"_lakefs/retention/gc/unified/{report.run_id}/summary.json"
    summary = json.loads(world.state.storage.get(address))
    assert (summary["run_id"], summary["success"]) == (report.run_id, True)
    assert summary["num_deleted_objects"] == 1
    again = world.collector(mode="incremental").run()
    assert (again.state, again.mode) == ("swept", "clean")


def test_tags_keep_their_data_unless_a_policy_says_otherwise(world: LakefsWorld) -> None:
    commit_id, entry = old_commit(world)
    world.state.tags["v1"] = commit_id
    assert not candidates(world.collector().plan())
    policy = {"default": "7d", "tags": {"keep_within": "1d"}}
    world.state.storage.put(POLICY_ADDRESS, json.dumps(policy).encode())
    assert set(candidates(world.collector().plan())) == {entry.address}


@pytest.mark.parametrize("count", [1, 40])
def test_what_is_staged_with_the_bytes_that_its_path_has_stays(
    world: LakefsWorld, count: int
) -> None:
    """The server does not name it as uncommitted. Of many such paths the whole branch is listed."""
    paths = [f"f{number:02}" for number in range(count)]
    for path in paths:
        world.state.upload("main", path, b"same")
    world.state.commit("main")
    again = [world.state.upload("main", path, b"same") for path in paths]
    assert world.state.uncommitted() == []
    assert world.state.view("main") == dict(zip(paths, again, strict=True))
    usage = world.collector().usage()
    (held,) = [each for each in usage.holders if each.holder.name == REASON]
    assert (held.in_all.objects, usage.young.objects) == (count, 0), "a young one is read too"
    world.grow_old()
    assert not candidates(world.collector().plan())


def test_what_is_committed_while_a_run_reads_is_in_one_of_its_lists(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes first, it is then uncommitted or committed."""
    entry = world.state.upload("main", "a", b"1")
    world.grow_old()
    asked: list[str] = []
    for name in ("uncommitted", "dump"):
        original = getattr(State, name)

        def then(state: State, name: str = name, original: Any = original) -> Any:
            if len(asked) == 1:
                world.state.commit("main")
            asked.append(name)
            return original(state)

        monkeypatch.setattr(State, name, then)
    report = world.collector().plan()
    assert report.error is None
    assert entry.address not in candidates(report)


def test_what_is_no_object_of_the_repository_is_never_a_candidate(world: LakefsWorld) -> None:
    world.state.stage("main", "i", Entry("s3://other/x", 1, "e", is_full=True))
    world.state.commit("main")
    for address in ("linked/x", "_lakefs/unknown", "data", "dummy"):
        world.state.storage.put(address, b"x")
    world.grow_old()
    assert not candidates(world.collector().plan())


def test_without_rules_that_can_be_meant_nothing_goes(world: LakefsWorld) -> None:
    old_commit(world)
    world.state.rules = None
    check_refused(world.collector().plan(), "policy_not_found")
    world.state.rules = AnsweredRules(7, {"main": -1})
    with pytest.raises(InvalidInput, match="'main' has negative days"):
        world.collector().plan()


def test_while_lakefs_collects_nothing_goes(world: LakefsWorld) -> None:
    old_commit(world)
    folder = "_lakefs/retention/gc/unified/run1"
    world.state.storage.put(f"{folder}/deleted/part.parquet", b"x")
    check_refused(world.collector().plan(), "run_in_progress")
    world.clock.advance(timedelta(days=-2))
    assert world.collector().plan().error is None, "its files are of the future: nobody writes now"
    world.clock.advance(timedelta(days=2))
    world.state.storage.put(f"{folder}/summary.json", b"{}")
    assert world.collector().plan().error is None


def _commit_entry(world: LakefsWorld, entry: Entry) -> None:
    world.state.stage("main", "b", entry)
    world.state.commit("main")


AGAIN: dict[str, Callable[[LakefsWorld, str, Entry], object]] = {
    "branch": lambda world, commit_id, _: world.state.branch("again", commit_id),
    "tag": lambda world, commit_id, _: world.state.tags.update(again=commit_id),
    "hard reset": lambda world, commit_id, _: world.state.reset("main", commit_id),
    "merge": lambda world, commit_id, _: world.state.merge("main", commit_id),
    "revert": lambda world, _, __: world.state.revert("main", world.state.branches["main"].head),
    "staged by its address": lambda world, _, entry: world.state.stage("main", "b", entry),
    "committed by its address": lambda world, _, entry: _commit_entry(world, entry),
}
"""The moves by which the data of an expired commit is read again."""


AGAIN_AT_ONCE = [each for each in AGAIN if each != "staged by its address"]


@pytest.mark.parametrize("move", AGAIN)
def test_what_is_needed_again_after_the_plan_stays(world: LakefsWorld, move: str) -> None:
    commit_id, entry = old_commit(world)
    report = world.collector().plan()
    assert set(candidates(report)) == {entry.address}
    AGAIN[move](world, commit_id, entry)
    swept = world.collector().sweep(report.run_id)
    assert (swept.state, swept.counts["revived"].objects) == ("swept", 1)
    assert entry.address in world.objects()


def before_the_deletes(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """A sweep does this between its re-check and its first batch."""

    def late(*given: Any) -> None:
        forget(*given)
        action()

    monkeypatch.setattr("ebbtide.gc.sweep.forget", late)


@pytest.mark.parametrize("move", AGAIN_AT_ONCE)
def test_what_is_needed_again_during_the_deletes_leaves_its_batch(
    world: LakefsWorld, move: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look is right before a batch. The others of the batch go."""
    commit_id, entry = old_commit(world)
    orphan = world.state.upload("main", "overwritten", b"o").address
    world.state.upload("main", "overwritten", b"p")
    world.clock.advance(2 * DAY)
    report = world.collector().plan()
    assert set(candidates(report)) == {entry.address, orphan}
    collector = world.collector()
    before_the_deletes(monkeypatch, lambda: AGAIN[move](world, commit_id, entry))
    swept = collector.sweep(report.run_id)
    assert (swept.state, swept.counts["revived"].objects) == ("swept", 1)
    assert entry.address in world.objects()
    assert orphan not in world.objects()


@pytest.mark.parametrize("move", AGAIN_AT_ONCE)
def test_what_is_needed_again_once_it_is_gone_is_told(
    world: LakefsWorld, move: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can prevent it. An undo brings it back."""
    commit_id, entry = old_commit(world)
    collector = world.collector(quarantine=7 * DAY)
    run_id = collector.plan().run_id
    original = deletes.delete_parts

    def then(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        AGAIN[move](world, commit_id, entry)
        return found

    monkeypatch.setattr(sweep, "delete_parts", then)
    swept = collector.sweep(run_id)
    assert swept.state == "incomplete"
    for told in (f"needs {entry.address}, which is gone", f"ebbtide gc undo lakefs:repo {run_id}"):
        assert told in str(swept.error)
    assert world.collector().undo(run_id).state == "undone"
    assert entry.address in world.objects()


def test_work_that_needs_nothing_that_goes_does_not_stop_a_sweep(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of new objects, and of what was staged long ago."""
    world.state.branch("waits", "main")
    staged = world.state.upload("waits", "waiting", b"w")
    _, entry = old_commit(world)
    report = world.collector().plan()
    collector = world.collector()

    def late() -> None:
        world.state.upload("main", "fresh", b"f")
        for branch in ("main", "waits"):
            world.state.commit(branch)

    before_the_deletes(monkeypatch, late)
    assert collector.sweep(report.run_id).state == "swept"
    assert entry.address not in world.objects()
    assert staged.address in world.objects()


def test_the_refs_are_looked_at_before_each_small_batch(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LakefsRepository.batch_max == 5_000
    monkeypatch.setattr(LakefsRepository, "batch_max", 2)
    for number in range(5):
        old_commit(world)
        world.state.upload("main", f"more {number}", b"m")
    looked: list[int] = []
    look = LakefsGuard.__call__

    def counted(guard: LakefsGuard, addresses: Column) -> Mapping[str, str]:
        looked.append(len(addresses))
        return look(guard, addresses)

    monkeypatch.setattr(LakefsGuard, "__call__", counted)
    report = world.collector().run()
    assert report.counts["deleted"].objects == sum(looked) >= 5
    assert max(looked) == 2


@randomized("lakeFS repositories")
def test_random_repositories(seed: int) -> None:
    """What goes is exactly what the definition says."""
    random = Random(seed)
    with open_lakefs_world() as world:
        play(world, random)
        before = world.objects()
        state = world.state
        commits = {k: KnownCommit(each.parents, each.created) for k, each in state.commits.items()}
        heads = [each.head for each in state.branches.values()]
        kept = active(commits, heads, state.tags.values(), now=world.clock.now, days=RULE)
        stays = needed(state, kept)
        cutoff = world.clock.now - timedelta(hours=25)
        young = {
            key.removeprefix("repo/")
            for key, stored in world.bucket.objects.items()
            if stored.modified >= cutoff
        }
        report = world.collector().plan()
        assert report.error is None
        assert set(candidates(report)) == before - stays - young
        assert world.collector().sweep(report.run_id).state == "swept"
        assert stays & before <= world.objects()
        for branch in world.state.branches:
            assert {each.address for each in world.state.view(branch).values()} <= world.objects()


@on_engines("spark", "joins")
@randomized("lakeFS repositories on Spark")
def test_spark_plans_the_same_rows(tmp_path: Path, engine: Engine, seed: int) -> None:
    with open_lakefs_world() as world:
        play(world, Random(seed))
        expected = set(candidates(world.collector().plan()))
        repository = on_disk(world, tmp_path / "lake")
        found = [
            planned_rows(world.collector(repository, engine=each).plan())
            for each in (engine, INLINE)
        ]
        assert found[0] == found[1]
        assert {row["address"] for row in found[0]} == expected


def test_partitions_of_the_last_day_are_not_listed(world: LakefsWorld) -> None:
    world.state.upload("main", "a", b"1")
    world.grow_old()
    world.state.upload("main", "a", b"2")
    plan = world.collector().plan_of(world.collector().plan().run_id)
    assert (plan.young_slices, plan.counts["listed"].objects) == (1, 1)
