"""Queries: collections, and the earlier versions that somebody asked to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.expiries import StateFilter
from ebbtide.store.metadata.prefixes import begins_with
from ebbtide.store.metadata.schema import collection_versions, collections


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
    """What a collection was before an update, as far as versions keep it."""

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


_COLUMNS: Final = tuple(collections.c[name] for name in CollectionRow.__dataclass_fields__)
_VERSION_COLUMNS: Final = tuple(
    collection_versions.c[name] for name in VersionRow.__dataclass_fields__
)


def find_collection(
    tx: Transaction, collection_id: str, *, locked: bool = False
) -> CollectionRow | None:
    """One collection, in whatever state; its row is held until the transaction's end if asked."""
    query = sa.select(*_COLUMNS).where(collections.c.collection_id == collection_id)
    if locked:
        query = query.with_for_update(key_share=True)
    row = tx.execute(query).one_or_none()
    return None if row is None else CollectionRow(**row._mapping)


def collections_named(tx: Transaction, project_id: str, name: str) -> list[CollectionRow]:
    """All collections of that name in a project, trashed and gone ones too."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(collections.c.project_id == project_id, collections.c.name == name)
        .order_by(collections.c.collection_id)
    )
    return [CollectionRow(**row._mapping) for row in rows]


def collections_by_hash(
    tx: Transaction, repository_id: str, content_hash: str, *, states: StateFilter
) -> Iterator[CollectionRow]:
    """Collections of that content, by their own `expires_at`: persistent ones first, then those
    that expire last."""
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
    """At most `amount` collections of a project behind (name, id), by name and id, of those whose
    names have the prefix, or are `name`."""
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
    """At most `amount` collections of a repository behind (name, id) that are in `states`, wherever
    they lie, by name and id."""
    key = collections.c.collection_id
    rows = tx.execute(states.page(key, _COLUMNS, repository_id, after=after, amount=amount))
    return [CollectionRow(**row._mapping) for row in rows]


def insert_collection(tx: Transaction, row: CollectionRow) -> None:
    """Record a collection."""
    values = {name: getattr(row, name) for name in CollectionRow.__dataclass_fields__}
    tx.execute(sa.insert(collections).values(**values | {"properties": dict(row.properties)}))


def update_collection(
    tx: Transaction,
    collection_id: str,
    **values: Any,  # of the columns' own types
) -> None:
    """Change columns of a collection."""
    tx.execute(
        sa.update(collections).where(collections.c.collection_id == collection_id).values(**values)
    )


def insert_version(tx: Transaction, row: VersionRow) -> None:
    """Keep what a collection is until now."""
    values = {name: getattr(row, name) for name in VersionRow.__dataclass_fields__}
    tx.execute(
        sa.insert(collection_versions).values(**values | {"properties": dict(row.properties)})
    )


def list_versions(
    tx: Transaction, collection_id: str, *, before: int | None = None, amount: int | None = None
) -> list[VersionRow]:
    """The versions of a collection that are kept, the newest first: those before version `before`,
    and at most `amount`."""
    query = sa.select(*_VERSION_COLUMNS).where(collection_versions.c.collection_id == collection_id)
    if before is not None:
        query = query.where(collection_versions.c.version < before)
    rows = tx.execute(query.order_by(collection_versions.c.version.desc()).limit(amount))
    return [VersionRow(**row._mapping) for row in rows]


def find_version(tx: Transaction, collection_id: str, version: int) -> VersionRow | None:
    """One version of a collection, if it is kept."""
    row = tx.execute(
        sa.select(*_VERSION_COLUMNS).where(
            collection_versions.c.collection_id == collection_id,
            collection_versions.c.version == version,
        )
    ).one_or_none()
    return None if row is None else VersionRow(**row._mapping)


def delete_version(tx: Transaction, collection_id: str, version: int) -> bool:
    """Drop a version that was kept. Whether there was one."""
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
    """One content that a collection has, or had in a version that is kept."""

    collection_id: str
    project_id: str
    name: str
    version: int | None
    content_id: str
    expires_at: datetime | None
    replication_desired: int


def read_content_uses(tx: Transaction, repository_id: str) -> Iterator[ContentUse]:
    """Every content that a collection of the repository has, in whatever state the collection is;
    `version` is None for what it has now. Versions end with their collection, and keep their data
    if it does."""
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
    """Whether a collection, or a kept version of one, has that content."""
    for table in (collections, collection_versions):
        query = sa.select(table.c.collection_id).where(
            table.c.repository_id == repository_id, table.c.content_id == content_id
        )
        if tx.execute(query.limit(1)).first() is not None:
            return True
    return False


def delete_collections(tx: Transaction, collection_ids: list[str]) -> None:
    """Drop collections with their versions."""
    for table in (collection_versions, collections):
        tx.execute(sa.delete(table).where(table.c.collection_id.in_(collection_ids)))
