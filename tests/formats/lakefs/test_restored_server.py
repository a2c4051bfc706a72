"""The database of a lakeFS server is an older copy: a restored backup, or a test server's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebbtide.gc.report import RunReport
from tests.formats.lakefs.fake import Entry
from tests.formats.lakefs.world import LakefsWorld, open_lakefs_world
from tests.support.refusals import check_refused


@pytest.fixture
def world() -> Iterator[LakefsWorld]:
    with open_lakefs_world() as opened:
        opened.state.upload("main", "old", b"old")
        opened.state.commit("main")
        opened.grow_old()
        yield opened


def commit(world: LakefsWorld, branch: str = "main") -> tuple[str, Entry]:
    entry = world.state.upload(branch, "new", b"new %d" % world.state.count)
    commit_id = world.state.commit(branch)
    world.grow_old()
    return commit_id, entry


def refuses(report: RunReport, *mentions: str) -> None:
    check_refused(report, "lost_commits", *mentions)


def test_a_restored_database_refuses_the_run(world: LakefsWorld) -> None:
    saved = world.state.backup()
    commit_id, entry = commit(world)
    known = world.collector().run()
    assert known.state == "swept"
    world.state.restore(saved)
    for _ in range(2):
        refuses(world.collector().run(), "1 commit", f"{commit_id} (branch main)", known.run_id)
    assert entry.address in world.objects()


def test_lost_commits_can_be_accepted_once(world: LakefsWorld) -> None:
    saved = world.state.backup()
    _, entry = commit(world)
    world.collector().run()
    world.state.restore(saved)
    world.grow_old()  # ids of runs sort by time
    plan = world.collector(accept_lost_commits=True).plan()
    assert plan.state == "planned"
    refuses(world.collector().plan())  # the plan was not swept
    assert world.collector().sweep(plan.run_id).state == "swept"
    assert entry.address not in world.objects()
    assert world.collector().run().state == "swept"


def test_a_database_that_is_restored_after_the_plan_refuses_the_sweep(world: LakefsWorld) -> None:
    saved = world.state.backup()
    commit_id, _ = commit(world)
    plan = world.collector().plan()
    world.state.restore(saved)
    refuses(world.collector().sweep(plan.run_id), commit_id, plan.run_id)


def test_many_lost_commits_are_counted_and_some_named(world: LakefsWorld) -> None:
    saved = world.state.backup()
    for _ in range(25):
        commit(world)
    world.collector().run()
    world.state.restore(saved)
    refuses(world.collector().run(), "25 commits", " and 5 more")


def test_a_run_whose_files_are_gone_or_damaged_proves_nothing(world: LakefsWorld) -> None:
    saved = world.state.backup()
    commit_id, _ = commit(world)
    first = world.collector().run()
    world.grow_old()
    second = world.collector().run()
    world.state.storage.put(f"_ebbtide/gc/runs/{second.run_id}/commits.parquet", b"damaged")
    world.state.restore(saved)
    refuses(world.collector().run(), commit_id, first.run_id)


def test_normal_work_is_no_loss(world: LakefsWorld) -> None:
    """lakeFS keeps the commits of deleted branches and tags, and of branches that were reset."""
    for name in ("side", "other"):
        world.state.branch(name, "main")
        commit(world, name)
    head, _ = commit(world)
    world.state.tags["v1"] = head
    assert world.collector().run().state == "swept"
    world.state.branches.pop("side")
    world.state.tags.pop("v1")
    world.state.reset("other", head)
    world.state.reset("main", world.state.commits[head].parents[0])
    assert world.collector().run().state == "swept"
