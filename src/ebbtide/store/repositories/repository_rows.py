"""Queries: the record of the store itself, repositories and their policies, and promised times.

The times of the store's promises are in the database, and the same for all processes. One process
makes a promise. Another one keeps it, or breaks it by deleting too early. A scheduled job whose
environment has a shorter time must not break it. The times are taken from the settings when the
store is made. A later change applies to all processes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented
from ebbtide.errors import InvalidInput
from ebbtide.model import ONE_MICROSECOND
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.settings import Settings, check_settings
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import (
    access_key_grants,
    branches,
    commits,
    metadata,
    owner_epochs,
    promised_times,
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


LASTING: Final = REPOSITORIES.select(
    repositories.c.name == sa.bindparam("name", type_=sa.Text), repositories.c.expires_at.is_(None)
)
"""The usual repository of a name. At most one has no end."""


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


def read_times(tx: Transaction) -> dict[str, timedelta]:
    """Returns all recorded times, by the name of the setting."""
    rows = tx.execute(sa.select(promised_times.c.name, promised_times.c.microseconds))
    return {row.name: row.microseconds * ONE_MICROSECOND for row in rows}


def write_times(tx: Transaction, times: Mapping[str, timedelta]) -> None:
    """Records these times, in place of earlier ones of the same names."""
    tx.execute(sa.delete(promised_times).where(promised_times.c.name.in_(list(times))))
    tx.execute(
        sa.insert(promised_times),
        [
            {"name": name, "microseconds": time // ONE_MICROSECOND}
            for name, time in sorted(times.items())
        ],
    )


PROMISED: Final = ("lease_ttl", "trash_time", "upload_ttl", "prepare_ttl")
"""The settings that are times of promises, which other processes keep later."""


def promised(tx: Transaction, settings: Settings) -> Settings:
    """Returns the settings of a process, with the times that the store promises.

    A process that deletes calls this in the transaction that decides, because the times may have
    changed since the process began.
    """
    return settings.model_copy(update=read_times(tx))


def times_of(settings: Settings) -> dict[str, timedelta]:
    """Returns the times of promises in the settings, by name."""
    return {name: getattr(settings, name) for name in PROMISED}


def promise(tx: Transaction, times: Mapping[str, timedelta]) -> None:
    """Sets times of promises, by name, for all processes. Other times stay.

    Raises InvalidInput `invalid_argument` for an unknown name, `invalid_setting` for an invalid
    time.
    """
    for name in times:
        if name not in PROMISED:
            raise InvalidInput(
                "invalid_argument",
                f"{name} is no promised time: it is one of {', '.join(PROMISED)}",
            )
    if times:
        write_times(tx, check_settings(times))
