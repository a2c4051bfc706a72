"""Registering writes before their first byte, publishing them, giving them up; and slices.

Not for: what the bytes mean (`uploads`, `committing`).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from threading import Lock

from ebbtide.ids import descending_id
from ebbtide.store.content.layout import new_object_address
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.pending import give_up_writes, register_writes


class Slices:
    """Fresh addresses in this process's current slice, which closes when full or old."""

    def __init__(self, *, context: RepositoryContext) -> None:
        self._objects_max = context.settings.slice_objects_max
        self._age_max = context.settings.slice_age_max
        self._lock = Lock()
        self._slice_id = ""
        self._opened_at: datetime | None = None
        self._object_count = 0

    def new_addresses(self, count: int, *, now: datetime) -> list[str]:
        """`count` addresses that nobody else gets; `now` is the database's time."""
        with self._lock:
            return [self._new_address(now) for _ in range(count)]

    def _new_address(self, now: datetime) -> str:
        opened_at = self._opened_at
        if (
            opened_at is None
            or self._object_count >= self._objects_max
            or now - opened_at >= self._age_max
        ):
            self._slice_id = descending_id(now)
            self._opened_at = now
            self._object_count = 0
        self._object_count += 1
        return new_object_address(self._slice_id)


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
        published and cannot be any more, even where the answer to a COMMIT was lost; bytes that
        stay behind are garbage that a collector finds. Nothing is retried: this runs while
        another error is under way.
        """
        with self._context.metadata.transaction() as tx:
            unpublished = give_up_writes(tx, self._context.repository_id, addresses)
        self._context.storage.delete(unpublished)
