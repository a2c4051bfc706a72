"""Whose storage this is: `_ebbtide/OWNER` against the pairs that the database wrote.

A restored backup, or a copy of the database that points at the production bucket, knows nothing of
what was written since, and would take it for garbage. The file carries an epoch with a random
nonce; the database records each pair before it is written. A pair in the file that the database
never wrote means that another database owns the storage now.

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
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import Conflict, Failed, NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.metadata.engine import Metadata, Transaction
from ebbtide.store.metadata.schema import owner_epochs

OWNER_ADDRESS: Final = "_ebbtide/OWNER"
FORMAT_VERSION: Final = 1
MOVE_EVERY: Final = timedelta(minutes=1)
EPOCHS_BEHIND_MAX: Final = 16
"""On a storage that knows no conditions, writers that move the epoch at one time may write their
pairs out of order, by a few."""
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
        if _write(storage, replace(found, closed=True), found.version):
            return
    raise _busy(storage)


def foreign(storage: Storage, what: str) -> Refused:
    """The error for a storage that is another database's."""
    return Refused(
        "storage_foreign",
        f"{_where(storage)} {what}. Nothing was written or deleted. If this database is the "
        "right one for this storage, say so with 'ebbtide repo adopt'; what other databases "
        "wrote there since will then be garbage to this one",
    )


def _write(
    storage: Storage,
    content: OwnerFile,
    version: str,
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> bool:
    """Write the file if it still is that version; whether it was. A storage that knows no
    conditions is written to within `alone`."""
    data = _encode(content)
    try:
        storage.replace(OWNER_ADDRESS, data, version=version)
        return True
    except Conflict:
        now = read_owner(storage)
        if now is None or now.version != version:
            # Perhaps an answer was lost on the way, and the client had sent it again.
            return now is not None and replace(now, version=content.version) == content
        # It is what it was, and refused all the same, as Ceph's gateway did until version 17.
    except Failed as error:
        if error.kind != "storage_unconditional":
            raise
    with alone():
        now = read_owner(storage)
        if now is None or now.version != version:
            return False
        storage.put(OWNER_ADDRESS, data)
    return True


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

    def claim(self) -> None:
        """Write the first OWNER of a new repository, in the place of that of one that ended.
        Conflict `root_not_empty` if another's is there."""
        before = read_owner(self._storage)
        mine = self._file(self._record_next(above=before.pair.epoch if before else 0))
        try:
            if before is None:
                self._storage.put(OWNER_ADDRESS, _encode(mine), create_only=True)
                return
            if before.closed and _write(self._storage, mine, before.version, alone=self._alone):
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
        now = self._host_now()
        if self._checked_at is None or not timedelta(0) <= now - self._checked_at < MOVE_EVERY:
            self.move()
            self._checked_at = now

    def move(self) -> None:
        """Check, then record and write the next pair, unless somebody else of this database moved
        on meanwhile. Refused `storage_foreign` as in `check`."""
        found = self.check()
        mine = self._file(self._record_next())
        for _ in range(WRITES_MAX):
            if _write(self._storage, mine, found.version, alone=self._alone):
                return
            found = self.check()
            if found.pair.epoch >= mine.pair.epoch:
                return
        raise _busy(self._storage)

    def check(self) -> OwnerFile:
        """The OWNER file. Refused `storage_foreign` unless this database wrote it, and lately."""
        found = self._read()
        pair = found.pair
        with self._metadata.snapshot() as tx:
            newest = tx.execute(
                sa.select(sa.func.max(owner_epochs.c.epoch)).where(self._mine())
            ).scalar()
            known = tx.execute(
                sa.select(owner_epochs.c.epoch).where(
                    self._mine(),
                    owner_epochs.c.epoch == pair.epoch,
                    owner_epochs.c.nonce == pair.nonce,
                )
            ).scalar()
        if known is None:
            raise foreign(
                self._storage,
                f"carries epoch {pair.epoch}, which this database (at {newest}) never wrote: "
                "the database was restored from a backup or copied",
            )
        if newest - known > EPOCHS_BEHIND_MAX:
            raise foreign(
                self._storage,
                f"carries epoch {known}, this database is at {newest}: "
                "the storage was restored from a backup",
            )
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
        pair = self._record_next(above=0 if found is None else found.pair.epoch)
        self._storage.put(OWNER_ADDRESS, _encode(self._file(pair)))

    def _mine(self) -> sa.ColumnElement[bool]:
        return owner_epochs.c.repository_id == self._repository_id

    def _record_next(self, *, above: int = 0) -> OwnerPair:
        """The pair that may be written next, in the database before it is in the storage."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            newest = (
                tx.execute(
                    sa.select(sa.func.max(owner_epochs.c.epoch)).where(self._mine())
                ).scalar()
                or 0
            )
            pair = OwnerPair(max(newest, above) + 1, secrets.token_hex(8))
            self._insert(tx, pair)
            tx.execute(
                sa.delete(owner_epochs).where(
                    self._mine(), owner_epochs.c.epoch < pair.epoch - EPOCHS_REMEMBERED
                )
            )
        return pair

    def _insert(self, tx: Transaction, pair: OwnerPair) -> None:
        tx.execute(
            sa.insert(owner_epochs).values(
                repository_id=self._repository_id,
                epoch=pair.epoch,
                nonce=pair.nonce,
                recorded_at=tx.now(),
            )
        )

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
