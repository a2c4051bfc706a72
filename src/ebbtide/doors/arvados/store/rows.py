"""The rows that the store keeps for Arvados: its blocks, and what its collections have besides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.database.dialects import insert_on
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows, in_batches, values_of
from ebbtide.store.database.schema import (
    arvados_blocks,
    arvados_collections,
    collections,
    commits,
    upload_tokens,
)
from ebbtide.store.doors import DoorRows


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """The object that was written last for a block, and content that has the object, if any."""

    md5: str
    size_bytes: int
    checksum: str
    address: str
    content_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArvadosRow:
    """What a collection of Arvados has besides its row in `collections`.

    `file_count` and `file_size_total` (bytes) are of the files in the manifest. `modified_by` is an
    access key's id.
    """

    collection_id: str
    repository_id: str
    uuid: str
    portable_data_hash: str
    file_count: int
    file_size_total: int
    preserve_version: bool
    modified_by: str


_BLOCKS: Final = Rows(arvados_blocks, BlockRow, arvados_blocks.c.address)
_COLLECTIONS: Final = Rows(arvados_collections, ArvadosRow, arvados_collections.c.collection_id)


def find_block(tx: Transaction, repository_id: str, md5: str, size_bytes: int) -> BlockRow | None:
    """Returns the record of a block, or None."""
    query = _BLOCKS.select(
        arvados_blocks.c.repository_id == repository_id,
        arvados_blocks.c.md5 == md5,
        arvados_blocks.c.size_bytes == size_bytes,
    )
    return _BLOCKS.one(tx, query)


def write_block(tx: Transaction, repository_id: str, row: BlockRow) -> None:
    """Records the object that was written last for a block."""
    insert = insert_on(tx.connection)
    values = values_of(row)
    tx.execute(
        insert(arvados_blocks)
        .values(repository_id=repository_id, **values)
        .on_conflict_do_update(
            index_elements=["repository_id", "md5", "size_bytes"],
            set_={name: values[name] for name in ("checksum", "address", "content_id")},
        )
    )


def write_contents(
    tx: Transaction, repository_id: str, content_id: str, addresses: Iterable[tuple[str, int, str]]
) -> None:
    """Records content that has blocks: MD5, size and address of each. A block whose record names
    another address is left out."""
    values = [
        {"b_md5": md5, "b_size": size_bytes, "b_address": address}
        for md5, size_bytes, address in sorted(addresses)
    ]
    if values:
        tx.execute(
            sa.update(arvados_blocks)
            .where(
                arvados_blocks.c.repository_id == repository_id,
                arvados_blocks.c.md5 == sa.bindparam("b_md5"),
                arvados_blocks.c.size_bytes == sa.bindparam("b_size"),
                arvados_blocks.c.address == sa.bindparam("b_address"),
            )
            .values(content_id=content_id),
            values,
        )


def prolong_token(tx: Transaction, repository_id: str, address: str, *, until: datetime) -> bool:
    """Makes sure that an upload token lasts until `until`. Returns false if it has ended, or was
    used."""
    later = sa.case(
        (upload_tokens.c.expires_at > until, upload_tokens.c.expires_at),
        else_=sa.literal(until, upload_tokens.c.expires_at.type),
    )
    found = tx.execute(
        sa.update(upload_tokens)
        .where(
            upload_tokens.c.repository_id == repository_id,
            upload_tokens.c.address == address,
            upload_tokens.c.expires_at > tx.now(),
        )
        .values(expires_at=later)
        .returning(upload_tokens.c.address)
    )
    return found.one_or_none() is not None


def drop_blocks(tx: Transaction, repository_id: str) -> None:
    """Deletes the records of blocks whose object nothing promises any more: no upload token names
    its address, and the content that had it is closed or gone."""
    tx.execute(
        sa.delete(arvados_blocks).where(
            arvados_blocks.c.repository_id == repository_id,
            ~sa.exists().where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id == arvados_blocks.c.content_id,
                commits.c.tombstoned_by.is_(None),
            ),
            ~sa.exists().where(
                upload_tokens.c.repository_id == repository_id,
                upload_tokens.c.address == arvados_blocks.c.address,
            ),
        )
    )


def find_uuid(tx: Transaction, repository_id: str, uuid: str) -> ArvadosRow | None:
    """Returns what the collection with this id has besides, or None."""
    mine = arvados_collections.c.repository_id == repository_id
    return _COLLECTIONS.one(tx, _COLLECTIONS.select(mine, arvados_collections.c.uuid == uuid))


def records_by_hash(
    tx: Transaction, repository_id: str, portable_data_hash: str
) -> Iterator[ArvadosRow]:
    """Yields the collections with this hash, in any state: first the persistent ones, then by
    `expires_at`, the latest first. Only their own `expires_at` counts, not their projects'."""
    query = (
        _COLLECTIONS.select()
        .join_from(arvados_collections, collections)
        .where(
            arvados_collections.c.repository_id == repository_id,
            arvados_collections.c.portable_data_hash == portable_data_hash,
        )
        .order_by(
            collections.c.expires_at.is_not(None),
            collections.c.expires_at.desc(),
            collections.c.collection_id,
        )
    )
    return _COLLECTIONS.each(tx, query)


def insert_record(tx: Transaction, row: ArvadosRow) -> None:
    """Records what a new collection has besides."""
    _COLLECTIONS.insert(tx, row)


def update_record(
    tx: Transaction,
    collection_id: str,
    **values: Any,  # column name to new value
) -> None:
    """Changes columns of a collection's record."""
    _COLLECTIONS.update(tx, collection_id, **values)


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
