"""The named steps of a run: measures the time of each step, and calls an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

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
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
        self._hold.check()
        self._observer(name, "end")

    def seconds(self) -> dict[str, float]:
        """Returns the seconds that each step has taken so far."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}
