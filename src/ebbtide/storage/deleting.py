"""Deletes objects of a remote storage: many in one call, as fast as the storage permits.

Not for: which addresses are allowed, or how many calls go on at once (`remote`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import obstore

from ebbtide.storage import clients
from ebbtide.storage.base import DeleteOutcome, Outcome
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
_NOT_IMPLEMENTED: Final = ("NotImplemented", "status code: 501")


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
    _in_bulk: bool = True

    def delete(self, addresses: Sequence[str]) -> list[DeleteOutcome]:
        """Deletes at most 1000 objects, as fast as the storage permits for all callers together. If
        the storage is too busy for ten minutes, the outcome is `failed` with `throttled …`."""
        outcomes: dict[str, DeleteOutcome] = {}
        left = list(addresses)
        refused_at: float | None = None
        while left:
            began = self.pace.wait(len(left))
            found = _Batch(self, left).delete()
            outcomes.update(found)
            busy = [each.address for each in found.values() if clients.is_throttled(each.error)]
            if not busy:
                self.pace.answered(len(left))
                break
            self.pace.slow_down(began)
            refused_at = began if refused_at is None else refused_at
            if time.monotonic() - refused_at > _PATIENCE_SECONDS:
                break
            left = busy
        return [outcomes[address] for address in addresses]

    def call(self, addresses: Sequence[str], *, tries: int) -> None:
        """Sends one delete, and repeats it if the network or the storage failed: a delete may be
        repeated. Raises the exceptions of obstore."""
        attempt = 0
        while True:
            attempt += 1
            in_bulk = self._in_bulk
            client = clients.connect(self.url, self.options, tries_again=False, in_bulk=in_bulk)
            try:
                obstore.delete(client, list(addresses))
                return
            except clients.ERRORS as error:
                text = clients.explained(error)
                if in_bulk and any(word in text for word in _NOT_IMPLEMENTED):
                    # No bulk delete, as in Google's S3 interface: one request per key from now on.
                    self._in_bulk = False
                    continue
                is_final = clients.is_throttled(text) or not clients.is_transient(text)
                if is_final or attempt >= tries:
                    raise
            time.sleep(0.2 * 2**attempt)


@dataclass(slots=True)
class _Batch:
    """Addresses that are deleted in one call, or in smaller ones: a bulk delete that fails does not
    say which keys failed."""

    deletes: Deletes
    addresses: Sequence[str]
    outcomes: dict[str, DeleteOutcome] = field(default_factory=dict)

    def delete(self) -> dict[str, DeleteOutcome]:
        """Deletes the addresses, and returns the outcome of each.

        A failed call is halved until the failing keys are found. If all remaining keys seem to
        fail, they are `failed` without further calls.
        """
        waiting = [self.addresses]
        failures = 0
        while waiting:
            part = [each for each in waiting.pop() if each not in self.outcomes]
            if not part:
                continue
            outcome, text = self._try(part, tries=_TRIES_MAX)
            is_whole = len(part) == len(self.addresses)
            # A throttled call is not halved: the storage asks for fewer requests, not for more.
            if outcome == "deleted" or len(part) == 1 or clients.is_throttled(text):
                self._record(part, outcome, text)
            else:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            if outcome != "failed" or clients.is_throttled(text):
                failures = 0
                continue
            failures += 1
            if is_whole or failures >= _FAILURES_MAX:
                failures = 0
                if self._do_all_fail(waiting, _PROBES_FIRST if is_whole else _PROBES):
                    self._record(self._left(self.addresses), outcome, text)
        return self.outcomes

    def _do_all_fail(self, parts: Iterable[Sequence[str]], probes: int) -> bool:
        """Tries random keys of each waiting part one by one. Returns whether all of them fail.

        Failing keys are often neighbours, and keys far from them may succeed. Therefore each part
        is tried.
        """
        for part in list(parts):
            left = self._left(part)
            for address in random.sample(left, min(probes, len(left))):
                outcome, text = self._try([address], tries=1)
                if clients.is_throttled(text):
                    return False
                self._record([address], outcome, text)
                if outcome != "failed":
                    return False
        return True

    def _left(self, addresses: Iterable[str]) -> list[str]:
        return [each for each in addresses if each not in self.outcomes]

    def _try(self, addresses: Sequence[str], *, tries: int) -> tuple[Outcome, str | None]:
        """Returns the outcome of one call for all the addresses together, and its error's text."""
        try:
            self.deletes.call(addresses, tries=tries)
        except FileNotFoundError:
            return "missing", None
        except clients.ERRORS as error:
            return "failed", clients.explained(error)
        return "deleted", None

    def _record(self, addresses: Iterable[str], outcome: Outcome, text: str | None) -> None:
        self.outcomes.update((each, DeleteOutcome(each, outcome, text)) for each in addresses)
