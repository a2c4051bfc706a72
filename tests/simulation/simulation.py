"""Carrying histories out in a world, and telling them.

Not for: what happens in them (`histories`, `operations`), or what is promised (`knowledge`).
"""

from __future__ import annotations

import gc
import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from ebbtide.errors import EbbtideError
from ebbtide.gc.report import RunReport
from ebbtide.purge.purger import Purges
from ebbtide.store.reclaiming import Reclaimer
from tests.simulation.histories import (
    TOURS,
    History,
    Step,
    Words,
    draw,
    draw_base,
    draw_tour,
    shrink,
)
from tests.simulation.knowledge import Checker, Known, Violation
from tests.simulation.operations import INSTEAD, Act, perform, require_no_defect
from tests.simulation.scheduler import Line, Scheduler, Task
from tests.simulation.world import LEASE, SETTLED, Process, State, World, open_world


@dataclass(slots=True)
class Outcome:
    """What became of a history."""

    violation: Violation | None
    lines: list[Line]

    @property
    def digest(self) -> str:
        """Of all lines."""
        found = hashlib.sha256()
        for line in self.lines:
            found.update(f"{line.time} {line.task} {line.text}\n".encode())
        return found.hexdigest()


A_MOMENT: Final = timedelta(seconds=1)
GARBAGE_EVERY: Final = 50
"""How many histories go by until what they left in memory is looked for: threads that ended in the
middle leave rings behind, and to look for them at any time takes a tenth of it all."""


@dataclass(slots=True)
class Simulation:
    """Carries histories out in a world."""

    world: World
    _count: int = 0
    _words: Words = field(default_factory=dict)
    _bases: dict[int, tuple[State, Known]] = field(default_factory=dict)

    def draw(self, seed: int) -> History:
        """The history of a seed."""
        return draw(seed, self.words())

    def words(self) -> Words:
        """What points steps have, as some histories without disturbances show."""
        if not self._words:
            found: dict[str, Counter[str]] = {}
            for base, names in TOURS.items():
                self.run(draw_tour(base, names))
                for task in self.world.scheduler.tasks:
                    found.setdefault(task.kind, Counter()).__ior__(task.counts)
            for name, instead in INSTEAD.items():
                found.setdefault(name, Counter()).__ior__(found[instead])
            self._words = found
        return self._words

    def run(self, history: History) -> Outcome:
        """Carry a history out to its end, or to the first violation."""
        self._count += 1
        if self._count % GARBAGE_EVERY == 0:
            gc.collect()
        state, known = self._base(history.base)
        return self._run(history, state, known.copy())

    def _base(self, number: int) -> tuple[State, Known]:
        if number not in self._bases:
            known = Known()
            outcome = self._run(draw_base(number), self.world.empty, known)
            if outcome.violation is not None:
                raise outcome.violation
            self.world.clock.now += LEASE * 2
            self._bases[number] = self.world.remember(), known
        return self._bases[number]

    def _run(self, history: History, state: State, known: Known) -> Outcome:
        checker = Checker(self.world, known)
        scheduler = self.world.begin(state, lambda _task: checker.check())
        outcome = Outcome(None, scheduler.lines)
        try:
            self._steps(history, scheduler, known)
            checker.check_owners()
            if history.settles:
                self._settle(scheduler, checker)
        except Violation as violation:
            scheduler.tell(f"*** {violation}")
            outcome.violation = violation
        finally:
            scheduler.stop()
        return outcome

    def _steps(self, history: History, scheduler: Scheduler, known: Known) -> None:
        for step in history.steps:
            self._let_time_pass(step, known)
            scheduler.wake_due()
            scheduler.start(self._task(step, scheduler, known))
        scheduler.finish()

    def _let_time_pass(self, step: Step, known: Known) -> None:
        clock = self.world.clock
        promised = {each.until for each in known.promises.values()}
        ends = sorted(each for each in promised if each is not None and each > clock.now)
        if step.until_end and ends:
            clock.now = max(clock.now, ends[: step.until_end][-1] - A_MOMENT)
        else:
            clock.now += step.delay

    def _task(self, step: Step, scheduler: Scheduler, known: Known) -> Task:
        world = self.world
        process = (
            world.servers[step.process] if step.process < 2 else Process(world, world.database)
        )
        act = Act(world, known, process, step.number, step.numbers)

        def work() -> object:
            scheduler.tell(f"begins; {step}")
            try:
                answer = perform(step.name, act)
            except EbbtideError as error:
                scheduler.tell(f"refused: {error.kind}: {error.message}")
                require_no_defect(error.kind, error.message)
                raise
            finally:
                known.end(step.number, world.clock.now)
            scheduler.tell(f"answers {answer}")
            return answer

        return Task(step.number, step.name, work, step.disturbances)

    def _settle(self, scheduler: Scheduler, checker: Checker) -> None:
        """All ends, a clean run takes what nobody needs, and nothing else is left."""
        known = checker.known
        if known.copied_run:
            return
        clean_up(self.world, scheduler, checker)


def clean_up(world: World, scheduler: Scheduler, checker: Checker) -> None:
    """Let all times run out, and collect. Raises Violation for what is left, and for a run that
    does not come to its end."""
    process = Process(world, world.database)
    _end_purges(process, checker.known)
    for _ in range(2):
        world.clock.now += SETTLED
        process = Process(world, world.database)
        Reclaimer(process.store).once()
        for report in _last_runs(process):
            scheduler.tell(f"in the end {report.run_id} {report.state} {report.error}")
            if report.state != "swept":
                raise Violation("end", f"the last run is {report.state}: {report.error}")
        checker.check()
    needed = checker.needed()
    left = {key for key in world.bucket.objects if not is_record(key)} - needed
    if left:
        raise Violation("left", f"nobody needs {', '.join(sorted(left))}")


def _end_purges(process: Process, known: Known) -> None:
    """Whoever began a purge goes on with it."""
    purges = Purges(process.store)
    for purge_id in known.purges:
        try:
            purges.carry_out(purge_id)
        except EbbtideError:
            continue  # ended, refused, or of a repository that is no more


def _last_runs(process: Process) -> Iterator[RunReport]:
    """Of the repository, and of one that is gone."""
    remover = process.remover()
    if remover is not None:
        yield remover.run()
    try:
        collector = process.collector(mode="clean")
    except EbbtideError:
        return
    yield collector.run()


def is_record(key: str) -> bool:
    """Whether it is of those that the documents name as staying: OWNER, runs without what they have
    aside, records of purges."""
    _, _, address = key.partition("/")
    if address.startswith("_ebbtide/gc/"):
        return "/quarantine/" not in address
    return (
        address == "_ebbtide/OWNER"
        or address.startswith(("_ebbtide/purges/",))
        or key.startswith("_ebbtide-purges/")
    )


@contextmanager
def open_simulation() -> Iterator[Simulation]:
    """A simulation in memory."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory, open_world(Path(directory)) as world:
        gc.disable()
        try:
            yield Simulation(world)
        finally:
            gc.enable()


def smallest(simulation: Simulation, history: History) -> tuple[History, Outcome]:
    """A failing history made smaller, and what becomes of it."""
    violation = simulation.run(history).violation
    assert violation is not None
    kind = violation.kind

    def fails(tried: History) -> bool:
        found = simulation.run(tried).violation
        return found is not None and found.kind == kind

    small = shrink(fails, history)
    return small, simulation.run(small)


_ID: Final = re.compile(r"[0-9a-f]{26}([0-9a-f]{6})")


def told(outcome: Outcome, *, everything: bool = False) -> str:
    """A history, one line a step: time, who, what. Of ids the end; without `everything`, only the
    steps that change what others see."""
    lines = [line for line in outcome.lines if line.is_told or everything]
    return "\n".join(
        f"{line.time:%d %H:%M:%S.%f}  {line.task:22.22}  {_short(line.text)}" for line in lines
    )


def _short(text: str) -> str:
    return _ID.sub(r"…\1", text)
