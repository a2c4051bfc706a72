"""Queries: the store's own record, repositories and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import LockMode, Transaction
from ebbtide.store.metadata.prefixes import begins_with
from ebbtide.store.metadata.schema import (
    branches,
    commits,
    metadata,
    owner_epochs,
    repositories,
    store_info,
)


@dataclass(frozen=True, slots=True)
class RepositoryInfo:
    """One repository. `storage_url` is its root, normalized."""

    repository_id: str
    name: str
    storage_url: str
    default_branch: str
    created_at: datetime


_COLUMNS: Final = (
    repositories.c.repository_id,
    repositories.c.name,
    repositories.c.storage_url,
    repositories.c.default_branch,
    repositories.c.created_at,
)


def read_store_id(tx: Transaction) -> str | None:
    """The store's id; None in a database that holds tables but no store."""
    store_id: str | None = tx.execute(sa.select(store_info.c.store_id)).scalar_one_or_none()
    return store_id


def insert_store(tx: Transaction, store_id: str) -> None:
    """Record that the database is a store's."""
    tx.execute(sa.insert(store_info).values(store_id=store_id, created_at=tx.now()))


def insert_repository(tx: Transaction, info: RepositoryInfo) -> None:
    """Record a repository. Its name and root are unique."""
    tx.execute(
        sa.insert(repositories).values(
            repository_id=info.repository_id,
            name=info.name,
            storage_url=info.storage_url,
            default_branch=info.default_branch,
            created_at=info.created_at,
        )
    )


def delete_new_repository(tx: Transaction, repository_id: str) -> None:
    """Drop a repository that was just made, and has no rows but those of its making."""
    for table in (owner_epochs, branches, commits):
        tx.execute(sa.delete(table).where(table.c.repository_id == repository_id))
    tx.execute(sa.delete(repositories).where(repositories.c.repository_id == repository_id))


def lock_all_repositories(tx: Transaction, mode: LockMode = "exclusive") -> None:
    """Wait for whoever makes a repository, and make them wait: roots are compared with all.

    Shared by whoever only compares with them.
    """
    tx.execute(sa.select(store_info.c.store_id).with_for_update(read=mode == "share"))


_BY_NAME: Final = sa.select(*_COLUMNS).where(repositories.c.name == sa.bindparam("name"))
"""Made once: every request runs it, and making it takes longer than running it."""


def find_repository(tx: Transaction, name: str) -> RepositoryInfo | None:
    """The repository of that name."""
    row = tx.execute(_BY_NAME, {"name": name}).one_or_none()
    return None if row is None else RepositoryInfo(**row._mapping)


def list_repositories(tx: Transaction) -> list[RepositoryInfo]:
    """All repositories, by name."""
    rows = tx.execute(sa.select(*_COLUMNS).order_by(repositories.c.name))
    return [RepositoryInfo(**row._mapping) for row in rows]


def page_of_repositories(
    tx: Transaction, *, prefix: str, after: str, amount: int, search: str = ""
) -> list[RepositoryInfo]:
    """At most `amount` repositories behind a name, by name; those whose names hold `search`."""
    name: sa.ColumnElement[str] = repositories.c.name
    if tx.dialect_name == "postgresql":
        name = sa.collate(name, "C")
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(name > after, *begins_with(name, prefix), name.contains(search, autoescape=True))
        .order_by(name)
        .limit(amount)
    )
    return [RepositoryInfo(**row._mapping) for row in rows]


def delete_repository(tx: Transaction, repository_id: str) -> None:
    """Drop every row of a repository."""
    for table in reversed(metadata.sorted_tables):
        if "repository_id" in table.columns:
            tx.execute(sa.delete(table).where(table.c.repository_id == repository_id))


def read_policy(tx: Transaction, repository_id: str) -> object:
    """The policy as it was stored; None where none is set."""
    return tx.execute(
        sa.select(repositories.c.policy).where(repositories.c.repository_id == repository_id)
    ).scalar_one()


def write_policy(
    tx: Transaction,
    repository_id: str,
    policy: Mapping[str, Any] | None,  # JSON
) -> None:
    """Set or unset the policy."""
    tx.execute(
        sa.update(repositories)
        .where(repositories.c.repository_id == repository_id)
        .values(policy=policy)
    )
