"""Undoing beside sweeps that nobody saw end: suspended in the middle of a batch, or killed there.

After each: a commit that can be opened has all of its files, also when the sleeper has woken up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ebbtide.errors import EbbtideError
from ebbtide.gc import quarantine
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.ids import new_id
from ebbtide.storage import LocalStorage, Storage
from tests.support.copies import contents_of, listing
from tests.support.dying import Died
from tests.support.faulty import Hook, SharedFaultyStorage
from tests.support.world import DAY, World, quarantine_of

SETTINGS: Final = {"range_entries_target": 2}
WEEK: Final = 7 * DAY
HOUR: Final = timedelta(hours=1)
WAIT_SECONDS_MAX: Final = 60.0


class Sleeper:
    """A sweep in a thread of its own that is suspended before a call of the storage whose address
    has `part`."""

    def __init__(self, world: World, run_id: str, method: str, part: str, **options: Any) -> None:
        self.outcome: RunReport | BaseException | None = None
        self.asleep, self._woken = threading.Event(), threading.Event()

        def hook(called: str, address: str) -> None:
            if called == method and part in address and not self.asleep.is_set():
                self.asleep.set()
                assert self._woken.wait(WAIT_SECONDS_MAX)

        sweeper = collector(world, before=hook, **options)

        def work() -> None:
            try:
                self.outcome = sweeper.sweep(run_id)
            except EbbtideError as error:
                self.outcome = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()
        self._thread.join(WAIT_SECONDS_MAX)
        assert not self._thread.is_alive()


def asleep(world: World, run_id: str, method: str, part: str, **options: Any) -> Sleeper:
    """A sweep that sleeps before the call, and whose lease has run out."""
    found = Sleeper(world, run_id, method, part, **options)
    assert found.asleep.wait(WAIT_SECONDS_MAX), found.outcome
    let_lease_end(world)
    return found


def collector(
    world: World, *, before: Hook | None = None, after: Hook | None = None, **options: Any
) -> Collector:
    """A collector whose storage calls the hooks; its undos wait for nobody."""
    hooks = {name: hook for name, hook in (("before", before), ("after", after)) if hook}
    repository = world.format()
    repository.storage = SharedFaultyStorage(repository.storage, **hooks)
    chosen: dict[str, Any] = {"grace": HOUR, "mode": "clean", "patience": timedelta(0)} | options
    return Collector(
        repository, engine=world.engine, options=RunOptions.of(world.settings, **chosen)
    )


def history(world: World) -> dict[str, dict[str, bytes]]:
    """Commits of which the first and the second share files that the third has not; and one that
    nothing reaches, whose record, tree and ranges go too. What each has."""
    commits = [
        world.save("main", days_ago=30, put=["own", "a", "b", "c", "d"]),
        world.save("main", days_ago=20, put=["x"], delete=["own"]),
    ]
    world.lake.branches.create("side", commits[1])
    commits.append(world.save("side", days_ago=12, put=["s"], delete=["x"]))
    commits.append(world.save("main", days_ago=10, put=["y"], delete=["a", "b", "c", "d"]))
    world.lake.branches.delete("side")
    world.clock.advance(2 * HOUR)
    return {commit: contents_of(world, commit) for commit in commits}


def check(world: World, known: dict[str, dict[str, bytes]]) -> list[str]:
    """Each commit has all of its files, or cannot be opened; those that can."""
    opened = []
    for commit, has in known.items():
        try:
            world.lake.branches.create(f"rescue-{new_id()}", commit)
        except EbbtideError as error:
            assert error.kind == "commit_expired"
            continue
        assert contents_of(world, commit) == has
        opened.append(commit)
    return opened


def let_lease_end(world: World) -> None:
    world.clock.advance(world.settings.run_lease_ttl + timedelta(seconds=1))


def expire_first(world: World) -> RunReport:
    """The first commit goes aside, the files that it shares stay."""
    world.keep(default="15d")
    report = world.swept(quarantine=WEEK)
    assert report.counts["quarantined"].objects > 0
    return report


PLACES: Final = [
    ("delete", "data/"),
    ("delete", "_ebbtide/"),
    ("get", "gc/EPOCH"),
    ("put", "/intended/"),
]


@pytest.mark.parametrize(("method", "part"), PLACES)
def test_another_run_sleeps_in_its_deletes(world: World, method: str, part: str) -> None:
    known = history(world)
    first = expire_first(world)
    world.keep(default="3d")
    sleeper = asleep(world, world.collector().plan().run_id, method, part)
    undone = collector(world).undo(first.run_id)
    check(world, known)
    sleeper.wake()
    check(world, known)
    collector(world).undo(first.run_id, sweeps_ended=True) if undone.state != "undone" else None
    check(world, known)


@pytest.mark.parametrize("aside", [WEEK, None], ids=["aside", "for good"])
@pytest.mark.parametrize("part", ["data/", "_ebbtide/"])
def test_a_sweep_of_the_same_run_sleeps(world: World, aside: timedelta | None, part: str) -> None:
    known = history(world)
    world.keep(default="3d")
    run_id = world.collector().plan().run_id
    method = "delete" if aside is None else "move"
    sleeper = asleep(world, run_id, method, part, quarantine=aside)
    assert collector(world, quarantine=WEEK).sweep(run_id).state == "swept"
    undone = collector(world).undo(run_id)
    assert undone.state == "swept"
    assert quarantine_of(undone)["at_risk_objects"] > 0
    assert "process " in quarantine_of(undone)["sweepers"]
    check(world, known)
    sleeper.wake()
    check(world, known)
    done = collector(world).undo(run_id, sweeps_ended=True)
    assert done.state == "undone"
    # A sweep that deletes for good keeps no record of the commit that nothing reaches.
    reached = [commit for number, commit in enumerate(known) if aside or number != 2]
    assert check(world, known) == reached


@pytest.mark.parametrize("part", ["data/", "_ebbtide/"])
def test_nobody_took_the_sweep_over(world: World, part: str) -> None:
    """What the batch takes is all in its place, when the undo looks."""
    known = history(world)
    world.keep(default="3d")
    run_id = world.collector().plan().run_id
    sleeper = asleep(world, run_id, "move", part, quarantine=WEEK)
    assert collector(world).undo(run_id).state == "incomplete"
    assert len(check(world, known)) < len(known)
    sleeper.wake()
    check(world, known)
    assert collector(world).undo(run_id, sweeps_ended=True).state == "undone"
    assert check(world, known) == list(known)


def test_a_run_is_killed_between_its_deletes_and_their_record(world: World) -> None:
    known = history(world)
    first = expire_first(world)
    world.keep(default="3d")

    def die(method: str, address: str) -> None:
        if method == "delete" and "data/" in address:
            raise Died

    with pytest.raises(Died):
        collector(world, after=die).run()
    let_lease_end(world)
    undone = collector(world).undo(first.run_id)
    assert undone.state == "swept"
    check(world, known)
    # Nobody is left, and what the files were for is gone: all that is there is back.
    undone = collector(world).undo(first.run_id, sweeps_ended=True)
    assert undone.state == "undone"
    assert next(iter(known)) not in check(world, known)


def test_an_older_plan_is_swept_later(world: World) -> None:
    known = history(world)
    world.keep(default="3d")
    older = world.collector().plan()
    first = expire_first(world)
    world.keep(default="3d")
    assert world.collector(quarantine=None).sweep(older.run_id).state == "swept"
    undone = collector(world).undo(first.run_id)
    assert quarantine_of(undone)["closed_commits"] >= 1
    assert next(iter(known)) not in check(world, known)


def test_the_record_of_the_later_run_is_gone(world: World) -> None:
    """A quarantine may last longer than runs are remembered."""
    known = history(world)
    world.keep(default="15d")
    long = world.settings.run_retention * 3
    first = world.collect(quarantine=long)
    world.keep(default="3d")
    second = world.collect()
    world.clock.advance(world.settings.run_retention + DAY)
    world.collect()
    assert second.run_id not in world.format().run_paths()
    collector(world).undo(first.run_id)
    assert next(iter(known)) not in check(world, known)


def test_a_purge_broke_off_half_way(world: World) -> None:
    known = history(world)
    first = expire_first(world)
    aside = world.root / quarantine.prefix_of(first.run_id)
    gone = min(str(path.relative_to(aside)) for path in aside.rglob("data/*/*"))
    (aside / gone).unlink()
    undone = collector(world).undo(first.run_id)
    assert undone.state == "swept", "something is unaccounted for"
    assert (quarantine_of(undone)["lost_objects"], quarantine_of(undone)["objects"]) == (1, 0)
    assert gone not in world.files()
    assert next(iter(known)) not in check(world, known)


def test_a_listing_lags(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record says what must be there, and the storage is asked for it by name."""
    known = history(world)
    before = listing(world.root)
    first = expire_first(world)
    listed: Callable[..., Iterator[pa.RecordBatch]] = LocalStorage.list

    def late(storage: Storage, prefix: str = "", **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in listed(storage, prefix, **options):
            column = batch.column("address")
            hidden = pc.match_substring(column, "/quarantine/data/")
            yield batch.filter(pc.invert(hidden))

    monkeypatch.setattr(LocalStorage, "list", late)
    undone = collector(world).undo(first.run_id)
    assert undone.state == "undone"
    assert listing(world.root) == before
    assert check(world, known) == list(known)


def test_who_gave_up_takes_nothing_more(world: World) -> None:
    """A sweep that was refused before its batch leaves no intent behind."""
    known = history(world)
    first = expire_first(world)
    world.keep(default="3d")
    sleeper = asleep(world, world.collector().plan().run_id, "get", "gc/EPOCH")
    world.keep(default="15d")
    collector(world).plan()  # takes the repository
    sleeper.wake()
    assert isinstance(sleeper.outcome, RunReport)
    assert sleeper.outcome.state == "incomplete"
    undone = collector(world).undo(first.run_id)
    assert undone.state == "undone"
    assert quarantine_of(undone)["at_risk_objects"] == 0
    check(world, known)


def test_it_waits_for_batches_that_end(world: World) -> None:
    """A task of a sweep that lost the repository may end while the undo waits."""
    known = history(world)
    first = expire_first(world)
    world.keep(default="3d")
    sleeper = asleep(world, world.collector().plan().run_id, "delete", "data/")
    timer = threading.Timer(0.2, sleeper.wake)
    timer.start()
    undone = collector(world, patience=timedelta(seconds=30)).undo(first.run_id)
    timer.join()
    assert undone.state == "undone"
    assert next(iter(known)) not in check(world, known)


def test_what_may_be_taken_is_remembered_while_something_is_aside(world: World) -> None:
    """Else an undo would not see it once the sleeper's run is forgotten."""
    known = history(world)
    world.keep(default="15d")
    first = world.collect(quarantine=world.settings.run_retention * 3)
    world.keep(default="3d")
    second = world.collector().plan().run_id
    sleeper = asleep(world, second, "delete", "data/")
    world.clock.advance(world.settings.run_retention + DAY)
    world.keep(default="keep")
    world.collect()
    assert second in world.format().run_paths()
    collector(world).undo(first.run_id)
    check(world, known)
    sleeper.wake()
    check(world, known)
