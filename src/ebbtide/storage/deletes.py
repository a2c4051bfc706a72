"""Deletes objects of a remote storage: many in one call, as fast as the storage permits.

obstore takes a key that the answer of S3's bulk delete does not name for a deleted one. So this
request is one of our own (`requests`), and a key counts as deleted only if the answer confirms it.
S3 confirms absent keys. Azure reports them, and in a bulk a second attempt could not tell a key
that was absent from a key that the first attempt deleted. Its keys are therefore deleted one by
one, and not 256 in one request.

A storage may ask to slow down. Additive increase, multiplicative decrease, as in TCP (RFC 5681):
several processes that do so share the capacity of a storage without communication. There is no
limit until the storage asks to slow down for the first time.

Not for: which addresses are allowed, or how many calls go on at once (`remote`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Final
from xml.etree import ElementTree

import obstore

from ebbtide.storage import clients, requests
from ebbtide.storage.base import DeleteOutcome
from ebbtide.storage.clients import StorageFailure, is_throttled
from ebbtide.storage.requests import FAILURES, FailedAnswer

_TRIES_MAX: Final = 5
_PATIENCE_SECONDS: Final = 600.0
"""How long a call is repeated while the storage is too busy for it."""
_PROBES: Final = 12
"""Keys that are tried one by one before all keys count as failed."""
_KEYS_AT_ONCE: Final = 16
"""Single deletes that one call has under way."""

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


@lru_cache(maxsize=64)
def deletes_of(url: str, options: tuple[tuple[str, str], ...]) -> Deletes:
    """Returns the `Deletes` of a storage. All callers in this process share it."""
    return Deletes(url, options, Pace())


@dataclass(slots=True)
class Deletes:
    """Deletes from one storage. Thread-safe. `has_bulk` says whether the storage has a call for
    many keys that confirms absent ones."""

    url: str
    options: tuple[tuple[str, str], ...]
    pace: Pace
    has_bulk: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_bulk = self.url.startswith("s3:")

    def delete(self, addresses: Sequence[str]) -> list[DeleteOutcome]:
        """Deletes at most 1000 objects, as fast as the storage permits for all callers together. If
        the storage is too busy for ten minutes, the outcome is `failed` with `throttled …`."""
        batch = _Batch(self)
        left = list(dict.fromkeys(addresses))
        refused_at: float | None = None
        while left:
            began = self.pace.wait(len(left))
            batch.delete(left)
            busy = [each for each in left if is_throttled(batch.outcomes[each].error)]
            if not busy:
                self.pace.answered(len(left))
                break
            self.pace.slow_down(began)
            refused_at = began if refused_at is None else refused_at
            if time.monotonic() - refused_at > _PATIENCE_SECONDS:
                break
            left = busy
        return [batch.outcomes[address] for address in addresses]

    def send(self, address: str) -> StorageFailure | None:
        """Sends the delete of one address. Returns its failure, or None if the storage confirms the
        delete."""
        if self.has_bulk:
            answer = self.send_in_bulk([address])
            return answer if isinstance(answer, StorageFailure) else answer.get(address)
        client = clients.connect(self.url, self.options, tries_again=False)
        try:
            obstore.delete(client, [address])
        except clients.ERRORS as error:
            return StorageFailure.of(error)
        return None

    def send_in_bulk(self, addresses: Sequence[str]) -> StorageFailure | dict[str, StorageFailure]:
        """Sends one delete for all the addresses. Returns the failure of the call, or of each
        address that the storage does not confirm. A storage that has no such call, as Google's S3
        interface, is sent none from then on."""
        bucket, root = requests.bucket_of(self.url, self.options)
        try:
            refused = bucket.delete([(root + each, "") for each in addresses], tries=1)
        except FAILURES as error:
            failure = _failure_of(error)
            if failure.status == 501 or failure.code == "NotImplemented":
                self.has_bulk = False
            return failure
        return {key.removeprefix(root): _refusal(*told) for (key, _), told in refused.items()}


@dataclass(slots=True)
class _Batch:
    """The deletes of the same addresses, until each has its outcome.

    `_uncertain` are addresses that a failed attempt may have deleted. If such an address is absent
    later, this batch has deleted it: it is `deleted` and not `missing`.
    """

    deletes: Deletes
    outcomes: dict[str, DeleteOutcome] = field(default_factory=dict)
    _uncertain: set[str] = field(default_factory=set)

    def delete(self, addresses: Sequence[str]) -> None:
        """Deletes addresses and sets the outcome of each. An earlier outcome of one is replaced."""
        if not self.deletes.has_bulk:
            self._delete_each(addresses, tries=_TRIES_MAX)
        elif left := self._delete_in_bulk(addresses):
            self._delete_each(left, tries=1 if self.deletes.has_bulk else _TRIES_MAX)

    def _delete_in_bulk(self, addresses: Sequence[str]) -> Sequence[str]:
        """Deletes addresses in one call, and repeats it for those that the network or the storage
        failed.

        Returns the addresses that need calls of their own: those of a last call that failed as a
        whole, perhaps because of one of them. If the storage is too busy, there are none: it asks
        for fewer requests, not for more.
        """
        left = addresses
        attempt = 0
        while True:
            attempt += 1
            answer = self.deletes.send_in_bulk(left)
            failures = answer if isinstance(answer, dict) else dict.fromkeys(left, answer)
            for address in left:
                self._record(address, failures.get(address))
            again = [each for each in left if each in failures and failures[each].is_transient]
            self._uncertain.update(again)
            if not again or attempt == _TRIES_MAX:
                is_whole = isinstance(answer, StorageFailure) and not answer.is_throttled
                return left if is_whole else ()
            left = again
            time.sleep(0.2 * 2**attempt)

    def _delete_each(self, addresses: Sequence[str], *, tries: int) -> None:
        """Deletes the addresses one by one, several at a time. Tries the first one `tries` times.

        If a few random keys all fail, the others are `failed` without calls. If the storage is too
        busy for one key, keys that have not begun are left for later.
        """
        self._forget(addresses)
        busy: list[StorageFailure] = []

        def one(address: str, tries: int = _TRIES_MAX) -> StorageFailure | None:
            failure = busy[0] if busy else self._try(address, tries=tries)
            if failure is not None and failure.is_throttled:
                busy.append(failure)
            self._record(address, failure)
            return failure

        again: list[str] = []  # one try is not enough for these
        for number, address in enumerate(random.sample(addresses, min(len(addresses), _PROBES))):
            failure = one(address, 1 if number else tries)
            if failure is None or failure.is_absent or failure.is_throttled:
                self._forget(again)
                break
            if (number or tries == 1) and failure.is_transient:
                again.append(address)
        else:
            for address in self._left(addresses):
                self._record(address, failure)
        with ThreadPoolExecutor(_KEYS_AT_ONCE) as pool:
            list(pool.map(one, self._left(addresses)))

    def _try(self, address: str, *, tries: int) -> StorageFailure | None:
        """Deletes one address, and tries again if the network or the storage failed. Returns the
        last failure, or None."""
        attempt = 0
        while True:
            attempt += 1
            failure = self.deletes.send(address)
            if failure is None or failure.is_absent:
                return failure
            if not failure.is_refused:
                self._uncertain.add(address)
            if not failure.is_transient or attempt >= tries:
                return failure
            time.sleep(0.2 * 2**attempt)

    def _record(self, address: str, failure: StorageFailure | None) -> None:
        if failure is None or (failure.is_absent and address in self._uncertain):
            outcome = DeleteOutcome(address, "deleted")
        elif failure.is_absent:
            outcome = DeleteOutcome(address, "missing")
        else:
            outcome = DeleteOutcome(address, "failed", failure.explained)
        self.outcomes[address] = outcome

    def _left(self, addresses: Iterable[str]) -> list[str]:
        return [each for each in addresses if each not in self.outcomes]

    def _forget(self, addresses: Iterable[str]) -> None:
        for address in list(addresses):
            self.outcomes.pop(address, None)


def _refusal(code: str, message: str) -> StorageFailure:
    """Returns the failure of a key in the answer to a bulk delete. Without a code the answer is not
    whole, which is one of the network's failures."""
    text = ": ".join(filter(None, (code, message)))
    return StorageFailure(text, None, code, is_network=not code, is_absent=False)


def _failure_of(error: BaseException) -> StorageFailure:
    """Reads an exception of a request of our own. An answer that breaks off is one of the network's
    failures."""
    if isinstance(error, FailedAnswer):
        code, message = error.told()
        text = ": ".join(filter(None, (f"status {error.code}", code, message)))
        return StorageFailure(text, error.code, code, is_network=False, is_absent=False)
    if isinstance(error, HTTPException | ElementTree.ParseError | OSError):
        return StorageFailure(str(error), None, "", is_network=True, is_absent=False)
    return StorageFailure.of(error)


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
