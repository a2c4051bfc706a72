"""Addresses that are written to: writes in progress, and upload tokens that are neither used nor
expired.

A write is registered before its first byte, and ends when it is published or given up. Not for: the
meaning of the bytes (`uploads`, `commits.commits`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import Conflict, EbbtideError, Failed, UnknownRepository
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import pending, upload_tokens
from ebbtide.store.repositories.repository_rows import repository_by_id
from ebbtide.store.staging.released import Dropped, release

# Built once: every upload runs these statements, and building them takes longer than running them.
_REGISTER: Final = sa.insert(pending)
_GIVE_UP: Final = (
    sa.delete(pending)
    .where(
        pending.c.repository_id == sa.bindparam("repository_id"),
        pending.c.address.in_(sa.bindparam("addresses", expanding=True)),
    )
    .returning(pending.c.address)
)
_IN_TIME: Final = pending.c.ends_at > sa.bindparam("now")
_PUBLISH: Final = _GIVE_UP.where(_IN_TIME)
# For one address. SQLAlchemy writes a statement with a list anew for each list.
_PUBLISH_ONE: Final = (
    sa.delete(pending)
    .where(
        pending.c.repository_id == sa.bindparam("repository_id"),
        pending.c.address == sa.bindparam("address"),
        _IN_TIME,
    )
    .returning(pending.c.address)
)


def register_writes(
    tx: Transaction,
    repository_id: str,
    addresses: Collection[str],
    *,
    write_ttl: timedelta,
    now: datetime | None = None,
) -> None:
    """Protects `addresses`, which are about to be written, for `write_ttl` from now on, by the
    database's clock. `now` is its time, if the transaction has read it already.

    This transaction must have ended before the first byte is written.
    """
    if not addresses:
        return
    now = now or tx.now()
    tx.execute(
        _REGISTER,
        [
            {
                "repository_id": repository_id,
                "address": address,
                "started_at": now,
                "ends_at": now + write_ttl,
            }
            for address in addresses
        ],
    )


def publish_writes(tx: Transaction, repository_id: str, addresses: Collection[str]) -> None:
    """Ends the registrations of the addresses that this transaction publishes.

    Raises Conflict `write_expired` if a registration has ended by the database's clock, or was
    given up: a sweep may have deleted its file since.
    """
    now = tx.now()
    published = 0
    # Sorted, so that two transactions that end the same registrations do not deadlock.
    for batch in in_batches(sorted(addresses)):
        named = {"address": batch[0]} if len(batch) == 1 else {"addresses": batch}
        # The rows are deleted, not just counted: on PostgreSQL another transaction may be giving up
        # a registration at this moment.
        published += len(
            tx.execute(
                _PUBLISH_ONE if len(batch) == 1 else _PUBLISH,
                {"repository_id": repository_id, "now": now} | named,
            ).all()
        )
    if published != len(addresses):
        raise Conflict(
            "write_expired",
            "the write took longer than its registration lasts, so that its files may have been "
            "collected: write it again, in smaller parts, or raise EBBTIDE_WRITE_TTL",
        )


def give_up_writes(tx: Transaction, repository_id: str, addresses: Collection[str]) -> list[str]:
    """Ends registrations without publishing them. Returns the addresses that were still registered.

    These addresses were not published, and can no longer be: their bytes may be deleted.
    """
    given_up: list[str] = []
    # Sorted, so that two transactions that end the same registrations do not deadlock.
    for batch in in_batches(sorted(addresses)):
        given_up += tx.execute(
            _GIVE_UP, {"repository_id": repository_id, "addresses": batch}
        ).scalars()
    return given_up


class Writes:
    """The registrations of writes in one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def register(self, addresses: Collection[str]) -> None:
        """Registers writes. Their first byte may be written once this has returned.

        Raises NotFound `repository_not_found` if the repository was deleted for good.
        """
        try:
            with self._context.metadata.transaction() as tx:
                self.register_in(tx, addresses)
        except Failed as error:
            # The row has a foreign key to the repository's row. An earlier check would cost each
            # write a query.
            if isinstance(error.__cause__, sa.exc.IntegrityError) and self._is_deleted():
                raise UnknownRepository(
                    "repository_not_found",
                    f"the repository {self._context.info.name} was deleted meanwhile",
                ) from error
            raise

    def register_in(
        self, tx: Transaction, addresses: Collection[str], *, now: datetime | None = None
    ) -> None:
        """Registers writes. The first byte may be written once the transaction has ended. `now` is
        as in `register_writes`."""
        register_writes(
            tx,
            self._context.repository_id,
            addresses,
            write_ttl=self._context.settings.write_ttl,
            now=now,
        )

    @contextmanager
    def abandoning(self, addresses: Collection[str]) -> Iterator[None]:
        """A block that writes and publishes. If it fails, the files at `addresses` that were not
        published are deleted. The block may add to `addresses` until then."""
        try:
            yield
        except BaseException as error:
            # The first error is reported. Files that cannot be deleted here are reclaimed later.
            with suppress(EbbtideError):
                self._abandon(addresses, error)
            raise

    def _abandon(self, addresses: Collection[str], error: BaseException) -> None:
        """Deletes, after an error, the files at addresses that were not published.

        The registrations are ended first. If this transaction ends a registration, its address was
        not published, and can no longer be. This is true even if the answer to a COMMIT was lost.
        Nothing is tried again, because another error is being handled. The reclaimer deletes files
        that stay behind or arrive late. If the write was refused, and the repository was deleted
        meanwhile, nothing was published, and no reclaimer follows: all files are deleted.
        """
        context = self._context
        is_refused = isinstance(error, EbbtideError) and not isinstance(error, Failed)
        is_deleted = is_refused and self._is_deleted()
        with context.metadata.transaction() as tx:
            unpublished = give_up_writes(tx, context.repository_id, addresses)
            release(
                tx,
                context.repository_id,
                map(Dropped, unpublished),
                lease_ttl=context.settings.lease_ttl,
            )
        context.storage.delete(list(addresses) if is_deleted else unpublished)

    def _is_deleted(self) -> bool:
        with self._context.metadata.snapshot() as tx:
            return repository_by_id(tx, self._context.repository_id) is None


def insert_token(
    tx: Transaction, repository_id: str, address: str, *, expires_at: datetime, token: str
) -> None:
    """Records an upload token: data uploaded to `address` stays until `expires_at`."""
    insert_tokens(tx, repository_id, [address], expires_at=expires_at, token=token)


def insert_tokens(
    tx: Transaction,
    repository_id: str,
    addresses: Iterable[str],
    *,
    expires_at: datetime,
    token: str,
) -> None:
    """Records one upload token for several addresses, as `insert_token` does for one."""
    now = tx.now()
    rows = [
        {
            "repository_id": repository_id,
            "address": address,
            "created_at": now,
            "expires_at": expires_at,
            "token": token,
        }
        for address in addresses
    ]
    if rows:
        tx.execute(sa.insert(upload_tokens), rows)


def find_token(tx: Transaction, repository_id: str, address: str) -> str | None:
    """Returns the token that was given out for an address, or None if it was used. An expired token
    is found until its record is deleted."""
    token: str | None = tx.execute(
        sa.select(upload_tokens.c.token).where(
            upload_tokens.c.repository_id == repository_id, upload_tokens.c.address == address
        )
    ).scalar_one_or_none()
    return token


def is_outstanding(tx: Transaction, repository_id: str, address: str) -> bool:
    """Whether the token of an address is neither used nor expired."""
    found = tx.execute(
        sa.select(upload_tokens.c.address).where(*_outstanding(tx, repository_id, address))
    )
    return found.one_or_none() is not None


def consume_token(
    tx: Transaction, repository_id: str, address: str, *, lease_ttl: timedelta
) -> bool:
    """Uses up the token of an address, and releases the address. Returns false if the token was
    used before, or has expired by the database's clock."""
    # The row is deleted, not just read: on PostgreSQL another transaction may be using the token at
    # this moment.
    expires_at = tx.execute(
        sa.delete(upload_tokens)
        .where(*_outstanding(tx, repository_id, address))
        .returning(upload_tokens.c.expires_at)
    ).scalar_one_or_none()
    if expires_at is None:
        return False
    # The address is released at the token's end, not earlier: until then its holder can upload to
    # the address again.
    release(tx, repository_id, [Dropped(address)], lease_ttl=lease_ttl, since=expires_at)
    return True


def keep_uploads(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> datetime | None:
    """Deletes the upload tokens of addresses that content refers to from now on. Some may have no
    token.

    Returns the latest end of these tokens, or None. Until then somebody may have a locator: the
    content must be leased as long.
    """
    ends: list[datetime] = []
    for batch in in_batches(sorted(set(addresses))):
        ends += tx.execute(
            sa.delete(upload_tokens)
            .where(
                upload_tokens.c.repository_id == repository_id,
                upload_tokens.c.address.in_(batch),
            )
            .returning(upload_tokens.c.expires_at)
        ).scalars()
    return max(ends, default=None)


def _outstanding(
    tx: Transaction, repository_id: str, address: str
) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        upload_tokens.c.repository_id == repository_id,
        upload_tokens.c.address == address,
        upload_tokens.c.expires_at > tx.now(),
    )
