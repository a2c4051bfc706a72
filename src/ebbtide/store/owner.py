"""Whose storage this is: `_ebbtide/OWNER` against the pairs that the database wrote.

A restored backup, or a copy of the database that points at the production bucket, knows nothing of
what was written since, and would take it for garbage. The file carries an epoch with a random
nonce; the database records each pair before it is written. A pair in the file that the database
never wrote means that another database owns the storage now.

It moves on after each change of what is kept (commits, refs, policies, holds, collections), before
anybody is told that the change is made: a copy of the database from before it, however young, does
not own the storage any more. The pair is recorded after the change, so that whoever has the pair
has the change. What is only staged moves it once a minute.

The file changes only from the very content that was checked: whoever slept between the check and
the write finds that it is another by now. It is never deleted, since no storage deletes on a
condition: when a repository ends it says so (`closed`), and the next one at that root begins from
there. A storage that knows no conditions is written to while the database holds the repository,
which is the best that can be done there.

Not for: deciding what a run does about it (the gates), or the run's lease (`leases.py`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from threading import Lock
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ebbtide.errors import Conflict, EbbtideError, Failed, NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.metadata.engine import Metadata, Transaction
from ebbtide.store.metadata.schema import owner_epochs

OWNER_ADDRESS: Final = "_ebbtide/OWNER"
FORMAT_VERSION: Final = 1
MOVE_EVERY: Final = timedelta(minutes=1)
EPOCHS_BEHIND_MAX: Final = 16
"""By how many the file may be behind what was seen there before: on a storage that knows no
conditions a write may arrive late."""
EPOCHS_REMEMBERED: Final = 1_000
WRITES_MAX: Final = 100
"""How often to try again when somebody else wrote the file in between."""


@dataclass(frozen=True, slots=True)
class OwnerPair:
    """An epoch and the nonce drawn with it."""

    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class OwnerFile:
    """What the OWNER file says: whose the storage is or was; and which version of the file it
    is."""

    store_id: str
    repository_id: str
    pair: OwnerPair
    closed: bool = False
    version: str = ""


def read_owner(storage: Storage) -> OwnerFile | None:
    """The OWNER file; None where there is none. Refused `storage_foreign` when it cannot be read,
    `unknown_format_version`."""
    try:
        data, version = storage.get_versioned(OWNER_ADDRESS)
        content = json.loads(data)
        if content["format"] != FORMAT_VERSION:
            raise Refused(
                "unknown_format_version",
                f"{_where(storage)} has format version {content['format']}, this program knows "
                f"{FORMAT_VERSION}: use a newer ebbtide",
            )
        return OwnerFile(
            content["store_id"],
            content["repository_id"],
            OwnerPair(int(content["epoch"]), str(content["nonce"])),
            bool(content.get("closed", False)),
            version,
        )
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise foreign(storage, "cannot be read") from error


def close_owner(storage: Storage, *, store_id: str, repository_id: str) -> None:
    """Say in the OWNER file that its repository ended, if it is that repository's. Refused
    `storage_foreign` when it is another's; nothing where it is closed, or not there."""
    for _ in range(WRITES_MAX):
        found = read_owner(storage)
        if found is None:
            return
        if (found.store_id, found.repository_id) != (store_id, repository_id):
            if found.closed:
                return
            raise foreign(storage, f"names another owner (store {found.store_id})")
        if found.closed:
            return
        if _write(storage, replace(found, closed=True), found.version) is not None:
            return
    raise _busy(storage)


def foreign(storage: Storage, what: str) -> Refused:
    """The error for a storage that is another database's."""
    return Refused(
        "storage_foreign",
        f"{_where(storage)} {what}. Nothing was written or deleted there. If this database is the "
        "right one for this storage, say so with 'ebbtide repo adopt'; what other databases "
        "wrote there since will then be garbage to this one",
    )


def _write(
    storage: Storage,
    content: OwnerFile,
    version: str,
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> str | None:
    """Write the file if it still is that version; its version then, "" where that is not known;
    None where it was not. A storage that knows no conditions is written to within `alone`."""
    data = _encode(content)
    try:
        return storage.replace(OWNER_ADDRESS, data, version=version)
    except Conflict:
        now = read_owner(storage)
        if now is None or now.version != version:
            # Perhaps an answer was lost on the way, and the client had sent it again.
            is_mine = now is not None and replace(now, version=content.version) == content
            return now.version if now is not None and is_mine else None
        # It is what it was, and refused all the same, as Ceph's gateway did until version 17.
    except Failed as error:
        if error.kind != "storage_unconditional":
            raise
    with alone():
        now = read_owner(storage)
        if now is None or now.version != version:
            return None
        storage.put(OWNER_ADDRESS, data)
    return ""


def _encode(content: OwnerFile) -> bytes:
    fields = {
        "format": FORMAT_VERSION,
        "store_id": content.store_id,
        "repository_id": content.repository_id,
        "epoch": content.pair.epoch,
        "nonce": content.pair.nonce,
    }
    return json.dumps(fields | ({"closed": True} if content.closed else {}), indent=1).encode()


def _busy(storage: Storage) -> Failed:
    return Failed(
        "storage_error", f"{_where(storage)} was written by others each time: try it again"
    )


def _where(storage: Storage) -> str:
    return f"{storage.url.rstrip('/')}/{OWNER_ADDRESS}"


class Ownership:
    """Reads, checks and moves the OWNER file of one repository."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        store_id: str,
        repository_id: str,
        storage: Storage,
        host_now: Callable[[], datetime],
    ) -> None:
        self._metadata = metadata
        self._store_id = store_id
        self._repository_id = repository_id
        self._storage = storage
        self._host_now = host_now
        self._checked_at: datetime | None = None
        self._moved_at: datetime | None = None
        self._mine: OwnerFile | None = None
        self._moving = Lock()
        self._tickets = count(1)
        self._announced = 0

    def claim(self) -> None:
        """Write the first OWNER of a new repository, in the place of that of one that ended.
        Conflict `root_not_empty` if another's is there."""
        before = read_owner(self._storage)
        mine = self._file(self._record_next(before.pair.epoch if before else 0))
        try:
            if before is None:
                self._storage.put(OWNER_ADDRESS, _encode(mine), create_only=True)
                return
            if before.closed:
                written = _write(self._storage, mine, before.version, alone=self._alone)
                if written is not None:
                    return
        except Conflict as error:
            raise self._taken() from error
        raise self._taken()

    def _taken(self) -> Conflict:
        return Conflict(
            "root_not_empty",
            f"{self._storage.url} belongs to a repository already: choose another root",
        )

    def touch(self) -> None:
        """Move the epoch if this process has not within a minute: called before every write."""
        if not self._is_lately(self._moved_at):
            self.move()

    def require(self) -> None:
        """As `check`, if this process has not within a minute: called before every change of what
        is kept."""
        if not self._is_lately(self._checked_at):
            self.check()

    def announce(self) -> None:
        """Move the epoch after a change of what is kept is committed, and before anybody is told of
        it. Changes of several threads share a move that begins behind them all.

        Raises what `move` does, saying that the change is made.
        """
        ticket = next(self._tickets)
        with self._moving:
            if self._announced >= ticket:
                return
            last = next(self._tickets)
            try:
                self._move()
            except EbbtideError as error:
                raise type(error)(
                    error.kind,
                    "the change is made, but copies of the database cannot be kept from this "
                    f"storage: {error.message}",
                    **error.details,
                ) from error
            self._announced = last

    def move(self) -> None:
        """Check, then record and write the next pair, unless somebody else of this database moved
        on meanwhile. Refused `storage_foreign` as in `check`."""
        with self._moving:
            self._move()

    def _move(self) -> None:
        # What this process wrote last need not be read again: the write finds out.
        found = self._mine or self.check()
        mine = self._file(self._record_next(found.pair.epoch))
        for _ in range(WRITES_MAX):
            version = _write(self._storage, mine, found.version, alone=self._alone)
            if version is not None:
                self._mine = replace(mine, version=version) if version else None
                self._checked_at = self._moved_at = self._host_now()
                return
            self._mine = None
            found = self.check()
            if found.pair.epoch >= mine.pair.epoch:
                self._moved_at = self._checked_at
                return
        raise _busy(self._storage)

    def _is_lately(self, instant: datetime | None) -> bool:
        return instant is not None and timedelta(0) <= self._host_now() - instant < MOVE_EVERY

    def check(self) -> OwnerFile:
        """The OWNER file. Refused `storage_foreign` unless this database wrote it, and lately."""
        found = self._read()
        pair = found.pair
        with self._metadata.snapshot() as tx:
            last = tx.execute(
                sa.select(
                    sa.func.max(owner_epochs.c.epoch).label("written"),
                    sa.func.max(owner_epochs.c.seen_epoch).label("seen"),
                ).where(self._is_mine())
            ).one()
            known = tx.execute(
                sa.select(owner_epochs.c.epoch).where(
                    self._is_mine(),
                    owner_epochs.c.epoch == pair.epoch,
                    owner_epochs.c.nonce == pair.nonce,
                )
            ).scalar()
        if known is None:
            raise foreign(
                self._storage,
                f"carries epoch {pair.epoch}, which this database (at {last.written}) never wrote: "
                "the database was restored from a backup or copied",
            )
        if last.seen - known > EPOCHS_BEHIND_MAX:
            raise foreign(
                self._storage,
                f"carries epoch {known}, this database saw {last.seen} there: "
                "the storage was restored from a backup",
            )
        self._checked_at = self._host_now()
        return found

    def adopt(self) -> None:
        """Take the storage over, whoever OWNER names: an operator's explicit decision.

        Refused `unknown_format_version` when a newer program wrote it.
        """
        try:
            found = read_owner(self._storage)
        except Refused as error:
            if error.kind != "storage_foreign":
                raise
            found = None
        pair = self._record_next(0 if found is None else found.pair.epoch)
        self._storage.put(OWNER_ADDRESS, _encode(self._file(pair)))
        self._mine = None

    def _is_mine(self) -> sa.ColumnElement[bool]:
        return owner_epochs.c.repository_id == self._repository_id

    def _record_next(self, seen_epoch: int) -> OwnerPair:
        """The pair that may be written next, in the database before it is in the storage, where
        `seen_epoch` is now."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, trashed=True)
            while True:
                newest = tx.execute(
                    sa.select(sa.func.max(owner_epochs.c.epoch)).where(self._is_mine())
                ).scalar()
                pair = OwnerPair(max(newest or 0, seen_epoch) + 1, secrets.token_hex(8))
                if self._insert(tx, pair, seen_epoch):
                    break
            if pair.epoch % EPOCHS_REMEMBERED == 0:
                # What is on the storage stays known, however often nothing could be written there.
                tx.execute(
                    sa.delete(owner_epochs).where(
                        self._is_mine(), owner_epochs.c.epoch < seen_epoch - EPOCHS_REMEMBERED
                    )
                )
        return pair

    def _insert(self, tx: Transaction, pair: OwnerPair, seen_epoch: int) -> bool:
        """Whether the pair is recorded; on PostgreSQL another transaction may have been first."""
        insert = postgresql.insert if tx.dialect_name == "postgresql" else sqlite.insert
        statement = insert(owner_epochs).values(
            repository_id=self._repository_id,
            epoch=pair.epoch,
            nonce=pair.nonce,
            seen_epoch=seen_epoch,
            recorded_at=tx.now(),
        )
        made = statement.on_conflict_do_nothing().returning(owner_epochs.c.epoch)
        return tx.execute(made).first() is not None

    def _file(self, pair: OwnerPair) -> OwnerFile:
        return OwnerFile(self._store_id, self._repository_id, pair)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else of this database writes the file meanwhile."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            yield

    def _read(self) -> OwnerFile:
        found = read_owner(self._storage)
        if found is None:
            raise foreign(self._storage, "is missing")
        if (found.store_id, found.repository_id) != (self._store_id, self._repository_id):
            raise foreign(
                self._storage,
                f"names another owner (store {found.store_id}, repository {found.repository_id})",
            )
        if found.closed:
            raise foreign(self._storage, "says that its repository ended")
        return found
