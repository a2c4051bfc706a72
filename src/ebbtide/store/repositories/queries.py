"""Queries: the record of the store itself, repositories and their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import (
    access_key_grants,
    branches,
    commits,
    metadata,
    owner_epochs,
    purges,
    removals,
    repositories,
    store_info,
)


@documented
@dataclass(frozen=True, slots=True)
class RepositoryInfo:
    """One repository. `storage_url` is its normalized storage root. `tombstoned_by` names the run
    that collects it: the repository is then gone for good, whatever the time. `namespace` is the
    root as its creator wrote it, or None if it is the URL."""

    repository_id: str
    name: str
    storage_url: str
    default_branch: str
    created_at: datetime
    expires_at: datetime | None = None
    tombstoned_by: str | None = field(default=None, metadata=HIDDEN)
    namespace: str | None = field(default=None, metadata=HIDDEN)

    def state_at(self, now: datetime, *, trash_time: timedelta) -> LifecycleState:
        """Returns the lifecycle state of the repository at `now`."""
        if self.tombstoned_by is not None:
            return LifecycleState.GONE
        return state_at(self.expires_at, trash_time=trash_time, now=now)


REPOSITORIES: Final = Rows(repositories, RepositoryInfo, repositories.c.repository_id)


def read_store_id(tx: Transaction) -> str | None:
    """Returns the store's id, or None if the database has tables but no store."""
    store_id: str | None = tx.execute(sa.select(store_info.c.store_id)).scalar_one_or_none()
    return store_id


def insert_store(tx: Transaction, store_id: str) -> None:
    """Records that this database belongs to the store."""
    tx.execute(sa.insert(store_info).values(store_id=store_id, created_at=tx.now()))


def insert_repository(tx: Transaction, info: RepositoryInfo) -> None:
    """Records a repository. Its storage root must be unique."""
    REPOSITORIES.insert(tx, info)


def update_repository(
    tx: Transaction,
    repository_id: str,
    **values: Any,  # values of the columns' types
) -> None:
    """Changes columns of a repository."""
    REPOSITORIES.update(tx, repository_id, **values)


def delete_new_repository(tx: Transaction, repository_id: str) -> None:
    """Deletes a repository that was just created, if it exists, with the rows of its creation. It
    must have no other rows."""
    mine = repositories.c.repository_id == repository_id
    # Waits for transactions that add rows to the repository, so that none of their rows is left
    # over.
    tx.execute(sa.select(repositories.c.repository_id).where(mine).with_for_update())
    for table in (owner_epochs, branches, commits):
        tx.execute(sa.delete(table).where(table.c.repository_id == repository_id))
    tx.execute(sa.delete(repositories).where(mine))


def lock_all_repositories(tx: Transaction, mode: LockMode = "exclusive") -> None:
    """Locks out other transactions that create, delete or restore a repository. Each of them
    compares a storage root or a name with those of all repositories.

    A transaction that only compares takes the lock shared.
    """
    tx.execute(sa.select(store_info.c.store_id).with_for_update(read=mode == "share"))


_BY_NAME: Final = REPOSITORIES.select(repositories.c.name == sa.bindparam("name")).order_by(
    repositories.c.expires_at.desc(), repositories.c.repository_id
)
"""Built once: every request runs this statement, and building it takes longer than running it."""


def repositories_named(tx: Transaction, name: str) -> list[RepositoryInfo]:
    """Returns all repositories of this name, also trashed and gone ones, the latest expiry
    first."""
    return REPOSITORIES.all(tx, _BY_NAME, {"name": name})


def find_repository(tx: Transaction, name: str) -> RepositoryInfo | None:
    """Returns the repository of this name that is not trashed, by the database's clock."""
    found = repositories_named(tx, name)
    persistent = next((info for info in found if info.expires_at is None), None)
    if persistent is not None or not found:
        # This is the usual case. It needs no time of the database.
        return persistent
    now = tx.now()
    return next((i for i in found if i.expires_at is not None and i.expires_at > now), None)


def repository_by_id(tx: Transaction, repository_id: str) -> RepositoryInfo | None:
    """Returns the repository with this id, also a trashed or gone one."""
    return REPOSITORIES.by_id(tx, repository_id)


def list_repositories(tx: Transaction) -> list[RepositoryInfo]:
    """Returns all repositories, also trashed and gone ones, by name and id."""
    order = (repositories.c.name, repositories.c.repository_id)
    return REPOSITORIES.all(tx, REPOSITORIES.select().order_by(*order))


def delete_repository(tx: Transaction, repository_id: str) -> None:
    """Deletes all rows of a repository. Records of purges and removals stay, because they outlast
    it."""
    for table in reversed(metadata.sorted_tables):
        if "repository_id" in table.columns and table not in (purges, removals):
            tx.execute(sa.delete(table).where(table.c.repository_id == repository_id))


def delete_grants(tx: Transaction, repository_id: str) -> None:
    """Deletes the roles that access keys have in a repository."""
    tx.execute(
        sa.delete(access_key_grants).where(access_key_grants.c.repository_id == repository_id)
    )


def read_policy(tx: Transaction, repository_id: str) -> object:
    """Returns the policy as it was stored, or None if no policy is set."""
    return tx.execute(
        sa.select(repositories.c.policy).where(repositories.c.repository_id == repository_id)
    ).scalar_one()


def write_policy(
    tx: Transaction,
    repository_id: str,
    policy: Mapping[str, Any] | None,  # JSON
) -> None:
    """Sets the policy, or unsets it if `policy` is None."""
    update_repository(tx, repository_id, policy=policy)


_PROTECTED: Final = sa.select(repositories.c.protected_branches).where(
    repositories.c.repository_id == sa.bindparam("repository_id")
)
"""Built once: every write to a branch runs this statement."""


def read_protected(tx: Transaction, repository_id: str) -> list[str]:
    """Returns the patterns of protected branches."""
    stored = tx.execute(_PROTECTED, {"repository_id": repository_id}).scalar_one()
    return list(stored or ())


def write_protected(tx: Transaction, repository_id: str, patterns: Sequence[str]) -> None:
    """Sets the patterns of protected branches."""
    update_repository(tx, repository_id, protected_branches=list(patterns) or None)


def read_metadata(tx: Transaction, repository_id: str) -> dict[str, str]:
    """Returns the metadata of a repository."""
    stored = tx.execute(
        sa.select(repositories.c.metadata).where(repositories.c.repository_id == repository_id)
    ).scalar_one()
    return dict(stored or {})


def write_metadata(tx: Transaction, repository_id: str, written: Mapping[str, str]) -> None:
    """Sets the metadata of a repository."""
    update_repository(tx, repository_id, metadata=dict(written) or None)
