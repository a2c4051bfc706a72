"""Incremental runs: they end in the same storage as clean ones, and say when they cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Event
from ebbtide.store.reclaim.claims import take_apart
from tests.support.dying import Died
from tests.support.engines import on_engines
from tests.support.world import DAY, World

HOUR = timedelta(hours=1)
GRACE = HOUR
PATHS = ("a", "b/c", "b/d", "e", "f")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Commits are kept for three days, slices for an hour."""
    made = make_world(tmp_path)
    yield made
    made.close()


def make_world(directory: Path) -> World:
    """Ranges are so small that commits share some with their parents."""
    made = World(
        directory, settings={"range_entries_target": 2, "slice_age_max": HOUR}, aged_slices=False
    )
    made.keep(default="3d")
    return made


def plan_of(world: World, report: RunReport) -> Plan:
    return world.collector().plan_of(report.run_id)


def run(world: World, mode: str, **options: Any) -> RunReport:
    world.clock.advance(2 * GRACE)
    return world.swept(mode=mode, **options)


def incremental(world: World) -> RunReport:
    report = run(world, "incremental")
    assert (report.mode, report.mode_reason) == ("incremental", None)
    return report


def commit(world: World, branch: str = "main") -> str:
    return world.lake.commits.commit(branch, "", allow_empty=True).commit_id


def test_the_first_run_is_clean_and_says_why(world: World) -> None:
    world.lake.objects.put("main", "a", b"1")
    report = run(world, "incremental")
    assert (report.mode, report.mode_reason) == ("clean", "no run was swept before")
    assert run(world, "clean").mode_reason is None
    assert incremental(world).previous_id is not None


def test_closed_slices_are_not_listed_again(world: World) -> None:
    for number in range(5):
        world.lake.objects.put("main", f"{number}", b"x")
    commit(world)
    run(world, "clean")
    world.lake.objects.put("main", "new", b"y")
    found = incremental(world)
    assert found.kinds["object"].objects == 1
    assert plan_of(world, found).whole.objects >= 6


def reclaim_apart(world: World, branch: str) -> None:
    """A reset whose rows a reclaimer has released, and not deleted yet."""
    world.lake.commits.reset(branch)
    with world.store.metadata.transaction() as tx:
        assert take_apart(tx, lease_ttl=DAY, amount=1) == 1


def expire_content(world: World, branch: str) -> None:
    """Committed, and so long ago that nothing keeps it: all since the last run."""
    commit(world, branch)
    world.lake.objects.delete(branch, "a")
    commit(world, branch)
    world.clock.advance(4 * DAY)


DROPS: dict[str, Callable[[World, str], object]] = {
    "taken apart": reclaim_apart,  # the first: it takes whatever was released before
    "overwritten": lambda world, branch: world.lake.objects.put(branch, "a", b"new"),
    "deleted": lambda world, branch: world.lake.objects.delete(branch, "a"),
    "moved over": lambda world, branch: world.lake.objects.move(branch, "a", "b"),
    "path reset": lambda world, branch: world.lake.commits.reset_path(branch, "a"),
    "prefix reset": lambda world, branch: world.lake.commits.reset_prefix(branch, "a"),
    "branch reset": lambda world, branch: world.lake.commits.reset(branch),
    "branch gone": lambda world, branch: world.lake.branches.delete(branch),
    "committed and expired": expire_content,
}


@on_engines("inline", "spark")
def test_what_was_staged_then_and_dropped_since(world: World, engine: Engine) -> None:
    """The run does not look at it as long as nothing happens to it."""
    world.engine = engine
    for number, name in enumerate(DROPS):
        world.lake.branches.create(f"work{number}", "main")
        world.lake.objects.put(f"work{number}", "a", name.encode())
        world.lake.objects.put(f"work{number}", "b", b"neighbour")
    world.lake.objects.put("main", "c", b"stays")
    run(world, "clean")
    for _ in range(2):
        found = incremental(world)
        assert "object" not in found.kinds
        assert found.counts["protected"] == Count()
        rows = sum(each.part.rows for each in plan_of(world, found).settled)
        assert rows == 2 * len(DROPS) + 1
    for number, drop in enumerate(DROPS.values()):
        drop(world, f"work{number}")
    incremental(world)
    assert not DROPS.keys() & world.contents()
    assert "stays" in world.contents()
    assert incremental(world).counts["candidate"].objects == 0


def test_small_parts_are_put_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.gc.planning.incremental.SMALL_MAX", 2)
    for number in range(6):
        world.lake.objects.put("main", f"{number}", b"x")
        if number > 2:
            world.lake.objects.delete("main", f"{number - 2}")
        found = run(world, "incremental")
    settled = plan_of(world, found).settled
    assert sum(each.part.rows for each in settled) <= 4
    assert len(settled) <= 3
    world.lake.commits.reset("main")
    incremental(world)
    assert world.contents() == set()


def test_a_longer_grace_opens_slices_again(world: World) -> None:
    """What is listed again is settled twice, and goes once."""
    world.lake.objects.put("main", "a", b"1")
    world.clock.advance(2 * HOUR)
    run(world, "clean")
    world.clock.advance(2 * GRACE)
    found = world.collect(mode="incremental", grace=2 * DAY)
    assert (found.state, found.mode) == ("swept", "incremental")
    found = incremental(world)
    assert found.counts["protected"].objects == 1
    world.lake.objects.delete("main", "a")
    assert incremental(world).counts["deleted"].objects == 1


def test_what_is_uploaded_to_an_old_slice(tmp_path: Path) -> None:
    """A slice stays open as long as a token for it, or a write to it, is out."""
    world = World(tmp_path, settings={"slice_age_max": HOUR, "upload_ttl": DAY}, aged_slices=False)
    address = world.lake.addresses.get("main", "a").address
    run(world, "clean")
    incremental(world)
    world.lake.storage.put(address, b"late")
    world.clock.advance(DAY)
    incremental(world)
    assert world.contents() == set()
    world.close()


def test_what_came_back_to_life(world: World) -> None:
    """Between plan and sweep; then it is dropped for good."""
    world.lake.objects.put("main", "a", b"1")
    first = commit(world)
    world.lake.objects.delete("main", "a")
    commit(world)
    world.clock.advance(4 * DAY)
    planned = world.collector(mode="clean").plan()
    world.lake.branches.create("back", first)
    report = world.collector().sweep(planned.run_id)
    assert (report.state, report.counts["revived"].objects) == ("swept", 1)
    world.lake.branches.delete("back")
    world.clock.advance(4 * DAY)
    assert incremental(world).counts["deleted"].objects >= 1
    assert world.contents() == set()


def test_what_was_too_young(world: World) -> None:
    """A file in an old slice, that a slow upload wrote late."""
    world.lake.objects.put("main", "a", b"1")
    world.lake.objects.delete("main", "a")
    (file,) = (path for path in (world.root / "data").rglob("*/*"))
    world.clock.advance(2 * DAY)
    os.utime(file, (world.now.timestamp(),) * 2)
    early = world.collect(mode="clean")
    assert (early.counts["young"].objects, early.young_slices) == (1, 0)
    assert incremental(world).counts["deleted"].objects == 1


def test_a_foreign_file_in_a_closed_slice(world: World) -> None:
    """Nobody looks there before the next clean run; it is kept by any."""
    world.lake.objects.put("main", "a", b"1")
    commit(world)
    run(world, "clean")
    (slice_,) = (world.root / "data").iterdir()
    garbage = slice_ / ("0" * 32)
    garbage.write_bytes(b"late")
    incremental(world)
    assert garbage.exists()
    run(world, "clean")
    assert not garbage.exists()


@pytest.mark.parametrize(
    ("ends", "mode"), [(Died, "clean"), (KeyboardInterrupt, "incremental")], ids=["died", "ctrl-c"]
)
def test_after_a_sweep_that_did_not_end(world: World, ends: type[BaseException], mode: str) -> None:
    """One that was interrupted before it deleted takes all back."""
    world.lake.objects.put("main", "a", b"1")
    run(world, "clean")
    world.lake.objects.delete("main", "a")
    world.clock.advance(2 * HOUR)
    planned = world.collector().plan()

    def break_off(step: str, event: Event) -> None:
        if (step, event) == ("fence", "end"):
            raise ends

    with pytest.raises(ends):
        world.collector(observer=break_off).sweep(planned.run_id)
    report = run(world, "incremental")
    assert report.mode == mode
    assert (planned.run_id in (report.mode_reason or "")) == (mode == "clean")
    assert report.counts["deleted"].objects == 1


def test_what_the_earlier_run_left_is_damaged(world: World) -> None:
    for path in ("a", "b", "c"):
        world.lake.objects.put("main", path, path.encode())
    world.lake.objects.delete("main", "a")
    (young,) = (path for path in (world.root / "data").rglob("*/*") if path.read_bytes() == b"a")
    os.utime(young, ((world.now + 4 * GRACE).timestamp(),) * 2)
    clean = Path(run(world, "clean").run_path)
    world.lake.objects.delete("main", "b")
    swept = Path(incremental(world).run_path)
    names = ("plan.json", "remaining", "unsettled", "commits.parquet", "report.json")
    world.clock.advance(2 * GRACE)
    for place in (clean / "settled", *(swept / name for name in names)):
        files = [place] if place.is_file() else list(place.iterdir())
        assert files
        before = {file: file.read_bytes() for file in files}
        for file, data in before.items():
            file.write_bytes(data[:-7] + b"garbage")
        report = world.collector(mode="incremental").plan()
        assert (report.state, report.mode) == ("planned", "clean"), place
        assert report.mode_reason
        for file, data in before.items():
            file.write_bytes(data)
    assert incremental(world).counts["deleted"].objects == 1


def test_auto_makes_a_clean_run_now_and_then(world: World) -> None:
    world.lake.objects.put("main", "a", b"1")
    assert run(world, "auto").mode == "clean"
    assert run(world, "auto").mode == "incremental"
    world.clock.advance(6 * DAY)
    assert run(world, "auto").mode == "incremental"
    world.clock.advance(DAY)
    due = run(world, "auto")
    assert due.mode == "clean"
    assert "last clean run" in (due.mode_reason or "")
    assert run(world, "incremental").mode == "incremental"


def test_the_share_is_of_everything(tmp_path: Path) -> None:
    """Not of the few files that an incremental run looks at."""
    world = World(tmp_path, settings={"slice_age_max": HOUR, "share_max": 0.5}, aged_slices=False)
    for number in range(20):
        world.lake.objects.put("main", f"{number}", b"x")
    commit(world)
    run(world, "clean")
    world.lake.objects.put("main", "dropped", b"y")
    world.lake.objects.delete("main", "dropped")
    assert incremental(world).counts["deleted"].objects == 1
    world.close()
