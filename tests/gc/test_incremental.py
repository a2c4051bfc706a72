"""Incremental runs: they end in the same storage as clean ones, and say when they cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Count
from ebbtide.gc.plan import Plan
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Event
from ebbtide.store.reclaimer import Reclaimer, take_apart
from tests.support.dying import Died
from tests.support.engines import on_engines
from tests.support.icechunk_lake import planned_rows
from tests.support.randomized import randomized
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


def date(world: World, content: bytes, at: datetime) -> None:
    """Gives the file with this content a date."""
    files = (path for path in (world.root / "data").rglob("*/*") if path.read_bytes() == content)
    os.utime(next(files), (at.timestamp(),) * 2)


def test_the_first_run_is_clean_and_says_why(world: World) -> None:
    world.lake.objects.put("main", "a", b"1")
    report = run(world, "incremental")
    assert (report.mode, report.mode_reason) == ("clean", "no run was swept before")
    assert run(world, "clean").mode_reason is None
    assert incremental(world).previous_id is not None


def change(world: World, rng: Random) -> None:
    """Something that makes a file, or takes one from somebody."""
    lake, (path, target) = world.lake, rng.sample(PATHS, 2)
    branch, other = (rng.choice(("main", "one", "two")) for _ in range(2))

    def put() -> None:
        file = world.root / lake.objects.put(branch, path, rng.randbytes(4)).address
        files = [file]
        if rng.random() < 0.2:  # a process died while it wrote the file, and another wrote it
            files.append(file.with_name(f"{file.name}#{rng.randrange(100)}"))
            files[1].write_bytes(b"half")
        for each in files:
            if rng.random() < 0.5:  # else it has the real date, and is older than any grace
                os.utime(each, (world.now.timestamp(),) * 2)

    changes: list[Callable[[], object]] = [
        *(put, put, put),
        lambda: lake.objects.delete(branch, path),
        lambda: lake.objects.copy(branch, target, other, path),
        lambda: lake.objects.move(branch, target, path),
        *[lambda: commit(world, branch)] * 2,
        lambda: lake.commits.reset(branch),
        lambda: lake.branches.create(branch, other),
        lambda: lake.branches.delete(branch),
        lambda: Reclaimer(world.store).once(),
    ]
    with suppress(EbbtideError):
        rng.choice(changes)()


@randomized("incremental plans")
def test_it_names_what_a_clean_plan_names(tmp_path: Path, seed: int) -> None:
    """Whatever was dropped, committed or expired since the last run, a short time ago or long. What
    remained then, a reclaimer may have deleted."""
    world, rng = make_world(tmp_path), Random(seed)
    run(world, "clean")
    for _ in range(5):
        for _ in range(rng.randrange(9)):
            change(world, rng)
            world.clock.advance(rng.choice((HOUR / 60, HOUR, DAY, 3 * DAY)))
        grace = rng.choice((GRACE, 4 * GRACE, 2 * DAY))
        clean = world.collector(mode="clean", grace=grace).plan()
        plan = world.collector(mode="incremental", grace=grace).plan()
        assert (plan.mode, plan.mode_reason) == ("incremental", None)
        named = [{row["address"] for row in planned_rows(each)} for each in (clean, plan)]
        assert named[0] == {each for each in named[1] if (world.root / each).exists()}
        assert world.collector(grace=grace).sweep(plan.run_id).state == "swept"
    world.close()


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
        assert (found.counts["protected"], plan_of(world, found).remaining) == (Count(), ())
    for number, drop in enumerate(DROPS.values()):
        drop(world, f"work{number}")
    incremental(world)
    assert not DROPS.keys() & world.contents()
    assert "stays" in world.contents()
    assert incremental(world).counts["candidate"].objects == 0


@pytest.mark.parametrize("quarantine", [None, DAY], ids=["deleted", "moved"])
@pytest.mark.parametrize("mode", ["clean", "incremental"])
def test_what_a_run_deleted_is_named_no_more(
    world: World, mode: str, quarantine: timedelta | None
) -> None:
    """Although no reclaimer works here. Two entries of one file are dropped one after the other."""
    world.lake.objects.put("main", "a", b"1")
    world.lake.objects.put("main", "b", b"2")
    world.lake.objects.copy("main", "c", "main", "b")
    world.lake.branches.create("gone", "main")
    world.lake.objects.put("gone", "d", b"3")
    run(world, "clean")
    world.lake.objects.delete("main", "a")
    world.lake.objects.delete("main", "b")
    world.lake.branches.delete("gone")
    assert run(world, mode, quarantine=quarantine).counts["candidate"].objects >= 2
    assert world.contents() == {"2"}
    after = incremental(world)
    assert (after.counts["candidate"].objects, after.counts["protected"].objects) == (0, 1)
    world.lake.objects.delete("main", "c")
    assert incremental(world).counts["deleted"].objects == 1


def test_the_dates_of_dropped_files(world: World) -> None:
    """Where runs come faster than a grace passes, the storage is asked for the date."""
    for path in ("old", "young"):
        world.lake.objects.put("main", path, path.encode())
    (young,) = (
        path for path in (world.root / "data").rglob("*/*") if path.read_bytes() == b"young"
    )
    world.clock.advance(2 * DAY)
    os.utime(young, (world.now.timestamp(),) * 2)
    run(world, "clean", grace=DAY)
    world.lake.objects.delete("main", "old")
    world.lake.objects.delete("main", "young")
    found = run(world, "incremental", grace=DAY)
    assert (found.mode, found.counts["deleted"].objects, world.contents()) == (
        "incremental",
        1,
        {"young"},
    )
    world.clock.advance(DAY)
    assert run(world, "incremental", grace=DAY).counts["deleted"].objects == 1


def test_a_protection_that_ends_without_a_record(world: World) -> None:
    """What an undo restored stays for a while. Until then each run looks at it."""
    world.lake.objects.put("main", "a", b"1")
    world.lake.objects.delete("main", "a")
    swept = run(world, "clean", quarantine=30 * DAY)
    assert world.collector().undo(swept.run_id).state == "undone"
    for mode in ("clean", "incremental"):
        found = run(world, mode)
        assert (found.counts["protected"].objects, len(plan_of(world, found).remaining)) == (1, 1)
    world.clock.advance(8 * DAY)
    assert incremental(world).counts["deleted"].objects == 1


def test_a_longer_grace_opens_slices_again(world: World) -> None:
    """What is listed again goes once."""
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
    world.clock.advance(2 * DAY)
    date(world, b"1", world.now)
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
    date(world, b"a", world.now + 4 * GRACE)
    run(world, "clean")
    world.lake.objects.delete("main", "b")
    swept = Path(incremental(world).run_path)
    names = ("plan.json", "remaining", "commits.parquet", "report.json")
    world.clock.advance(2 * GRACE)
    for place in (swept / name for name in names):
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
