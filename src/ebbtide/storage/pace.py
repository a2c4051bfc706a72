"""The rate of requests to a storage that may ask to slow down.

Additive increase, multiplicative decrease, as in TCP (RFC 5681). Several processes that do so share
the capacity of a storage without communication. There is no limit until the storage asks to slow
down for the first time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

RATE_MIN: Final = 100.0
"""Requests per second that are always allowed."""
RATE_MAX: Final = 1e6
RATE_UNKNOWN: Final = 2_000.0
"""The least rate that is assumed if a storage refuses requests before it was observed for long. At
that time requests under way were not counted, and lowering a rate costs less than raising it."""
DECREASE: Final = 0.7
"""The factor of a decrease, closer to 1 than TCP's half. One call asks for a thousand requests at
once, and half of the rate is too much to lose for one call."""
RECOVERY_SECONDS: Final = 10.0
"""The time in which the rate returns to its value before a decrease. After twice this time without
another decrease the storage has more capacity, and the steps double in each half of this time."""
WINDOW_SECONDS: Final = 5.0
"""The first decrease starts from the rate that was measured over this period."""


class Pace:
    """The request rate of all threads of this process to one storage. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._step = 0.0
        self._changed_at = -1.0
        self._next = 0.0
        self._answered: deque[tuple[float, int]] = deque()

    @property
    def rate(self) -> float | None:
        """The requests per second that are allowed now; None if there is no limit."""
        return self._rate

    def wait(self, amount: int) -> float:
        """Waits until `amount` requests may be sent. Returns that time, for `slow_down`."""
        while delay := self.delay(amount):
            self._sleep(delay)
        return self._clock()

    def delay(self, amount: int) -> float:
        """Returns 0 if `amount` requests may be sent now, and counts them as sent. Otherwise
        returns the seconds until another call is worthwhile."""
        with self._lock:
            now = self._clock()
            if self._rate is not None:
                if now < self._next:
                    return self._next - now
                self._next = now + amount / self._rate
            return 0.0

    def answered(self, amount: int) -> None:
        """Records that `amount` requests were answered and none refused. Raises the limit a little,
        if there is one."""
        with self._lock:
            now = self._clock()
            self._answered.append((now, amount))
            while self._answered[0][0] < now - WINDOW_SECONDS:
                self._answered.popleft()
            if self._rate is not None:
                quiet = now - self._changed_at - 2 * RECOVERY_SECONDS
                step = self._step * 2 ** max(0.0, 2 * quiet / RECOVERY_SECONDS)
                self._rate = min(RATE_MAX, self._rate + step * amount / self._rate)

    def slow_down(self, began: float) -> None:
        """Lowers the rate: the storage asked to slow down for a request that began at `began`. A
        request that began before the last decrease says nothing about the rate since then."""
        with self._lock:
            if began <= self._changed_at:
                return
            now = self._clock()
            peak = self._measured(now) if self._rate is None else self._rate
            self._rate = max(RATE_MIN, peak * DECREASE)
            self._step = self._rate * (1 / DECREASE - 1) / RECOVERY_SECONDS
            self._changed_at = now

    def _measured(self, now: float) -> float:
        """Returns the answered requests per second of the last WINDOW_SECONDS, and at least
        RATE_UNKNOWN if less than half of this period was observed."""
        recent = [(at, amount) for at, amount in self._answered if at >= now - WINDOW_SECONDS]
        if not recent:
            return RATE_UNKNOWN
        seen_for = now - recent[0][0]
        rate = sum(amount for _, amount in recent) / max(1.0, seen_for)
        return rate if seen_for > WINDOW_SECONDS / 2 else max(rate, RATE_UNKNOWN)
