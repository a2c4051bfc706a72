"""A lock that threads get in the order in which they asked for it.

SQLite allows one writer at a time and has no queue: a waiting connection polls, with pauses of up
to a tenth of a second. While other threads wrote without a pause, one commit polled without success
for most of a minute. Not for: other processes, which still poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class WriteQueue:
    """A first-come, first-served lock for threads. It is not reentrant."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[Lock] = deque()

    @contextmanager
    def turn(self, seconds_max: float) -> Iterator[None]:
        """Holds the lock for the block. Raises TimeoutError if the lock is not free in time."""
        self._take(seconds_max)
        try:
            yield
        finally:
            self._pass_on()

    def _take(self, seconds_max: float) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            called = Lock()
            called.acquire()
            self._waiting.append(called)
        try:
            in_time = called.acquire(timeout=seconds_max)
        except BaseException:  # an interrupt; if the lock came meanwhile, it is passed on
            if not self._leave(called):
                self._pass_on()
            raise
        if not in_time and self._leave(called):
            raise TimeoutError

    def _leave(self, called: Lock) -> bool:
        """Leaves the queue. Returns false if the lock had been passed to this thread already."""
        with self._guard:
            if called not in self._waiting:
                return False
            self._waiting.remove(called)
            return True

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
