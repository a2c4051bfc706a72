"""Whose storage this is: `_ebbtide/OWNER` against the pairs that the database wrote.

A restored backup, or a copy of the database that points at the production bucket, knows nothing of
what was written since, and would take it for garbage. The file carries an epoch with a random
nonce; the database records each pair before it is written. A pair in the file that the database
never wrote means that another database owns the storage now.

Not for: deciding what a run does about it (the gates), or the run's lease (`leases.py`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import Conflict, NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.metadata.engine import Metadata, Transaction
from ebbtide.store.metadata.schema import owner_epochs

OWNER_ADDRESS: Final = "_ebbtide/OWNER"
FORMAT_VERSION: Final = 1
MOVE_EVERY: Final = timedelta(minutes=1)
EPOCHS_BEHIND_MAX: Final = 16
"""Writers that move the epoch at one time may write their pairs out of order, by a few."""
EPOCHS_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class OwnerPair:
    """An epoch and the nonce drawn with it."""

    epoch: int
    nonce: str


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
        """Write the first OWNER of a new repository. Conflict `root_not_empty` if one is there."""
        pair = self._record_next()
        try:
            self._storage.put(OWNER_ADDRESS, self._encode(pair), create_only=True)
        except Conflict as error:
            raise Conflict(
                "root_not_empty",
                f"{self._storage.url} belongs to a repository already: choose another root",
            ) from error

    def touch(self) -> None:
        """Move the epoch if this process has not within a minute: called before every write."""
        now = self._host_now()
        if self._checked_at is None or not timedelta(0) <= now - self._checked_at < MOVE_EVERY:
            self.move()
            self._checked_at = now

    def move(self) -> None:
        """Check, then record and write the next pair. Refused `storage_foreign` as in `check`."""
        self.check()
        self._storage.put(OWNER_ADDRESS, self._encode(self._record_next()))

    def check(self) -> None:
        """Refused `storage_foreign` unless this database wrote the OWNER file, and lately."""
        found = self._read()
        with self._metadata.snapshot() as tx:
            newest = tx.execute(
                sa.select(sa.func.max(owner_epochs.c.epoch)).where(self._mine())
            ).scalar()
            known = tx.execute(
                sa.select(owner_epochs.c.epoch).where(
                    self._mine(),
                    owner_epochs.c.epoch == found.epoch,
                    owner_epochs.c.nonce == found.nonce,
                )
            ).scalar()
        if known is None:
            raise self._foreign(
                f"carries epoch {found.epoch}, which this database (at {newest}) never wrote: "
                "the database was restored from a backup or copied"
            )
        if newest - known > EPOCHS_BEHIND_MAX:
            raise self._foreign(
                f"carries epoch {known}, this database is at {newest}: "
                "the storage was restored from a backup"
            )

    def adopt(self) -> None:
        """Take the storage over, whoever OWNER names: an operator's explicit decision.

        Refused `unknown_format_version` when a newer program wrote it.
        """
        try:
            found = self._read()
        except Refused as error:
            if error.kind != "storage_foreign":
                raise
            found = OwnerPair(0, "")
        pair = self._record_next(above=found.epoch)
        self._storage.put(OWNER_ADDRESS, self._encode(pair))

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

    def _encode(self, pair: OwnerPair) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "store_id": self._store_id,
            "repository_id": self._repository_id,
            "epoch": pair.epoch,
            "nonce": pair.nonce,
        }
        return json.dumps(content, indent=1).encode()

    def _read(self) -> OwnerPair:
        try:
            content = json.loads(self._storage.get(OWNER_ADDRESS))
            version = content["format"]
            if version != FORMAT_VERSION:
                raise Refused(
                    "unknown_format_version",
                    f"{self._where()} has format version {version}, this program knows "
                    f"{FORMAT_VERSION}: use a newer ebbtide",
                )
            ids = (content["store_id"], content["repository_id"])
            pair = OwnerPair(int(content["epoch"]), str(content["nonce"]))
        except NotFound as error:
            raise self._foreign("is missing") from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign("cannot be read") from error
        if ids != (self._store_id, self._repository_id):
            raise self._foreign(f"names another owner (store {ids[0]}, repository {ids[1]})")
        return pair

    def _where(self) -> str:
        return f"{self._storage.url.rstrip('/')}/{OWNER_ADDRESS}"

    def _foreign(self, what: str) -> Refused:
        return Refused(
            "storage_foreign",
            f"{self._where()} {what}. Nothing was written or deleted. If this database is the "
            "right one for this storage, say so with 'ebbtide repo adopt'; what other databases "
            "wrote there since will then be garbage to this one",
        )
