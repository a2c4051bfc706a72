"""How far a step of a run has come: one count, which whoever works on it adds to.

Tasks call `advance`, which costs nothing to speak of; who shows the count reads it now and then.
What Spark's executors count stays with them: `spark` reads how many tasks have ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reading:
    """So many `done` of `total` (None where nobody knows), in `seconds`. With `is_about`, the total
    is what an earlier run found."""

    unit: str
    done: int
    total: int | None
    is_about: bool
    seconds: float

    @property
    def per_second(self) -> float:
        """How many were done a second."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at that rate; None where that is not known."""
        if not self.done or self.total is None or self.total < self.done:
            return None
        return (self.total - self.done) / self.per_second if self.per_second else None


class _Own:
    """What this process has counted."""

    count = 0


_own: Final = _Own()


def advance(count: int) -> None:
    """Count so many more as done."""
    _own.count += count


class Meter:
    """The count of one engine. `begun` tells one step's from another's."""

    def __init__(self) -> None:
        self.begun = 0
        self._unit = ""
        self._total: int | None = None
        self._is_about = False
        self._before = 0
        self._started = 0.0

    def begin(
        self, unit: str, total: int | None = None, *, is_about: bool = False, done: int = 0
    ) -> None:
        """Count anew, `unit` by `unit`, from those that are `done` already."""
        self._unit, self._total, self._is_about = unit, total, is_about
        self._before = _own.count - done
        self._started = time.monotonic()
        self.begun += 1

    def reading(self) -> Reading:
        """How far it has come since `begin`."""
        seconds = time.monotonic() - self._started
        done = _own.count - self._before
        return Reading(self._unit, done, self._total, self._is_about, seconds)
