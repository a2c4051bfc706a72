"""A lock that threads get in the order in which they asked for it.

SQLite allows one writer at a time and has no queue: a waiting connection polls, with pauses of up
to a tenth of a second. While other threads wrote without a pause, one commit polled without success
for most of a minute. Not for: other processes, which still poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

Carried = TypeVar("Carried")


class TurnTimeout(TimeoutError):
    """The lock was not free in time."""


@dataclass(eq=False, slots=True)
class _Place(Generic[Carried]):
    """The place of a waiting thread. `called` is locked until its turn comes."""

    called: Lock
    joins: bool
    carried: Carried | None = None


class WriteQueue(Generic[Carried]):
    """A first-come, first-served lock for threads. It is not reentrant.

    A thread can pass the lock on together with an object, if the next thread joins.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[_Place[Carried]] = deque()

    @contextmanager
    def turn(self, seconds_max: float) -> Iterator[None]:
        """Holds the lock for the block. Raises TurnTimeout if the lock is not free in time."""
        self._take(seconds_max, None)
        try:
            yield
        finally:
            self.pass_on()

    def join(self, seconds_max: float, interrupted: Callable[[Carried], None]) -> Carried | None:
        """Takes the lock. Returns the object that the previous thread passed on with it, or None.

        The caller passes the lock on by `pass_on` or `hand_over`. If an interrupt ends the wait
        when the lock and an object were passed to this thread already, `interrupted` is called with
        the object, and has to pass the lock on. Raises TurnTimeout if the lock is not free in
        time.
        """
        return self._take(seconds_max, interrupted)

    def hand_over(self, carried: Carried) -> bool:
        """Passes the lock on with an object, if the next thread joins. Returns false, and keeps the
        lock, if no thread waits or the next one does not join."""
        with self._guard:
            if not self._waiting or not self._waiting[0].joins:
                return False
            place = self._waiting.popleft()
            place.carried = carried
            place.called.release()
            return True

    def pass_on(self) -> None:
        """Passes the lock to the next thread."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().called.release()
            else:
                self._taken = False

    def _take(
        self, seconds_max: float, interrupted: Callable[[Carried], None] | None
    ) -> Carried | None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return None
            place = _Place[Carried](Lock(), joins=interrupted is not None)
            place.called.acquire()
            self._waiting.append(place)
        try:
            in_time = place.called.acquire(timeout=seconds_max)
        except BaseException:  # an interrupt; if the lock came meanwhile, it is passed on
            if not self._leave(place):
                if interrupted is None or place.carried is None:
                    self.pass_on()
                else:
                    interrupted(place.carried)
            raise
        if not in_time and self._leave(place):
            raise TurnTimeout
        return place.carried

    def _leave(self, place: _Place[Carried]) -> bool:
        """Leaves the queue. Returns false if the lock had been passed to this thread already."""
        with self._guard:
            if place not in self._waiting:
                return False
            self._waiting.remove(place)
            return True
