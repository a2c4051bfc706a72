"""Registrations of writes: made before the first byte, and ended when published or given up.

Not for: the meaning of the bytes (`uploads`, `committing`).
"""

from __future__ import annotations

from collections.abc import Collection

from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.pending import give_up_writes, register_writes
from ebbtide.store.metadata.released import Dropped, release


class Writes:
    """The registrations of writes in one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def register(self, addresses: Collection[str]) -> None:
        """Registers writes. Their first byte may be written once this has returned."""
        with self._context.metadata.transaction() as tx:
            self.register_in(tx, addresses)

    def register_in(self, tx: Transaction, addresses: Collection[str]) -> None:
        """Registers writes. The first byte may be written once the transaction has ended."""
        register_writes(
            tx,
            self._context.repository_id,
            addresses,
            write_ttl=self._context.settings.write_ttl,
        )

    def abandon(self, addresses: Collection[str]) -> None:
        """Deletes, after a failure, the files at addresses that were not published.

        The registrations are ended first. Only the transaction that ended a registration knows that
        its address was not published, and cannot be any more. This is true even if the answer to a
        COMMIT was lost. Nothing is tried again, because another error is being handled. The
        reclaimer deletes files that stay behind or arrive late.
        """
        context = self._context
        with context.metadata.transaction() as tx:
            unpublished = give_up_writes(tx, context.repository_id, addresses)
            release(
                tx,
                context.repository_id,
                map(Dropped, unpublished),
                lease_ttl=context.settings.lease_ttl,
            )
        context.storage.delete(unpublished)
