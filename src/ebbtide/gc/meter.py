"""How far a step of a run has come: one count, to which every process that works on it adds.

Tasks call `advance`, which costs nothing to speak of; who shows the count reads it now and then.
Worker processes each have a cell of shared memory for it, and one more tells them to stop. What
Spark's executors count stays with them.
"""

from __future__ import annotations

import time
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from ebbtide.errors import Failed

_STOP: Final = 0
"""The cell that says whether to stop; the others are of one process each."""


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
    """What this process has counted, and where others see it."""

    def __init__(self) -> None:
        self.count = 0
        self.cells: Any = None  # shared memory, of which ctypes tells no type
        self.cell = 0


_own: Final = _Own()


def advance(count: int) -> None:
    """Count so many more as done. Failed `interrupted` in a worker process that is to stop."""
    if _own.cells is None:
        _own.count += count
        return
    _own.cells[_own.cell] += count
    check_wanted()


def check_wanted() -> None:
    """Failed `interrupted` in a worker process that is to stop: called where a task can end."""
    if _own.cells is not None and _own.cells[_STOP]:
        raise Failed("interrupted", "the run was interrupted")


class Meter:
    """The count of one engine. `begun` tells one step's from another's."""

    def __init__(self) -> None:
        self.begun = 0
        self._unit = ""
        self._total: int | None = None
        self._is_about = False
        self._before = 0
        self._started = 0.0
        self._cells: Any = None  # as above

    def begin(
        self, unit: str, total: int | None = None, *, is_about: bool = False, done: int = 0
    ) -> None:
        """Count anew, `unit` by `unit`, from those that are `done` already."""
        self._unit, self._total, self._is_about = unit, total, is_about
        self._before = self._counted() - done
        self._started = time.monotonic()
        self.begun += 1

    def reading(self) -> Reading:
        """How far it has come since `begin`."""
        seconds = time.monotonic() - self._started
        done = self._counted() - self._before
        return Reading(self._unit, done, self._total, self._is_about, seconds)

    def share(self, count: int) -> tuple[Any, Any]:
        """What `count` new processes are given to `join` with; those before are gone."""
        spawn = get_context("spawn")
        known = self._counted()
        self._cells = spawn.RawArray(c_int64, 1 + count)
        self._before -= known - self._counted()
        return self._cells, spawn.Value("i", 0)

    def stop(self) -> None:
        """Tell the processes to end where they can."""
        if self._cells is not None:
            self._cells[_STOP] = 1

    def _counted(self) -> int:
        return _own.count + (0 if self._cells is None else sum(self._cells[_STOP + 1 :]))


def join(cells: Any, joined: Any) -> None:
    """In a worker process, once: count where the parent sees it."""
    with joined.get_lock():
        joined.value += 1
        _own.cell = joined.value
    _own.cells = cells
