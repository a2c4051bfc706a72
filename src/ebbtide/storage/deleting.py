"""Deletes objects of a remote storage: many in one call, as fast as the storage permits.

obstore takes a key that the answer of S3's bulk delete does not name for a deleted one. So this
request is one of our own (`keys`), and counts as done if the answer confirms every key. Otherwise
its first failure stands for all keys. The other keys were deleted or not, and a second attempt
cannot tell a key that was absent from a key that the first attempt deleted. S3's bulk delete
confirms absent keys, so that this does not matter there. Azure reports absent keys. Its keys are
therefore deleted one by one, and not 256 in one request.

Not for: which addresses are allowed, or how many calls go on at once (`remote`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Final
from xml.etree import ElementTree

import obstore

from ebbtide.storage import clients, keys
from ebbtide.storage.asking import FAILURES, FailedAnswer
from ebbtide.storage.base import DeleteOutcome
from ebbtide.storage.failures import StorageFailure, is_throttled
from ebbtide.storage.pace import Pace

_TRIES_MAX: Final = 5
_PATIENCE_SECONDS: Final = 600.0
"""How long a call is repeated while the storage is too busy for it."""
_FAILURES_MAX: Final = 12
"""Failed calls in a row before single keys are tried. If one key of a thousand fails, ten failed
calls find it."""
_PROBES: Final = 12
"""Keys of each part that are tried one by one before all keys count as failed."""
_PROBES_FIRST: Final = 2
"""Keys of each half that are tried one by one if the first call, for all keys, failed."""
_BULK_SCHEMES: Final = ("s3:", "memory:")
"""The storages whose bulk delete confirms absent keys."""
_KEYS_AT_ONCE: Final = 16
"""Single deletes that one call has under way."""


@lru_cache(maxsize=64)
def deletes_of(url: str, options: tuple[tuple[str, str], ...]) -> Deletes:
    """Returns the `Deletes` of a storage. All callers in this process share it."""
    return Deletes(url, options, Pace())


@dataclass(slots=True)
class Deletes:
    """Deletes from one storage. Thread-safe."""

    url: str
    options: tuple[tuple[str, str], ...]
    pace: Pace
    _has_bulk: bool = field(init=False)

    def __post_init__(self) -> None:
        self._has_bulk = self.url.startswith(_BULK_SCHEMES)

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

    def send(self, addresses: Sequence[str]) -> StorageFailure | None:
        """Sends one delete for all the addresses. Returns its failure, or None if the storage
        confirms all of them."""
        if self._has_bulk and self.url.startswith("s3:"):
            return self._send_in_bulk(addresses)
        client = clients.connect(self.url, self.options, tries_again=False, in_bulk=self._has_bulk)
        try:
            obstore.delete(client, list(addresses))
        except clients.ERRORS as error:
            return StorageFailure.of(error)
        return None

    def _send_in_bulk(self, addresses: Sequence[str]) -> StorageFailure | None:
        bucket, root = keys.bucket_of(self.url, self.options)
        try:
            refused = bucket.delete([(root + each, "") for each in addresses], tries=1)
        except FAILURES as error:
            return _failure_of(error)
        for code, message in refused.values():
            text = ": ".join(filter(None, (code, message)))
            return StorageFailure(text, None, code, is_network=False, is_absent=False)
        return None

    def is_single(self, failure: StorageFailure | None = None) -> bool:
        """Whether each key needs a call of its own. Asked with the failure of a bulk delete: a
        storage that has none, as Google's S3 interface, is sent none from then on."""
        if failure is not None and (failure.status == 501 or failure.code == "NotImplemented"):
            self._has_bulk = False
        return not self._has_bulk


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
        self._forget(addresses)
        if not self.deletes.is_single():
            failure = self._try(addresses, tries=_TRIES_MAX)
            if not self.deletes.is_single(failure):
                self._halve(addresses, failure)
                return
        self._delete_each(addresses)

    def _halve(self, addresses: Sequence[str], failure: StorageFailure | None) -> None:
        """Finds the failing keys of a bulk delete of all addresses, whose failure is given.

        A failed call is halved until the failing keys are found. If all remaining keys seem to
        fail, they are `failed` without further calls.
        """
        waiting = [addresses]
        failures = 0
        while waiting:
            part = self._left(waiting.pop())
            if not part:
                continue
            is_whole = len(part) == len(addresses)
            if not is_whole:
                failure = self._try(part, tries=_TRIES_MAX)
            # A throttled call is not halved: the storage asks for fewer requests, not for more.
            is_busy = failure is not None and failure.is_throttled
            if failure is None or is_busy or len(part) == 1:
                self._record(part, failure)
            else:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            if failure is None or is_busy or failure.is_absent:
                failures = 0
                continue
            failures += 1
            if is_whole or failures >= _FAILURES_MAX:
                failures = 0
                if self._do_all_fail(waiting, _PROBES_FIRST if is_whole else _PROBES):
                    self._record(self._left(addresses), failure)

    def _do_all_fail(self, parts: Iterable[Sequence[str]], probes: int) -> bool:
        """Tries random keys of each waiting part one by one. Returns whether all of them fail.

        Failing keys are often neighbours, and keys far from them may succeed. Therefore each part
        is tried.
        """
        for part in list(parts):
            left = self._left(part)
            for address in random.sample(left, min(probes, len(left))):
                failure = self._try([address], tries=1)
                if failure is not None and failure.is_throttled:
                    return False
                self._record([address], failure)
                if failure is None or failure.is_absent:
                    return False
        return True

    def _delete_each(self, addresses: Sequence[str]) -> None:
        """Deletes the addresses one by one, several at a time.

        If a few random keys all fail, the others are `failed` without calls. If the storage is too
        busy for one key, keys that have not begun are left for later.
        """
        busy: list[StorageFailure] = []

        def one(address: str, tries: int = _TRIES_MAX) -> StorageFailure | None:
            failure = busy[0] if busy else self._try([address], tries=tries)
            if failure is not None and failure.is_throttled:
                busy.append(failure)
            self._record([address], failure)
            return failure

        again: list[str] = []  # one try is not enough for these
        for number, address in enumerate(random.sample(addresses, min(len(addresses), _PROBES))):
            failure = one(address, 1 if number else _TRIES_MAX)
            if failure is None or failure.is_absent or failure.is_throttled:
                self._forget(again)
                break
            if number and failure.is_transient:
                again.append(address)
        else:
            self._record(self._left(addresses), failure)
        with ThreadPoolExecutor(_KEYS_AT_ONCE) as pool:
            list(pool.map(one, self._left(addresses)))

    def _try(self, addresses: Sequence[str], *, tries: int) -> StorageFailure | None:
        """Sends one delete for all the addresses together, and repeats it if the network or the
        storage failed. Returns the last failure, or None."""
        attempt = 0
        while True:
            attempt += 1
            failure = self.deletes.send(addresses)
            if failure is None or (failure.is_absent and len(addresses) == 1):
                return failure
            if len(addresses) > 1 or not failure.is_refused:
                self._uncertain.update(addresses)
            if not failure.is_transient or attempt >= tries:
                return failure
            time.sleep(0.2 * 2**attempt)

    def _record(self, addresses: Iterable[str], failure: StorageFailure | None) -> None:
        for address in addresses:
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
