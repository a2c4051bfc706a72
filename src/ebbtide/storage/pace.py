"""How fast to ask a storage that may ask to slow down.

Additive increase, multiplicative decrease, as TCP does it (RFC 5681): several processes that each
do so share what a storage gives without speaking to each other. Nothing is limited until the
storage says so for the first time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

RATE_MIN: Final = 100.0
"""Requests a second that are always allowed."""
RATE_MAX: Final = 1e6
RATE_UNKNOWN: Final = 2_000.0
"""What a storage is taken to give at least that refuses before it was seen for long: what is under
way was not counted then, and coming down costs less than coming up."""
DECREASE: Final = 0.7
"""By less than TCP: a call asks for a thousand at once, and half is too much to lose for one."""
RECOVERY_SECONDS: Final = 10.0
"""So long it takes to come back to the rate before a decrease. After twice that time without
another one the storage has more to give, and the steps grow: they double in half of it."""
WINDOW_SECONDS: Final = 5.0
"""Over so long the rate is measured from which the first decrease starts."""


class Pace:
    """The pace of all who ask one storage, in this process. Thread-safe."""

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
        """Requests a second that are allowed at this moment; None for as many as come."""
        return self._rate

    def wait(self, amount: int) -> float:
        """Wait until so many requests may be sent; when that was, for `slow_down`."""
        while delay := self.delay(amount):
            self._sleep(delay)
        return self._clock()

    def delay(self, amount: int) -> float:
        """Seconds until it is worth asking this again; 0 where so many may be sent now."""
        with self._lock:
            now = self._clock()
            if self._rate is not None:
                if now < self._next:
                    return self._next - now
                self._next = now + amount / self._rate
            return 0.0

    def answered(self, amount: int) -> None:
        """So many requests were answered, and none refused: a little more may be asked."""
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
        """The storage asked to slow down, of a request that began then. What began before the last
        decrease says nothing of the rate since."""
        with self._lock:
            if began <= self._changed_at:
                return
            now = self._clock()
            peak = self._measured(now) if self._rate is None else self._rate
            self._rate = max(RATE_MIN, peak * DECREASE)
            self._step = self._rate * (1 / DECREASE - 1) / RECOVERY_SECONDS
            self._changed_at = now

    def _measured(self, now: float) -> float:
        """Requests a second that were answered of late."""
        recent = [(at, amount) for at, amount in self._answered if at >= now - WINDOW_SECONDS]
        if not recent:
            return RATE_UNKNOWN
        seen_for = now - recent[0][0]
        rate = sum(amount for _, amount in recent) / max(1.0, seen_for)
        return rate if seen_for > WINDOW_SECONDS / 2 else max(rate, RATE_UNKNOWN)
