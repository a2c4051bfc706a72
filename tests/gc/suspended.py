"""Operations that stop half-way, each in a thread of its own, until a test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ebbtide.errors import EbbtideError
from tests.gc.lines import Contents, Outcome

WAIT_SECONDS_MAX = 120.0

_current = threading.local()


class Suspended:
    """An operation that stops at a place, once, before what happens there."""

    def __init__(self, place: str, work: Callable[[], dict[str, Contents]]) -> None:
        self.outcome = Outcome()
        self._place = place
        self._work = work
        self._stopped = threading.Event()
        self._let_go = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Suspended:
        """Run to the place."""
        assert self.begin(), f"{self._place} was never reached: {self.outcome}"
        return self

    def begin(self) -> bool:
        """Run to the place, or to the end; whether it came to the place."""
        self._thread.start()
        assert self._stopped.wait(WAIT_SECONDS_MAX)
        return not self._ended.is_set()

    def finish(self) -> Outcome:
        """Go on to the end."""
        self._let_go.set()
        self._thread.join(WAIT_SECONDS_MAX)
        assert not self._thread.is_alive()
        return self.outcome

    def _run(self) -> None:
        _current.operation = self
        try:
            self.outcome = Outcome(reads=self._work())
        except EbbtideError as error:
            self.outcome = Outcome(error=error)
        finally:
            self._ended.set()
            self._stopped.set()

    def reached(self, place: str) -> None:
        """Stop here if this is the place."""
        if place == self._place and not self._stopped.is_set():
            self._stopped.set()
            assert self._let_go.wait(WAIT_SECONDS_MAX)


def stop_here(place: str) -> None:
    """The operation of this thread, if it is one that stops, has come to a place."""
    operation = getattr(_current, "operation", None)
    if operation is not None:
        operation.reached(place)


def stop_before(patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Make a function, or a method of a class, a place to stop before: `name` is the place's."""
    original: Callable[..., Any] = getattr(owner, name)

    def stopping(*args: Any, **kwargs: Any) -> Any:  # whatever the original takes
        stop_here(name)
        return original(*args, **kwargs)

    patch.setattr(owner, name, stopping)


def slow_content(data: bytes) -> Iterator[bytes]:
    """Content of which the first byte has been sent at the place `content`."""
    yield data[:1]
    stop_here("content")
    yield data[1:]
