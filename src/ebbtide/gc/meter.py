"""The progress of a step of a run: one counter, to which tasks add.

Tasks call `advance`, which takes almost no time. Code that shows the progress reads the counter at
intervals. Spark's executors count in their own processes, and the driver does not get their counts:
`spark` reads how many tasks have ended instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final


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
    """Adds a number of units that are done."""
    _own.count += count


class Meter:
    """The progress of one engine. `begun` is the number of counts begun so far, by which a reader
    tells one step from the next. `awaited` is what the work waits for now, or empty."""

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
