"""What the store asks about the rows that it keeps for Arvados."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.queries import drop_blocks
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import arvados_collections
from ebbtide.store.doors import DoorRows

_UUID: Final = re.compile(r"[0-9a-z]{5}-4zz18-[0-9a-z]{15}")
_PORTABLE_HASH: Final = re.compile(r"[0-9a-f]{32}\+[0-9]+")


class ArvadosRows(DoorRows):
    """The rows of blocks, and what collections have besides."""

    def collections_named(self, repository_id: str, name: str) -> sa.Select[tuple[str]] | None:
        """Returns the store's ids of the collections that a `uuid` (`abcde-4zz18-…`) or a portable
        data hash names. Several collections can have one hash."""
        more = arvados_collections.c
        if _UUID.fullmatch(name):
            column = more.uuid
        elif _PORTABLE_HASH.fullmatch(name):
            column = more.portable_data_hash
        else:
            return None
        return sa.select(more.collection_id).where(
            more.repository_id == repository_id, column == name
        )

    def clients_ids(self, tx: Transaction, collection_ids: Iterable[str]) -> dict[str, str]:
        """Returns the `uuid` of each collection that a client of Arvados made."""
        more = arvados_collections.c
        found: dict[str, str] = {}
        for batch in in_batches(sorted(collection_ids)):
            query = sa.select(more.collection_id, more.uuid).where(more.collection_id.in_(batch))
            found.update((row.collection_id, row.uuid) for row in tx.execute(query))
        return found

    def drop_ended(self, tx: Transaction, repository_id: str) -> None:
        """Deletes the records of blocks that have no data any more."""
        drop_blocks(tx, repository_id)
