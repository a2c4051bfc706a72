"""Carrying out histories on a stage, and telling them.

Not for: what happens in them (`histories`, `operations`), or what is promised (`knowledge`).
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ebbtide.errors import EbbtideError
from tests.simulation.histories import History, Step, Words, draw, draw_base, draw_tour, shrink
from tests.simulation.scheduler import Line, Scheduler, Task, Violation
from tests.simulation.stage import Stage
from tests.simulation.world import LEASE


@dataclass(slots=True)
class Outcome:
    violation: Violation | None
    lines: list[Line]

    @property
    def digest(self) -> str:
        found = hashlib.sha256()
        for line in self.lines:
            found.update(f"{line.time} {line.task} {line.text}\n".encode())
        return found.hexdigest()


A_MOMENT: Final = timedelta(seconds=1)
GARBAGE_EVERY: Final = 50
"""After how many histories memory is collected. Threads that end in the middle leave cycles of
objects behind. A collection at any time would take a tenth of all time."""


@dataclass(slots=True)
class Simulation:
    """Carries out histories on a stage."""

    stage: Stage[Any]
    _count: int = 0
    _words: Words = field(default_factory=dict)
    _bases: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def draw(self, seed: int) -> History:
        return draw(self.stage.vocabulary, seed, self.words())

    def words(self) -> Words:
        """What points steps have, as some histories without disturbances show."""
        if not self._words:
            found: dict[str, Counter[str]] = {}
            for base, names in self.stage.vocabulary.tours.items():
                outcome = self.run(draw_tour(base, names))
                if outcome.violation is not None:
                    raise outcome.violation
                for task in self.stage.world.scheduler.tasks:
                    found.setdefault(task.kind, Counter()).__ior__(task.counts)
            for name, instead in self.stage.vocabulary.instead.items():
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

    def _base(self, number: int) -> tuple[Any, Any]:
        if number not in self._bases:
            stage = self.stage
            known = stage.knowing()
            outcome = self._run(draw_base(stage.vocabulary, number), stage.empty, known)
            if outcome.violation is not None:
                raise outcome.violation
            stage.world.clock.now += LEASE * 2
            self._bases[number] = stage.world.remember(), known
        return self._bases[number]

    def _run(self, history: History, state: Any, known: Any) -> Outcome:
        scheduler = self.stage.world.begin(state, lambda _task: self.stage.check(known))
        outcome = Outcome(None, scheduler.lines)
        try:
            self._steps(history, scheduler, known)
            self.stage.check_end(known)
            if history.settles:
                self.stage.settle(known)
        except Violation as violation:
            scheduler.tell(f"*** {violation}")
            outcome.violation = violation
        finally:
            scheduler.stop()
        return outcome

    def _steps(self, history: History, scheduler: Scheduler, known: Any) -> None:
        for step in history.steps:
            self._let_time_pass(step, known)
            scheduler.wake_due()
            scheduler.start(self._task(step, scheduler, known))
        scheduler.finish()

    def _let_time_pass(self, step: Step, known: Any) -> None:
        clock = self.stage.world.clock
        ends = sorted({each for each in known.ends() if each > clock.now})
        if step.until_end and ends:
            clock.now = max(clock.now, ends[: step.until_end][-1] - A_MOMENT)
        else:
            clock.now += step.delay * self.stage.vocabulary.hours

    def _task(self, step: Step, scheduler: Scheduler, known: Any) -> Task:
        def work() -> object:
            scheduler.tell(f"begins; {step}")
            try:
                answer = self.stage.perform(step, known)
            except EbbtideError as error:
                scheduler.tell(f"refused: {error.kind}: {error.message}")
                require_no_defect(error.kind, error.message)
                raise
            finally:
                known.end(step.number, self.stage.world.clock.now)
            scheduler.tell(f"answers {answer}")
            return answer

        return Task(step.number, step.name, work, step.disturbances)


def require_no_defect(kind: str, message: str) -> None:
    """Raises Violation where something broke in a way that no error is meant for."""
    if kind == "task_failed":
        raise Violation("defect", message)


@contextmanager
def simulating(stage: Stage[Any]) -> Iterator[Simulation]:
    gc.disable()
    try:
        yield Simulation(stage)
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


def require_none_fails(simulation: Simulation, seed: int) -> None:
    """The history of a seed comes to its end; one that does not is told as the smallest like it."""
    history = simulation.draw(seed)
    if simulation.run(history).violation is not None:
        small, outcome = smallest(simulation, history)
        raise AssertionError(f"{outcome.violation}\n{small}\n{told(outcome)}")


_ID: Final = re.compile(r"[0-9a-f]{26}([0-9a-f]{6})")


def told(outcome: Outcome, *, everything: bool = False) -> str:
    """A history, one line a step, with the ends of ids; all steps only with `everything`."""
    lines = [line for line in outcome.lines if line.is_told or everything]
    return "\n".join(
        f"{line.time:%d %H:%M:%S.%f}  {line.task:22.22}  {_short(line.text)}" for line in lines
    )


def _short(text: str) -> str:
    return _ID.sub(r"…\1", text)
