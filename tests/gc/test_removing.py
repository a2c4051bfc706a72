"""A gone repository is collected whole; one that is not gone, never."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.schemes import ASKED
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions, parse_quarantine
from ebbtide.gc.report import RunReport
from ebbtide.store.database.schema import commits, pending, purges, readings, upload_tokens
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.dying import Died
from tests.support.engines import INLINE
from tests.support.faulty import SharedFaultyStorage, fail_deletes
from tests.support.gone import expire_repository, files, fill, gone_repository, remover, rows
from tests.support.world import World

WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)
SETTINGS = {"trash_time": WEEK, "lease_ttl": HOUR}
MICROSECOND = timedelta(microseconds=1)
LEFT = {"_ebbtide/OWNER"}
"""What says that the repository ended, so that nobody who comes too late takes it for another."""


@pytest.fixture
def world(world: World) -> World:
    """One with a trash, and leases, whose repository is full."""
    fill(world)
    return world


def refusal(report: RunReport) -> str:
    assert report.state == "refused", report
    assert report.error is not None
    return report.error["kind"]


def test_a_whole_life(world: World) -> None:
    """From its making to its collection: nothing is left, and its place can be used again."""
    repository_id = world.store.catalog.delete("lake").info.repository_id
    world.clock.advance(WEEK - MICROSECOND)
    assert world.store.catalog.find_gone(repository_id) is None
    world.store.catalog.restore("lake")
    assert world.store.repository("lake").objects.get("main", "d") == b"d"
    assert world.lake.symlinks.write("main").file_count
    before = files(world)
    listed = {address for address in before if address != "_ebbtide/OWNER"}
    assert expire_repository(world) == repository_id
    plan = remover(world.store, repository_id).plan()
    assert plan.state == "planned"
    assert plan.counts["candidate"].objects == len(listed - {"_ebbtide/gc/EPOCH"})
    own = {a for a in files(world) if a.startswith(f"_ebbtide/gc/runs/{plan.run_id}/")}
    assert files(world) == before | own, "a plan deletes nothing"
    report = remover(world.store, "lake").sweep()
    assert (report.state, report.run_path, report.warnings) == ("swept", "", ())
    assert report.counts["deleted"] == plan.counts["candidate"]
    assert set(report.deleted_kinds) == {"tree", "range", "object", "record"}
    assert files(world) == LEFT
    assert rows(world.store) == {}
    removal = world.store.catalog.find_removed("lake")
    assert removal is not None
    assert removal.finished_at == world.now
    assert RunReport.from_json(removal.report) == report
    assert world.store.catalog.gone() == []
    with raises("repository_not_found"):
        world.store.catalog.restore(repository_id)
    again = world.store.create_repository("lake")
    assert again.info.storage_url == removal.storage_url
    assert world.store.catalog.find_removed("lake") is None, "the name is another's"
    assert world.store.catalog.find_removed(repository_id) == removal


def test_it_has_no_quarantine(world: World) -> None:
    """A period is refused. Who does not name one gets none, and needs no option."""
    found = gone_repository(world.store, expire_repository(world))
    for asked in ("7d", WEEK):
        with raises("invalid_argument"):
            parse_quarantine(asked, found)
    assert parse_quarantine(ASKED, found) is None


def test_what_is_not_ours_is_kept_and_named(world: World, tmp_path: Path) -> None:
    foreign = {
        "README.txt",
        "data/notes",
        "data/" + "0" * 32 + "/notes",
        "_ebbtide/trees/notes.parquet",
        "_ebbtide/gc/notes.json",
        "_ebbtide/gc/runs/notes",
        f"_ebbtide/gc/runs/{'0' * 32}/quarantine/notes",
        f"_ebbtide/gc/runs/{'0' * 32}/quarantine/data/{'0' * 32}/notes",
        "_ebbtide/gc/symlinks/lake/main/notes.txt",
        "_ebbtide/gc/index/1/notes.txt",
        "deep/er/notes",
    }
    for address in foreign:
        (world.root / address).parent.mkdir(parents=True, exist_ok=True)
        (world.root / address).write_text("mine")
    victim = tmp_path / "elsewhere"
    victim.write_text("mine")
    (world.root / "data" / ("1" * 32)).mkdir()
    link = f"data/{'1' * 32}/{'2' * 32}"
    (world.root / link).symlink_to(victim)
    report = remover(world.store, expire_repository(world)).run()
    assert report.state == "swept"
    assert report.kinds["foreign"].objects == len(foreign) + 1
    assert files(world) == foreign | {link} | LEFT
    assert victim.read_text() == "mine"
    (warning,) = report.warnings
    assert f"{len(foreign) + 1} files that are not Ebbtide's are kept" in warning
    assert all(address in warning for address in foreign | {link})
    assert rows(world.store) == {}
    with raises("root_not_empty"):
        world.store.create_repository("lake", storage_url=str(world.root))


def test_the_record_of_each_address_elsewhere(world: World, tmp_path: Path) -> None:
    report = remover(world.store, expire_repository(world), run_dir=str(tmp_path / "runs")).run()
    assert report.state == "swept"
    assert files(world) == LEFT
    folder = Path(report.run_path)
    assert folder.parent == tmp_path / "runs"
    assert RunReport.from_json(json.loads((folder / "report.json").read_text())).state == "swept"
    assert list((folder / "deleted").rglob("*.parquet"))


def test_not_gone_yet(world: World) -> None:
    """To the microsecond; and a collector of the usual kind never takes this way."""
    deleted = world.store.catalog.delete("lake").info
    repository = EmbeddedRepository(world.lake.context, store_id=world.store.store_id)
    world.clock.advance(WEEK - MICROSECOND)
    assert world.store.catalog.find_gone(deleted.repository_id) is None
    world.clock.advance(MICROSECOND)
    gone = gone_repository(world.store, deleted.repository_id)
    before = files(world)
    world.clock.advance(-MICROSECOND)
    assert refusal(remover(world.store, gone).run()) == "repository_not_gone"
    assert files(world) >= before
    world.clock.advance(MICROSECOND)
    plan = remover(world.store, gone).plan()
    options = RunOptions.of(world.settings)
    usual = Collector(repository, engine=INLINE, options=options)
    assert refusal(usual.sweep(plan.run_id)) == "plan_foreign"
    assert before <= files(world)


def test_brought_back_between_plan_and_fence(world: World) -> None:
    """As where a clock was set right: the fence looks again, and nothing is deleted."""
    repository_id = expire_repository(world)
    collector = remover(world.store, repository_id)
    plan = collector.plan()
    before = files(world)
    now = world.clock.now
    world.clock.now = now - WEEK
    world.store.catalog.restore(repository_id)
    world.clock.now = now
    report = collector.sweep(plan.run_id)
    assert refusal(report) == "repository_not_gone"
    assert before <= files(world)
    lake = world.store.repository("lake")
    assert lake.objects.get("main", "d") == b"d"
    assert lake.objects.get("main", "staged") == b"staged"


def test_behind_the_fence_nothing_brings_it_back(world: World) -> None:
    """No clock, no setting; and who still has it in hands cannot write to it."""
    repository_id = expire_repository(world)
    lake = world.lake

    def stop(step: str, event: str) -> None:
        if (step, event) == ("fence", "end"):
            raise Died

    with pytest.raises(Died):
        remover(world.store, repository_id, observer=stop).run()
    now = world.clock.now
    world.clock.now = now - 2 * WEEK
    assert [each.info.repository_id for each in world.store.catalog.gone()] == [repository_id]
    assert world.store.catalog.list(include_expired=True) == []
    assert world.store.catalog.page(amount=10) == []
    for work in (
        lambda: world.store.catalog.restore(repository_id),
        lambda: world.store.catalog.set_expiry(repository_id, None),
        lambda: lake.objects.put("main", "late", b"late"),
        lambda: lake.addresses.get("main", "late"),
        lambda: lake.commits.commit("main", "late"),
    ):
        with pytest.raises(EbbtideError) as caught:
            work()
        assert caught.value.kind in ("repository_not_found", "branch_not_found")
    world.clock.now = now
    assert remover(world.store, repository_id).sweep().state == "swept"
    assert (files(world), rows(world.store)) == (LEFT, {})


IN_USE: dict[str, Callable[[World], sa.Update]] = {
    "write": lambda world: sa.update(pending).values(ends_at=world.now + HOUR),
    "upload": lambda world: sa.update(upload_tokens).values(expires_at=world.now + HOUR),
    "uncommitted": lambda world: sa.update(readings).values(ends_at=world.now + HOUR),
    "commit": lambda world: sa.update(commits).values(leased_until=world.now + HOUR),
}


def test_what_was_given_out_is_waited_for(world: World) -> None:
    """By the plan and by the fence, each to the microsecond, and the message says until when."""
    with world.store.metadata.transaction() as tx:
        values = {
            "repository_id": world.lake.info.repository_id,
            "started_at": world.now,
            "ends_at": world.now,
        }
        tx.execute(sa.insert(pending).values(address="data/x", **values))
        tx.execute(sa.insert(readings).values(reading_id="x", **values))
    repository_id = expire_repository(world)
    plan = remover(world.store, repository_id).plan()
    for what, promise in IN_USE.items():
        with world.store.metadata.transaction() as tx:
            assert tx.execute(promise(world)).rowcount
        before = files(world)
        for work in (
            partial(remover(world.store, repository_id).sweep, plan.run_id),
            remover(world.store, repository_id).plan,
        ):
            report = work()
            assert refusal(report) == "repository_in_use"
            assert report.error is not None
            assert f"until {world.now + HOUR:%Y-%m-%d %H:%M:%S} UTC" in report.error["message"]
            assert what in report.error["message"]
        assert before <= files(world)
        world.clock.advance(HOUR - MICROSECOND)
        assert refusal(remover(world.store, repository_id).plan()) == "repository_in_use"
        world.clock.advance(MICROSECOND)
        assert remover(world.store, repository_id).plan().state == "planned"
    assert remover(world.store, repository_id).sweep(plan.run_id).state == "swept"
    assert (files(world), rows(world.store)) == (LEFT, {})


def test_another_owner(world: World) -> None:
    repository_id = expire_repository(world)
    owner = world.root / "_ebbtide" / "OWNER"
    owner.write_text(owner.read_text().replace(repository_id, "0" * 32))
    before = files(world)
    assert refusal(remover(world.store, repository_id).run()) == "storage_foreign"
    assert files(world) == before


def test_deletes_that_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWNER and all that is known stay until everything else went."""
    repository_id = expire_repository(world)
    for bad in ("_ebbtide/trees/", "data/", "_ebbtide/gc/index/"):
        with monkeypatch.context() as patch:
            fail_deletes(patch, re.compile(bad).match)
            report = remover(world.store, repository_id).run()
        assert report.state == "incomplete", bad
        assert "_ebbtide/OWNER" in files(world)
        assert rows(world.store)["repositories"] == 1
        with raises("nested_root"):
            world.store.create_repository("other", storage_url=str(world.root))
    assert (world.store.catalog.find_removed("lake")) is None, "it is there still"
    assert remover(world.store, repository_id).sweep().state == "swept"
    assert (files(world), rows(world.store)) == (LEFT, {})


def test_what_comes_to_the_storage_behind_the_plan(world: World) -> None:
    repository_id = expire_repository(world)
    collector = remover(world.store, repository_id)
    plan = collector.plan()
    late = world.root / "data" / ("3" * 32) / ("4" * 32)
    late.parent.mkdir()
    late.write_text("late")
    assert collector.sweep(plan.run_id).state == "incomplete"
    assert late.exists()
    assert collector.run().state == "swept"
    assert (files(world), rows(world.store)) == (LEFT, {})


@pytest.mark.twins
def test_on_each_database(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """What others have stays, and so does the record of what was purged."""
    others = store.create_repository("others", storage_url=str(tmp_path / "others"))
    others.objects.put("main", "a", b"a")
    before = rows(store)
    lake = store.create_repository("lake", storage_url=str(tmp_path / "lake"))
    lake.objects.put("main", "a", b"a")
    lake.commits.commit("main", "a")
    lake.objects.put("main", "b", b"b")
    lake.addresses.get("main", "c")
    project = lake.projects.create("project")
    inner = lake.projects.create("inner", parent_id=project.project_id)
    lake.collections.create(inner.project_id, "collection")
    repository_id = lake.info.repository_id
    with store.metadata.transaction() as tx:
        purge = {"repository_id": repository_id, "state": "done", "record_url": "", "purge_id": "x"}
        names = {"repository_name": "lake", "request": {}}
        tx.execute(sa.insert(purges).values(started_at=tx.now(), **purge, **names))
    store.catalog.delete("lake")
    clock.advance(store.settings.trash_time - MICROSECOND)
    assert store.catalog.find_gone(repository_id) is None
    clock.advance(MICROSECOND)
    report = remover(store, repository_id).run()
    assert report.state == "swept"
    assert [path.name for path in (tmp_path / "lake").rglob("*") if path.is_file()] == ["OWNER"]
    assert rows(store) == before | {"purges": 1}
    assert others.objects.get("main", "a") == b"a"


MOMENTS = [
    ("end", "list"),
    ("end", "subtract"),
    ("start", "fence"),
    ("end", "fence"),
    ("before", "_ebbtide/trees/"),
    ("after", "data/"),
    ("start", "count"),
    ("end", "look"),
    ("after", "_ebbtide/gc/EPOCH"),
    ("after", "_ebbtide/OWNER"),
    ("rows", "all"),
]


@pytest.mark.drawn("kills of removals")
@pytest.mark.parametrize(("moment", "where"), MOMENTS, ids=[" ".join(each) for each in MOMENTS])
def test_broken_off_at_any_moment_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, where: str
) -> None:
    monkeypatch.setattr("ebbtide.gc.deletes.ADDRESSES_PER_BATCH", 1)
    repository_id = expire_repository(world)
    repository = gone_repository(world.store, repository_id)
    address = min(each for each in files(world) if each.startswith(where)) if "/" in where else ""

    def hook(method: str, addresses: str) -> None:
        if method in ("delete", "replace") and address in addresses.split():
            raise Died

    def observe(step: str, event: str) -> None:
        if (event, step) == (moment, where):
            raise Died

    def die(_hold: object) -> None:
        raise Died

    if address:
        repository.storage = SharedFaultyStorage(repository.storage, **{moment: hook})
    elif moment == "rows":
        monkeypatch.setattr(repository, "drop_rows", die)
    with pytest.raises(Died):
        remover(world.store, repository, observer=observe).run()
    assert rows(world.store)["repositories"] == 1
    world.clock.advance(world.settings.run_lease_ttl)
    collector = remover(world.store, repository_id)
    if where in ("list", "subtract"):
        with raises("run_not_found"):
            collector.sweep()
    # After the plan it is known what is left to do, and the same run is swept to its end.
    report = collector.run() if where in ("list", "subtract") else collector.sweep()
    assert report.state == "swept"
    assert (files(world), rows(world.store)) == (LEFT, {})
    removal = world.store.catalog.find_removed(repository_id)
    assert removal is not None
    counts = RunReport.from_json(removal.report).counts
    settled = sum(counts[name].objects for name in ("deleted", "missing"))
    assert settled == counts["candidate"].objects
    assert counts["failed"].objects == counts["revived"].objects == 0
