"""Online reclaim: deletes objects that no commit ever had, one lease after they lost their last
reference.

Each step is a transaction of bounded size. After any step another process can continue, and any
number of processes can work at the same time. Not for: objects that were ever committed, or files
that no table names. The collector deletes these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from threading import Event, Thread
from typing import Final

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.settings import Settings
from ebbtide.storage.base import Outcome
from ebbtide.store.collecting.roots import drop_ended_writes, drop_gone_branches, has_gone_branches
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Metadata
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.claims import (
    Backlog,
    Claimed,
    claim,
    forget,
    is_due,
    put_back,
    read_backlog,
    take_apart,
)
from ebbtide.store.repositories.promises import promised
from ebbtide.store.repositories.queries import RepositoryInfo, list_repositories

BATCH_ADDRESSES: Final = 1000
PASSES_PER_HOUSEKEEPING: Final = 15
"""One pass in this many also looks for rows whose time has ended. The other passes only handle
addresses that are due, and dropped tokens."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The counts of one or more steps.

    `deleted_bytes` has the sizes that are known. `missing_count` are objects that were not there.
    `failed_count` are failed deletes, which are tried again. `dropped_count` are staged rows of
    dropped tokens. `ended_count` are registrations and tokens that ended.
    """

    deleted_count: int = 0
    deleted_bytes: int = 0
    missing_count: int = 0
    failed_count: int = 0
    dropped_count: int = 0
    ended_count: int = 0

    def __add__(self, other: Reclaimed) -> Reclaimed:
        return Reclaimed(
            self.deleted_count + other.deleted_count,
            self.deleted_bytes + other.deleted_bytes,
            self.missing_count + other.missing_count,
            self.failed_count + other.failed_count,
            self.dropped_count + other.dropped_count,
            self.ended_count + other.ended_count,
        )


Observer = Callable[[Reclaimed], None]


class Reclaimer:
    """Reclaims in all repositories of a store. For use by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._metadata: Metadata = store.metadata
        self._settings: Settings = store.settings
        self._contexts: dict[str, RepositoryContext] = {}

    def backlog(self) -> tuple[Backlog, datetime]:
        """Returns the backlog of the store, and the database's time."""
        with self._metadata.snapshot() as tx:
            return read_backlog(tx), tx.now()

    def once(self, observer: Observer | None = None, stopping: Event | None = None) -> Reclaimed:
        """Reclaims everything that can be reclaimed now. Returns the sum of all steps.

        `observer` is called after each step, and `stopping` ends the work after a step. Raises
        Failed `database_error`. If a storage refuses a delete, it is counted, and tried again
        later.
        """
        total = Reclaimed()
        for steps in ((self._housekeep,), (self._take_apart, self._delete_batch)):
            for done in _in_turn(steps, stopping):
                total += done
                if observer is not None:
                    observer(done)
        return total

    def due(self, observer: Observer, stopping: Event) -> None:
        """Reclaims what is due, without looking for ended rows. Raises as `once` does."""
        with self._metadata.snapshot() as tx:
            if not is_due(tx):
                return
        for done in _in_turn((self._take_apart, self._delete_batch), stopping):
            observer(done)

    def _housekeep(self) -> Reclaimed | None:
        """Drops ended rows: registrations of writes, upload tokens, and gone branches.

        In each repository it drops at most a thousand registrations and a thousand tokens. Returns
        None if there were no such rows.
        """
        count = 0
        found = False
        for info in self._repositories():
            ended, branches = self._housekeep_in(info)
            count += ended
            found = found or branches
        return Reclaimed(ended_count=count) if count or found else None

    def _housekeep_in(self, info: RepositoryInfo) -> tuple[int, bool]:
        repository_id = info.repository_id
        with self._metadata.snapshot() as tx:
            trash_time = promised(tx, self._settings).trash_time
            gone = has_gone_branches(tx, repository_id, trash_time=trash_time)
        with self._metadata.transaction() as tx:
            settings = promised(tx, self._settings)
            if gone:
                tx.lock_repository(repository_id, "exclusive", trashed=True)
                drop_gone_branches(tx, repository_id, trash_time=settings.trash_time)
            ended = drop_ended_writes(
                tx, repository_id, lease_ttl=settings.lease_ttl, amount=BATCH_ADDRESSES
            )
        return ended, gone

    def _take_apart(self) -> Reclaimed | None:
        with self._metadata.transaction() as tx:
            count = take_apart(tx, lease_ttl=self._settings.lease_ttl, amount=BATCH_ADDRESSES)
        return None if count is None else Reclaimed(dropped_count=count)

    def _delete_batch(self) -> Reclaimed | None:
        """Claims due addresses, deletes their objects, and forgets them. Returns None if nothing is
        due."""
        claim_id = new_id()
        with self._metadata.transaction() as tx:
            claimed, count = claim(
                tx, claim_id, lasts=self._settings.reclaim_claim_ttl, amount=BATCH_ADDRESSES
            )
        if not count:
            return None
        infos = {info.repository_id: info for info in self._repositories()}
        total = Reclaimed()
        for repository_id, group in groupby(claimed, key=attrgetter("repository_id")):
            # If the repository is gone, a run deletes all of it.
            if repository_id in infos:
                context = self._context_of(infos[repository_id])
                total += self._delete_in(context, claim_id, list(group))
        return total

    def _repositories(self) -> list[RepositoryInfo]:
        """Returns the repositories that are not gone. Rows of trashed repositories end too."""
        with self._metadata.snapshot() as tx:
            now, trash_time = tx.now(), promised(tx, self._settings).trash_time
            return [
                info
                for info in list_repositories(tx)
                if info.state_at(now, trash_time=trash_time) is not LifecycleState.GONE
            ]

    def _context_of(self, info: RepositoryInfo) -> RepositoryContext:
        if info.repository_id not in self._contexts:
            self._contexts[info.repository_id] = self._store.context_of(info)
        return self._contexts[info.repository_id]

    def _delete_in(
        self, context: RepositoryContext, claim_id: str, claimed: Sequence[Claimed]
    ) -> Reclaimed:
        outcomes = self._delete(context, claimed)
        by_outcome: dict[Outcome, list[Claimed]] = {"deleted": [], "missing": [], "failed": []}
        for each in claimed:
            by_outcome[outcomes[each.address]].append(each)
        deleted, missing, failed = by_outcome.values()
        with self._metadata.transaction() as tx:
            gone = [each.address for each in (*deleted, *missing)]
            forget(tx, claim_id, context.repository_id, gone)
            put_back(tx, claim_id, failed)
        return Reclaimed(
            deleted_count=len(deleted),
            deleted_bytes=sum(each.size_bytes or 0 for each in deleted),
            missing_count=len(missing),
            failed_count=len(failed),
        )

    def _delete(self, context: RepositoryContext, claimed: Sequence[Claimed]) -> dict[str, Outcome]:
        """Deletes the objects, and their versions if the settings say so. Returns the outcome of
        each address. It is `failed` while a version is left."""
        addresses, storage = [each.address for each in claimed], context.storage
        try:
            context.touch_owner()
            found = {each.address: each.outcome for each in storage.delete(addresses)}
            if self._settings.delete_versions and storage.deletes_versions:
                gone = [address for address in addresses if found[address] != "failed"]
                left = [each for each in storage.delete_versions(gone) if each.outcome == "failed"]
                found.update({each.address: each.outcome for each in left})
        except EbbtideError as error:
            # Some objects may be deleted by now. The next try finds them missing.
            name = context.info.name
            _log.warning("reclaiming in %s stopped, and is tried again: %s", name, error.message)
            return dict.fromkeys(addresses, "failed")
        return found


def _in_turn(
    steps: Sequence[Callable[[], Reclaimed | None]], stopping: Event | None
) -> Iterator[Reclaimed]:
    """Runs the steps in turn until none has work. Yields the result of each.

    The steps alternate, so that a dropped token with a million rows does not delay addresses that
    are due.
    """
    is_busy = True
    while is_busy:
        is_busy = False
        for step in steps:
            if stopping is not None and stopping.is_set():
                return
            done = step()
            if done is not None:
                is_busy = True
                yield done


class ReclaimThread:
    """Reclaims in the background, every EBBTIDE_RECLAIM_INTERVAL, until stopped."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._reclaimer = Reclaimer(store)
        self._interval_seconds = store.settings.reclaim_interval.total_seconds()
        self._observer = observer
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="reclaim", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread after the step that is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        passes = 0
        while not self._stopping.wait(self._interval_seconds):
            try:
                if passes % PASSES_PER_HOUSEKEEPING == 0:
                    self._reclaimer.once(self._observer, self._stopping)
                else:
                    self._reclaimer.due(self._observer, self._stopping)
            except EbbtideError as error:
                # The database may not answer for a while. The next pass finds everything unchanged.
                _log.warning("reclaiming stopped for now: %s", error.message)
            except Exception:  # noqa: BLE001 - logged, and tried again
                # A defect must not end reclaiming for as long as the server runs.
                _log.exception("reclaiming stopped for now")
            passes += 1
