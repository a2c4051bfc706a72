"""Queries: collections and their kept versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.ids import is_id
from ebbtide.store.database.conditions import begins_with, in_batches
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.expiries import StateFilter
from ebbtide.store.database.schema import arvados_collections, collection_versions, collections


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRow:
    """One collection as it is stored. `content_id` names the commit that holds its content."""

    collection_id: str
    repository_id: str
    project_id: str
    name: str
    description: str
    properties: Mapping[str, Any]
    version: int
    content_id: str
    content_hash: str
    file_count: int
    size_bytes: int
    replication_desired: int
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """A collection as it was before an update, with the fields that versions keep."""

    collection_id: str
    version: int
    repository_id: str
    name: str
    description: str
    properties: Mapping[str, Any]
    content_id: str
    content_hash: str
    file_count: int
    size_bytes: int
    modified_at: datetime


_CLIENTS_ID: Final = re.compile(r"[0-9a-z]{5}-4zz18-[0-9a-z]{15}")
_PORTABLE_HASH: Final = re.compile(r"[0-9a-f]{32}\+[0-9]+")
_COLUMNS: Final = tuple(collections.c[name] for name in CollectionRow.__dataclass_fields__)
_VERSION_COLUMNS: Final = tuple(
    collection_versions.c[name] for name in VersionRow.__dataclass_fields__
)


def find_collection(
    tx: Transaction, collection_id: str, *, locked: bool = False
) -> CollectionRow | None:
    """Returns one collection in any state, or None. With `locked` its row is locked until the end
    of the transaction."""
    query = sa.select(*_COLUMNS).where(collections.c.collection_id == collection_id)
    if locked:
        query = query.with_for_update(key_share=True)
    row = tx.execute(query).one_or_none()
    return None if row is None else CollectionRow(**row._mapping)


def collections_with_id(tx: Transaction, repository_id: str, name: str) -> list[CollectionRow]:
    """Returns the collections, in any state, that an id names: at most one, except for a hash.

    Ids are the store's id, the id that Arvados's clients know (`abcde-4zz18-…`), and the portable
    data hash, which several collections can have. The rows are sorted by the store's id.
    """
    query = sa.select(*_COLUMNS).where(collections.c.repository_id == repository_id)
    if _CLIENTS_ID.fullmatch(name) or _PORTABLE_HASH.fullmatch(name):
        more = arvados_collections.c
        column = more.portable_data_hash if "+" in name else more.uuid
        query = query.join_from(collections, arvados_collections).where(
            more.repository_id == repository_id, column == name
        )
    elif is_id(name):
        query = query.where(collections.c.collection_id == name)
    else:
        return []
    rows = tx.execute(query.order_by(collections.c.collection_id))
    return [CollectionRow(**row._mapping) for row in rows]


def clients_ids(tx: Transaction, collection_ids: Iterable[str]) -> dict[str, str]:
    """Returns the ids that Arvados's clients know, by the store's ids. Collections that these
    clients did not make have none."""
    more = arvados_collections.c
    found: dict[str, str] = {}
    for batch in in_batches(sorted(collection_ids)):
        query = sa.select(more.collection_id, more.uuid).where(more.collection_id.in_(batch))
        found.update((row.collection_id, row.uuid) for row in tx.execute(query))
    return found


def collections_named(tx: Transaction, project_id: str, name: str) -> list[CollectionRow]:
    """Returns all collections of this name in a project, also trashed and gone ones."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(collections.c.project_id == project_id, collections.c.name == name)
        .order_by(collections.c.collection_id)
    )
    return [CollectionRow(**row._mapping) for row in rows]


def collections_by_hash(
    tx: Transaction, repository_id: str, content_hash: str, *, states: StateFilter
) -> Iterator[CollectionRow]:
    """Yields the collections with this content: first the persistent ones, then by `expires_at`,
    the latest first. Only their own `expires_at` counts, not their projects'."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            collections.c.repository_id == repository_id,
            collections.c.content_hash == content_hash,
            *states.conditions(collections.c.expires_at),
        )
        .order_by(
            collections.c.expires_at.is_not(None),
            collections.c.expires_at.desc(),
            collections.c.collection_id,
        )
    )
    return (CollectionRow(**row._mapping) for row in rows)


def page_of_collections(
    tx: Transaction,
    project_id: str,
    *,
    states: StateFilter,
    prefix: str = "",
    name: str | None = None,
    after: tuple[str, str] = ("", ""),
    amount: int,
) -> list[CollectionRow]:
    """Returns at most `amount` collections of a project, sorted by name and id.

    Their names begin with `prefix`, and equal `name` if it is given. They sort after `after`, a
    pair of name and id.
    """
    query = sa.select(*_COLUMNS).where(
        collections.c.project_id == project_id,
        sa.tuple_(collections.c.name, collections.c.collection_id) > sa.tuple_(*after),
        *begins_with(collections.c.name, prefix),
        *states.conditions(collections.c.expires_at),
    )
    if name is not None:
        query = query.where(collections.c.name == name)
    rows = tx.execute(query.order_by(collections.c.name, collections.c.collection_id).limit(amount))
    return [CollectionRow(**row._mapping) for row in rows]


def collections_in_states(
    tx: Transaction,
    repository_id: str,
    *,
    states: StateFilter,
    after: tuple[str, str] = ("", ""),
    amount: int,
) -> list[CollectionRow]:
    """Returns at most `amount` collections of a repository in `states`, sorted by name and id.

    The collections can be in any project. They sort after `after`, a pair of name and id.
    """
    key = collections.c.collection_id
    rows = tx.execute(states.page(key, _COLUMNS, repository_id, after=after, amount=amount))
    return [CollectionRow(**row._mapping) for row in rows]


def insert_collection(tx: Transaction, row: CollectionRow) -> None:
    """Records a collection."""
    values = {name: getattr(row, name) for name in CollectionRow.__dataclass_fields__}
    tx.execute(sa.insert(collections).values(**values | {"properties": dict(row.properties)}))


def update_collection(
    tx: Transaction,
    collection_id: str,
    **values: Any,  # column name to new value
) -> None:
    """Changes columns of a collection."""
    tx.execute(
        sa.update(collections).where(collections.c.collection_id == collection_id).values(**values)
    )


def insert_version(tx: Transaction, row: VersionRow) -> None:
    """Records the present version of a collection, to keep it."""
    values = {name: getattr(row, name) for name in VersionRow.__dataclass_fields__}
    tx.execute(
        sa.insert(collection_versions).values(**values | {"properties": dict(row.properties)})
    )


def list_versions(
    tx: Transaction, collection_id: str, *, before: int | None = None, amount: int | None = None
) -> list[VersionRow]:
    """Returns the kept versions of a collection, the newest first: at most `amount`, from the
    versions before `before`."""
    query = sa.select(*_VERSION_COLUMNS).where(collection_versions.c.collection_id == collection_id)
    if before is not None:
        query = query.where(collection_versions.c.version < before)
    rows = tx.execute(query.order_by(collection_versions.c.version.desc()).limit(amount))
    return [VersionRow(**row._mapping) for row in rows]


def find_version(tx: Transaction, collection_id: str, version: int) -> VersionRow | None:
    """Returns one version of a collection, or None if it is not kept."""
    row = tx.execute(
        sa.select(*_VERSION_COLUMNS).where(
            collection_versions.c.collection_id == collection_id,
            collection_versions.c.version == version,
        )
    ).one_or_none()
    return None if row is None else VersionRow(**row._mapping)


def delete_version(tx: Transaction, collection_id: str, version: int) -> bool:
    """Deletes a kept version. Returns whether there was one."""
    dropped = tx.execute(
        sa.delete(collection_versions)
        .where(
            collection_versions.c.collection_id == collection_id,
            collection_versions.c.version == version,
        )
        .returning(collection_versions.c.version)
    )
    return bool(dropped.all())


@dataclass(frozen=True, slots=True)
class ContentUse:
    """A content that a collection has now, or has in a kept version."""

    collection_id: str
    project_id: str
    name: str
    version: int | None
    content_id: str
    expires_at: datetime | None
    replication_desired: int


def read_content_uses(tx: Transaction, repository_id: str) -> Iterator[ContentUse]:
    """Yields every content of the repository's collections, in any state. `version` is None for a
    collection's present content. A kept version ends with its collection, and keeps its data as its
    collection does."""
    mine = collections.c.repository_id == repository_id
    own = sa.select(
        collections.c.collection_id,
        collections.c.project_id,
        collections.c.name,
        sa.null().label("version"),
        collections.c.content_id,
        collections.c.expires_at,
        collections.c.replication_desired,
    ).where(mine)
    kept = (
        sa.select(
            collections.c.collection_id,
            collections.c.project_id,
            collections.c.name,
            collection_versions.c.version,
            collection_versions.c.content_id,
            collections.c.expires_at,
            collections.c.replication_desired,
        )
        .join_from(collection_versions, collections)
        .where(mine)
    )
    for query in (own, kept):
        for row in tx.execute(query):
            yield ContentUse(**row._mapping)


def is_collection_on(tx: Transaction, repository_id: str, content_id: str) -> bool:
    """Whether a collection, or a kept version of one, has this content."""
    for table in (collections, collection_versions):
        query = sa.select(table.c.collection_id).where(
            table.c.repository_id == repository_id, table.c.content_id == content_id
        )
        if tx.execute(query.limit(1)).first() is not None:
            return True
    return False


def delete_collections(tx: Transaction, collection_ids: list[str]) -> None:
    """Deletes collections and their versions."""
    for table in (collection_versions, collections):
        tx.execute(sa.delete(table).where(table.c.collection_id.in_(collection_ids)))
