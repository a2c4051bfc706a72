"""The named steps of a run: how long each took, and who is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from ebbtide.formats.base import RunHold

Event = Literal["start", "end"]
Observer = Callable[[str, Event], None]
"""Called with a step's name when it starts and when it has ended well."""


def silent(step: str, event: Event) -> None:
    """The observer that tells nobody."""


class Unheld:
    """The hold of one who holds nothing, and only looks."""

    run_epoch = 0

    def check(self) -> None:
        """Nothing is held that could be lost."""


class Steps:
    """Times the steps of one run, and checks after each that the run still holds its lease."""

    def __init__(
        self,
        hold: RunHold,
        observer: Observer = silent,
        *,
        name: Callable[[str], None] = lambda _step: None,
    ) -> None:
        """`name` hears of each step before it begins: it calls by that what the engine does."""
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
        """Seconds per step so far."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}
