"""The named steps of a run: their times, an observer's calls, and the progress of the present one.

Tasks call `advance`, which takes almost no time. Code that shows the progress reads the counter at
intervals. Spark's executors count in their own processes, and the driver does not get their counts:
`spark` reads how many tasks have ended instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from ebbtide import interrupts, telemetry
from ebbtide.formats.base import RunHold

Event = Literal["start", "end"]
Observer = Callable[[str, Event], None]
"""Called with a step's name when the step starts, and when it has ended without an error."""


def silent(step: str, event: Event) -> None:
    """The observer that does nothing."""


class Unheld:
    """A hold without a lease, for operations that only read."""

    run_epoch = 0

    def check(self) -> None:
        """Does nothing: there is no lease that could be lost."""


class Steps:
    """Times the steps of one run, and checks after each that the run still holds its lease."""

    def __init__(
        self,
        hold: RunHold,
        observer: Observer = silent,
        *,
        name: Callable[[str], None] = lambda _step: None,
    ) -> None:
        """`name` is called with each step's name before the step begins, to name the engine's
        jobs."""
        self._name = name
        self._hold = hold
        self._observer = observer
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._observer(name, "start")
        self._name(name)
        started = time.monotonic()
        with telemetry.span(name):
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
        self._hold.check()
        self._observer(name, "end")

    def seconds(self) -> dict[str, float]:
        """Returns the seconds that each step has taken so far."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}


@dataclass(frozen=True, slots=True)
class ProgressReading:
    """The progress at one moment: `done` units out of `total`, in `seconds`. `total` is None if it
    is unknown. With `is_about`, it is an estimate: the number that an earlier run found. `awaited`
    is what the work waits for, in words, and empty if it goes on."""

    unit: str
    done: int
    total: int | None
    is_about: bool
    seconds: float
    awaited: str = ""

    @property
    def per_second(self) -> float:
        """Units done per second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the other units take at this rate, or None if that is unknown."""
        if not self.done or self.total is None or self.total < self.done:
            return None
        return (self.total - self.done) / self.per_second if self.per_second else None


class _Own:
    """The counter of this process."""

    count = 0


_own: Final = _Own()


def advance(count: int) -> None:
    """Adds a number of units that are done. Raises Interrupted as `interrupts.check` does."""
    _own.count += count
    interrupts.check()


class Meter:
    """The progress of one engine. `begun` is the number of counts begun so far; when it grows, a
    reader knows that a new step has begun. `awaited` is what the work waits for now, or empty."""

    def __init__(self) -> None:
        self.begun = 0
        self.awaited = ""
        self._unit = ""
        self._total: int | None = None
        self._is_about = False
        self._before = 0
        self._started = 0.0

    def begin(
        self, unit: str, total: int | None = None, *, is_about: bool = False, done: int = 0
    ) -> None:
        """Begins a new count. `unit` is a plural noun, such as "files". `done` units are already
        done."""
        self._unit, self._total, self._is_about = unit, total, is_about
        self._before = _own.count - done
        self._started = time.monotonic()
        self.begun += 1

    def reading(self) -> ProgressReading:
        """Returns the progress since `begin`."""
        seconds = time.monotonic() - self._started
        done = _own.count - self._before
        return ProgressReading(self._unit, done, self._total, self._is_about, seconds, self.awaited)
