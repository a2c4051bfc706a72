"""Registering writes before their first byte, publishing them, giving them up.

Not for: what the bytes mean (`uploads`, `committing`).
"""

from __future__ import annotations

from collections.abc import Collection

from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.pending import give_up_writes, register_writes
from ebbtide.store.metadata.released import Dropped, release


class Writes:
    """The registrations of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def register(self, addresses: Collection[str]) -> None:
        """Protect what is about to be written; on return the first byte may be."""
        with self._context.metadata.transaction() as tx:
            self.register_in(tx, addresses)

    def register_in(self, tx: Transaction, addresses: Collection[str]) -> None:
        """As `register`, once the transaction has ended."""
        register_writes(
            tx,
            self._context.repository_id,
            addresses,
            write_ttl=self._context.settings.write_ttl,
        )

    def abandon(self, addresses: Collection[str]) -> None:
        """After a failure: delete what was written at addresses that were not published.

        The registrations go first. Only whoever took one away knows that the address was not
        published and cannot be any more, even where the answer to a COMMIT was lost. Nothing is
        retried: this runs while another error is under way. What stays behind, or arrives late,
        the reclaimer takes.
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
