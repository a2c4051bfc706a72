"""Schedules on any history of clocks, servers, runs and crashes: each due time has one end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest

from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.run_request import ScheduledOptions
from ebbtide.server.scheduler import Ended, Scheduler
from ebbtide.store.embedded import Store
from ebbtide.store.schedules import (
    CLAIM_LASTS,
    INTERRUPTED,
    RUNNING,
    Claim,
    Schedule,
    Schedules,
)
from ebbtide.timetable import Timetable
from tests.support.clock import ManualClock
from tests.support.randomized import randomized

LATE_MAX = timedelta(hours=2)
MINUTE = timedelta(minutes=1)
KEY = "r1"
CRONS = ("*/30 * * * *", "0 3 * * *", "15 */2 * * *")
STEPS = 40
"""Of one history."""


class DiedError(BaseException):
    """As the end of a server's process."""


@dataclass
class World:
    """What is outside of the database. `running` is the run that has the repository,
    `started` the due times for which a run began, and `told` all ends by due time."""

    running: str | None = None
    started: Counter[datetime] = field(default_factory=Counter)
    told: defaultdict[datetime, list[str]] = field(default_factory=lambda: defaultdict(list))
    ids: Iterator[int] = field(default_factory=count)
    dies: str = ""
    """Where the next start ends its server: `before` the run or `after` it began."""
    fails: bool = False
    """Whether the next start fails."""


class Observed(Schedules):
    """The schedules as one server sees them. `between` is called after its next reading."""

    def __init__(self, store: Store, world: World) -> None:
        super().__init__(store.metadata)
        self.world = world
        self.between: Callable[[], None] | None = None

    def all(self) -> tuple[list[Schedule], datetime]:
        """Reads, and lets another server come before anything else."""
        found = super().all()
        between, self.between = self.between, None
        if between is not None:
            between()
        return found

    def claim(self, schedule: Schedule, now: datetime, *, late_max: timedelta) -> Claim | None:
        claim = super().claim(schedule, now, late_max=late_max)
        if claim is not None:
            check_claim(claim, now)
            for each in claim.missed:
                self.world.told[each].append("missed")
            if claim.end == "skipped":
                self.world.told[claim.due_at].append("skipped")
        return claim

    def note_started(self, claim: Claim, run_id: str) -> None:
        super().note_started(claim, run_id)
        self.world.told[claim.due_at].append("run")

    def note_failed(self, claim: Claim, error: Any) -> None:
        super().note_failed(claim, error)
        self.world.told[claim.due_at].append("failed")

    def note_skipped(self, claim: Claim) -> None:
        super().note_skipped(claim)
        self.world.told[claim.due_at].append("skipped")


def check_claim(claim: Claim, now: datetime) -> None:
    """The latest due time has a run unless it is too late, or a start is under way."""
    row, timetable = claim.schedule, claim.schedule.timetable
    is_late = now - timetable.start_of(claim.due_at, KEY) > LATE_MAX
    since = row.starting_since
    is_starting = since is not None and abs(now - since) < CLAIM_LASTS
    assert claim.end == ("skipped" if is_starting else "missed" if is_late else "run")


class Starts:
    def __init__(self, world: World) -> None:
        self.world = world
        self.own: dict[str, Ended | None] = {}

    def running_id(self, schedule: Schedule) -> str | None:
        assert schedule.key == KEY
        return self.world.running

    def start(self, schedule: Schedule) -> str:
        world = self.world
        if world.dies == "before":
            raise DiedError
        if world.running is not None:
            raise Refused("run_in_progress", "another run is going on")
        if world.fails:
            world.fails = False
            raise Failed("worker_died", "the process died")
        assert schedule.next_due_at is not None
        run_id = f"run-{next(world.ids)}"
        world.running = run_id
        self.own[run_id] = None
        world.started[schedule.next_due_at] += 1
        if world.dies == "after":
            raise DiedError
        return run_id

    def follow(self, schedule: Schedule, run_id: str, ended: Ended) -> None:
        assert schedule.key == KEY
        self.own[run_id] = ended


class History:
    """Two servers on one store, and what befalls them by chance."""

    def __init__(self, store: Store, clock: ManualClock, chances: Random) -> None:
        self.schedules, self.clock, self.chances = store.schedules, clock, chances
        with suppress(NotFound):
            self.schedules.remove(KEY, KEY)
        jitter = timedelta(minutes=chances.choice([0, 20]))
        self.timetable = Timetable(chances.choice(CRONS), "Europe/Berlin", jitter)
        self.world = World()
        self.enabled: list[tuple[datetime, datetime | None]] = []
        self.set_schedule()
        self.servers: list[Scheduler | None] = [None, None]
        self.starts = [Starts(self.world), Starts(self.world)]
        self.observed = [Observed(store, self.world), Observed(store, self.world)]
        for which in (0, 1):
            self.start_server(which)

    def run(self) -> None:
        acts = (
            self.time_passes,
            self.look,
            self.look_at_once,
            self.restart,
            self.next_start_dies,
            self.next_start_fails,
            self.somebody_runs_or_ends,
            self.set_schedule,
            self.switch,
        )
        for _ in range(STEPS):
            self.chances.choice(acts)()
            self.check()
        self.check_last_start()

    def draw(self) -> int:
        return self.chances.randrange(2)

    def set_schedule(self) -> None:
        """Set it anew: earlier due times are no longer counted."""
        self.schedules.put(KEY, KEY, self.timetable, ScheduledOptions(), by="me")
        self.world.told.clear()
        self.world.started.clear()
        self.enabled = [(self.clock.now, None)]

    def start_server(self, which: int) -> None:
        self.starts[which] = Starts(self.world)
        scheduler = Scheduler(self.observed[which], self.starts[which], late_max=LATE_MAX)
        self.servers[which] = scheduler
        scheduler.settle()

    def end_server(self, which: int) -> None:
        """Its runs end with it."""
        if self.world.running in self.starts[which].own:
            self.world.running = None
        self.servers[which] = None
        self.observed[which].between = None

    def look(self, which: int | None = None) -> None:
        which = self.draw() if which is None else which
        scheduler = self.servers[which]
        if scheduler is None:
            return
        try:
            seconds = scheduler.once()
        except DiedError:
            self.world.dies = ""
            self.end_server(which)
            return
        due = self.schedule().next_start_at
        assert due is None or due > self.clock.now
        assert 0 < seconds <= 30

    def schedule(self) -> Schedule:
        return self.schedules.get(KEY, KEY)

    def time_passes(self) -> None:
        self.clock.advance(self.chances.choice([1, 7, 29, 30, 90, 121, 1440, 5000]) * MINUTE)

    def look_at_once(self) -> None:
        """Something, mostly the other server, comes between a server's reading and its claim."""
        which = self.draw()
        between = (lambda: self.look(1 - which), self.set_schedule, self.switch)
        self.observed[which].between = self.chances.choice(between)
        self.look(which)
        self.observed[which].between = None

    def restart(self) -> None:
        which = self.draw()
        if self.servers[which] is None:
            self.start_server(which)
        else:
            self.end_server(which)

    def next_start_dies(self) -> None:
        self.world.dies = self.chances.choice(["before", "after", ""])

    def next_start_fails(self) -> None:
        self.world.fails = True

    def somebody_runs_or_ends(self) -> None:
        """A run that no schedule started; or the end of the run that has the repository."""
        run_id, self.world.running = self.world.running, None
        if run_id is None:
            self.world.running = f"own-{next(self.world.ids)}"
            return
        outcome = self.chances.choice(["swept", "refused"])
        for each in self.starts:
            ended = each.own.get(run_id)
            if ended is not None:
                ended(outcome, None)
                last = self.schedule().last_run
                assert last is None or last.run_id != run_id or last.outcome == outcome

    def switch(self) -> None:
        unclaimed = self.schedule().next_due_at
        self.schedules.enable(KEY, KEY, enabled=unclaimed is None)
        if unclaimed is None:
            self.enabled.append((self.clock.now, None))
        else:
            # What has come and was not claimed is nobody's.
            self.enabled[-1] = (self.enabled[-1][0], unclaimed)

    def passed(self) -> set[datetime]:
        """The due times that must have an end."""
        found, unclaimed = set(), self.schedule().next_due_at
        for since, until in self.enabled:
            end, due = until or unclaimed, since
            assert end is not None
            while (due := self.timetable.due_after(due)) < end:
                found.add(due)
        return found

    def check(self) -> None:
        """Each due time has one end, or a server is about to start it. None has two runs."""
        schedule, told = self.schedule(), self.world.told
        starting = schedule.starting_due_at
        assert set(told) | ({starting} - {None}) == self.passed()
        assert all(len(ends) == 1 for ends in told.values()), told
        assert starting not in told
        assert all(number == 1 for number in self.world.started.values())
        counts = Counter(end for ends in told.values() for end in ends)
        assert schedule.started_count == counts["run"] + counts["failed"]
        assert schedule.missed_count == counts["missed"]
        assert schedule.skipped_count == counts["skipped"]

    def check_last_start(self) -> None:
        """A server that starts at last knows of no run that is not there."""
        for which in (0, 1):
            self.end_server(which)
        self.start_server(0)
        last = self.schedule().last_run
        if last is not None and last.outcome == RUNNING:
            assert last.run_id == self.world.running
        if last is not None and last.outcome == INTERRUPTED:
            assert last.run_id != self.world.running


@randomized("histories of schedules")
def test_each_due_time_has_one_end(store: Store, clock: ManualClock, seed: int) -> None:
    History(store, clock, Random(seed)).run()


def test_a_clock_that_was_ahead(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The next due time is the first one after now, also if a start was under way."""
    store.schedules.put(KEY, KEY, Timetable("*/30 * * * *"), ScheduledOptions(), by="me")
    began = clock.now
    world = World(dies="before")
    scheduler = Scheduler(Observed(store, world), Starts(world), late_max=LATE_MAX)
    clock.now += timedelta(days=180)
    with suppress(DiedError):
        scheduler.once()
    world.dies = ""
    clock.now = began
    world.told.clear()
    assert scheduler.once() <= 30 * 60
    assert "because a clock was ahead" in caplog.text
    due = store.schedules.get(KEY, KEY).next_due_at
    assert due == Timetable("*/30 * * * *").due_after(began)
    clock.now = due
    scheduler.once()
    assert world.told[due] == ["run"]


def test_a_server_that_dies_while_it_starts_a_run(store: Store, clock: ManualClock) -> None:
    """What was due is told as missed by the one that looks next, when the claim has ended."""
    store.schedules.put(KEY, KEY, Timetable("*/30 * * * *"), ScheduledOptions(), by="me")
    world = World(dies="before")
    scheduler = Scheduler(Observed(store, world), Starts(world), late_max=LATE_MAX)
    first = clock.now = Timetable("*/30 * * * *").due_after(clock.now)
    with suppress(DiedError):
        scheduler.once()
    assert world.told == {}
    world.dies = ""
    second = clock.now = Timetable("*/30 * * * *").due_after(first)
    assert second - first > CLAIM_LASTS
    Scheduler(Observed(store, world), Starts(world), late_max=LATE_MAX).once()
    assert world.told == {first: ["missed"], second: ["run"]}
    assert store.schedules.get(KEY, KEY).missed_count == 1
