"""The owner of a storage: `_ebbtide/OWNER`, compared with the pairs that the database wrote.

A restored backup knows nothing of later data, and would take it for garbage. The same is true of a
copy of the database that uses the production bucket. Therefore the file has an epoch with a random
nonce, and the database records each pair before it writes the file. If the file has a pair that
this database never wrote, the storage now belongs to another database.

OWNER moves, which means that it gets the next pair, after each change of what is kept (commits,
refs, policies, holds, collections). It moves before the caller hears that the change is made. A
copy of the database from before the change no longer owns the storage, however young the copy is.
The pair is recorded after the change, so that a copy with the pair also has the change. Uploads and
staged changes move OWNER once a minute.

The file is replaced only if it still has the content that was checked. If a process was suspended
between check and write, it finds another content. The file is never deleted, because no storage has
conditional deletes. When a repository ends, the file says so (`closed`), and the next repository at
that root continues from there. On a storage without conditional writes, a transaction locks
the repository while the file is replaced. No better protection is possible there.

Not for: what a run does if the owner is another one (the gates), or the run's lease (`leases.py`).
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

from ebbtide.errors import Conflict, EbbtideError, Failed, NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.database.dialects import insert_on
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import owner_epochs

OWNER_ADDRESS: Final = "_ebbtide/OWNER"
FORMAT_VERSION: Final = 1
MOVE_EVERY: Final = timedelta(minutes=1)
EPOCHS_BEHIND_MAX: Final = 16
"""How many epochs the file may be behind the last epoch that was seen there. On a storage without
conditional writes, a write may arrive late."""
EPOCHS_REMEMBERED: Final = 1_000
WRITES_MAX: Final = 100
"""How often a write is tried if others write the file in between."""


@dataclass(frozen=True, slots=True)
class OwnerPair:
    """An epoch and the nonce drawn with it."""

    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class OwnerFile:
    """The content of OWNER: the repository that owns or owned the storage. `version` is the file's
    version on the storage."""

    store_id: str
    repository_id: str
    pair: OwnerPair
    closed: bool = False
    version: str = ""


def read_owner(storage: Storage) -> OwnerFile | None:
    """Returns the content of OWNER, or None if there is no such file.

    Raises Refused `storage_foreign` if the content cannot be read, and `unknown_format_version`.
    """
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
    """Marks OWNER as closed when its repository ends. Does nothing if it is closed or missing.

    Raises Refused `storage_foreign` if it names another repository, Failed `storage_error`.
    """
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
    """Returns the error for a storage that belongs to another database."""
    return Refused(
        "storage_foreign",
        f"{_where(storage)} {what}. Nothing was written or deleted there. If this database is the "
        "right one for this storage, run 'ebbtide repo adopt'. Files that other databases wrote "
        "there since are then garbage to this database",
    )


def _write(
    storage: Storage,
    content: OwnerFile,
    version: str,
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> str | None:
    """Writes OWNER if the file still has that version. Returns the new version, or None.

    None means that the file has another version. The new version is "" if it is not known. If the
    storage has no conditional writes, the file is written in a block of `alone`.
    """
    data = _encode(content)
    try:
        return storage.replace(OWNER_ADDRESS, data, version=version)
    except Conflict:
        now = read_owner(storage)
        if now is None or now.version != version:
            # Perhaps the answer to this write was lost, and the client sent it again.
            is_mine = now is not None and replace(now, version=content.version) == content
            return now.version if now is not None and is_mine else None
        # The file is unchanged, but the write was refused. Ceph's gateway did so until version 17.
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
        "storage_error",
        f"{_where(storage)} was changed by other processes at each attempt: try again",
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
        """Writes the first OWNER of a new repository, over the closed one of an ended repository.

        Raises Conflict `root_not_empty` if another repository has the root.
        """
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
        """Moves the epoch, unless this process has done so within a minute. Called before every
        write."""
        if not self._is_lately(self._moved_at):
            self.move()

    def require(self) -> None:
        """Checks OWNER, unless this process has done so within a minute. Raises as `check` does.

        Called before every change of what is kept.
        """
        if not self._is_lately(self._checked_at):
            self.check()

    def announce(self) -> None:
        """Moves the epoch after a change of what is kept, before the caller hears of the change.

        Changes of several threads share one move that begins after all of them. Raises as `move`
        does. The message says that the change is made.
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
        """Checks OWNER, then records and writes the next pair. Raises as `check` does; Failed.

        If another process of this database moves OWNER meanwhile, that move is enough.
        """
        with self._moving:
            self._move()

    def _move(self) -> None:
        # If this process wrote the file last, it does not read the file again: the conditional
        # write fails if the content is another one.
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
        """Returns OWNER, if it has a recent pair of this database.

        Raises Refused `storage_foreign` otherwise. The file can be at most EPOCHS_BEHIND_MAX epochs
        behind the last epoch that was seen there.
        """
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
            if self._read().pair != pair:  # others moved it before the database was asked
                return self.check()
            raise foreign(
                self._storage,
                f"carries epoch {known}, this database saw {last.seen} there: "
                "the storage was restored from a backup",
            )
        self._checked_at = self._host_now()
        return found

    def adopt(self) -> None:
        """Takes the storage over, whatever OWNER says: an operator's explicit decision.

        Raises Refused `unknown_format_version` if a newer program wrote the file.
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
        """Records the next pair in the database, and returns it. The storage is written afterwards.

        `seen_epoch` is the epoch that the storage has now.
        """
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
                # Old pairs are deleted, but never the one on the storage: `seen_epoch` is not above
                # its epoch, however many writes have failed since.
                tx.execute(
                    sa.delete(owner_epochs).where(
                        self._is_mine(), owner_epochs.c.epoch < seen_epoch - EPOCHS_REMEMBERED
                    )
                )
        return pair

    def _insert(self, tx: Transaction, pair: OwnerPair, seen_epoch: int) -> bool:
        """Records a pair. Returns false if another transaction has recorded the same epoch first
        (on PostgreSQL)."""
        insert = insert_on(tx.connection)
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
        """A block in which no other process of this database writes the file."""
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
