"""Online reclaim: deletes objects that no commit ever had, one lease after they lost their last
reference.

A transaction that drops a reference records its address in `released`. The statements here claim
such addresses, and forget them when their objects are deleted. Each step is a transaction of
bounded size. After any step another process can continue, and any number of processes can work at
the same time. Not for: objects that were ever committed, or files that no table names. The
collector deletes these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from threading import Event, Thread
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.settings import Settings
from ebbtide.storage.base import Outcome
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import dropped_tokens, released, staged
from ebbtide.store.embedded import Store
from ebbtide.store.gc.run_metadata import drop_ended_writes, drop_gone_branches, has_gone_branches
from ebbtide.store.repositories.repository_rows import RepositoryInfo, list_repositories, promised
from ebbtide.store.staging.released import is_unleased, release, retain
from ebbtide.store.staging.staged_rows import DROPPED_COLUMNS, dropped_of

_BACKOFF_MIN: Final = timedelta(seconds=1)
_BACKOFF_MAX: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed address, to be deleted. `size_bytes` is None if the size is not known."""

    repository_id: str
    address: str
    size_bytes: int | None
    shared: bool
    attempt_count: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that is left to the reclaimer: the number of released addresses, the time of the
    oldest release, and the number of dropped tokens."""

    address_count: int
    oldest_at: datetime | None
    token_count: int


def is_due(tx: Transaction) -> bool:
    """Whether the reclaimer has work: an address is due, or a token was dropped."""
    now = tx.now()
    due = sa.select(released.c.address).where(released.c.due_at <= now, is_unleased(now))
    return any(
        tx.execute(query.limit(1)).first() is not None
        for query in (due, sa.select(dropped_tokens.c.token))
    )


def claim(
    tx: Transaction, claim_id: str, *, lasts: timedelta, amount: int
) -> tuple[list[Claimed], int]:
    """Claims at most `amount` due addresses for the time `lasts`. Returns them, and the number of
    addresses that were looked at.

    If a staged row still has an address, its release is taken back: the transaction that drops the
    row will release it again.
    """
    now = tx.now()
    rows = tx.execute(
        sa.select(
            released.c.repository_id,
            released.c.address,
            released.c.size_bytes,
            released.c.shared,
            released.c.attempt_count,
        )
        .where(released.c.due_at <= now, is_unleased(now))
        .order_by(released.c.due_at)
        .limit(amount)
        .with_for_update(skip_locked=True)
    ).all()
    claimed: list[Claimed] = []
    found = sorted(
        (Claimed(**row._mapping) for row in rows), key=attrgetter("repository_id", "address")
    )
    for repository_id, group in groupby(found, key=attrgetter("repository_id")):
        due = list(group)
        kept = referenced(tx, repository_id, [each.address for each in due if each.shared])
        retain(tx, repository_id, kept)
        mine = [each for each in due if each.address not in kept]
        _put_off(tx, repository_id, mine, until=now + lasts, claim_id=claim_id)
        claimed += mine
    return claimed, len(found)


def referenced(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> set[str]:
    """Returns which of these shared addresses a staged row has, under any token."""
    found: set[str] = set()
    for batch in in_batches(addresses):
        rows = tx.execute(
            sa.select(staged.c.address).where(
                staged.c.repository_id == repository_id,
                staged.c.address.in_(batch),
                staged.c.sharing.is_not(None),
            )
        )
        found.update(rows.scalars())
    return found


def forget(tx: Transaction, claim_id: str, repository_id: str, addresses: Iterable[str]) -> int:
    """Deletes the records of deleted addresses, if the claim still holds. Returns their number."""
    count = 0
    for batch in in_batches(sorted(addresses)):
        count += tx.execute(
            sa.delete(released).where(_mine(claim_id, repository_id, batch))
        ).rowcount
    return count


def put_back(tx: Transaction, claim_id: str, failed: Sequence[Claimed]) -> None:
    """Makes failed addresses due again, after 1 s at first. The wait doubles with each failure, up
    to an hour."""
    now = tx.now()
    for each in failed:
        wait = min(_BACKOFF_MIN * 2 ** min(each.attempt_count, 20), _BACKOFF_MAX)
        tx.execute(
            sa.update(released)
            .where(_mine(claim_id, each.repository_id, [each.address]))
            .values(claim_id=None, due_at=now + wait, attempt_count=each.attempt_count + 1)
        )


def _mine(claim_id: str, repository_id: str, addresses: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        released.c.repository_id == repository_id,
        released.c.address.in_(addresses),
        released.c.claim_id == claim_id,
    )


def _put_off(
    tx: Transaction,
    repository_id: str,
    claimed: Sequence[Claimed],
    *,
    until: datetime,
    claim_id: str,
) -> None:
    for batch in in_batches(each.address for each in claimed):
        tx.execute(
            sa.update(released)
            .where(released.c.repository_id == repository_id, released.c.address.in_(batch))
            .values(claim_id=claim_id, due_at=until)
        )


def take_apart(tx: Transaction, *, lease_ttl: timedelta, amount: int) -> int | None:
    """Releases the addresses of at most `amount` rows staged under one dropped token. Forgets the
    token when no row is left. Returns the number of rows, or None if nothing can be done now."""
    token = tx.execute(
        sa.select(dropped_tokens)
        .order_by(dropped_tokens.c.dropped_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).one_or_none()
    if token is None:
        return None
    under = sa.and_(staged.c.repository_id == token.repository_id, staged.c.token == token.token)
    # Rows that a commit has locked at this moment are left for the next call. Waiting for them
    # while holding other rows could be a deadlock.
    paths = (
        tx.execute(
            sa.select(staged.c.path)
            .where(under)
            .order_by(staged.c.path)
            .limit(amount)
            .with_for_update(skip_locked=True)
        )
        .scalars()
        .all()
    )
    for batch in in_batches(paths):
        rows = tx.execute(
            sa.delete(staged).where(under, staged.c.path.in_(batch)).returning(*DROPPED_COLUMNS)
        ).all()
        release(
            tx,
            token.repository_id,
            dropped_of(rows),
            lease_ttl=lease_ttl,
            since=token.dropped_at,
        )
    is_empty = tx.execute(sa.select(staged.c.path).where(under).limit(1)).first() is None
    if is_empty:
        tx.execute(
            sa.delete(dropped_tokens).where(
                dropped_tokens.c.repository_id == token.repository_id,
                dropped_tokens.c.token == token.token,
            )
        )
    return len(paths) if paths or is_empty else None


def read_backlog(tx: Transaction) -> Backlog:
    """Returns how much work is left to the reclaimer."""
    row = tx.execute(
        sa.select(
            sa.func.count().label("address_count"),
            sa.func.min(released.c.released_at).label("oldest_at"),
        )
    ).one()
    tokens = tx.execute(sa.select(sa.func.count()).select_from(dropped_tokens)).scalar_one()
    return Backlog(row.address_count, row.oldest_at, tokens)


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
