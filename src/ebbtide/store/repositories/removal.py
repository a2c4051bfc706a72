"""Collecting a gone repository as a whole: checks and changes in the database, and its records.

Each function works in a transaction of its caller. All transactions of a run are therefore in one
place (`formats/gone.py`). Not for: the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import NotFound, Refused
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.settings import Settings
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import (
    branches,
    commits,
    leased_addresses,
    pending,
    readings,
    removals,
    schedules,
    upload_tokens,
)
from ebbtide.store.repositories.queries import (
    RepositoryInfo,
    repository_by_id,
    update_repository,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalRow:
    """A gone repository whose storage run `run_id` emptied, with the run's `report` as JSON.
    `finished_at` is None until OWNER is closed and the repository's rows are deleted."""

    repository_id: str
    run_id: str
    name: str
    storage_url: str
    report: Mapping[str, Any]  # JSON
    emptied_at: datetime
    finished_at: datetime | None = None


REMOVALS: Final = Rows(removals, RemovalRow, removals.c.repository_id)


def removals_named(tx: Transaction, name: str) -> list[RemovalRow]:
    """Returns the records of all repositories that had this name, the newest first."""
    query = REMOVALS.select(removals.c.name == name)
    return REMOVALS.all(tx, query.order_by(removals.c.emptied_at.desc()))


def finish_removal(tx: Transaction, repository_id: str) -> None:
    """Records that the removal is finished."""
    REMOVALS.update(tx, repository_id, finished_at=tx.now())


def require_removable(tx: Transaction, repository_id: str, promised: Settings) -> None:
    """Raises Refused unless the repository is gone, and all promises of it have ended.

    Promises are leases, writes, addresses for uploads, and readings. The database's clock decides.
    Raises Refused `repository_not_gone`, Refused `repository_in_use` with the time until which to
    wait, and NotFound `repository_not_found`.
    """
    info = repository_by_id(tx, repository_id)
    if info is None:
        raise NotFound("repository_not_found", f"no repository has the id {repository_id}")
    now = tx.now()
    if info.expires_at is None or (
        info.state_at(now, trash_time=promised.trash_time) is not LifecycleState.GONE
    ):
        raise Refused(
            "repository_not_gone",
            f"repository {info.name} ({repository_id}) is not gone: it was restored, or its "
            "time in the trash is not over",
        )
    until = _ends(tx, info, info.expires_at + promised.lease_ttl)
    what = max(until, key=lambda each: until[each])
    if until[what] > now:
        raise Refused(
            "repository_in_use",
            f"repository {info.name} ({repository_id}) is gone, but {what} may last until "
            f"{until[what]:%Y-%m-%d %H:%M:%S} UTC: collect it then",
        )


def _ends(tx: Transaction, info: RepositoryInfo, leased: datetime) -> dict[str, datetime]:
    """Returns the latest end of each kind of promise, by the kind's name in messages."""
    columns: dict[str, sa.Column[Any]] = {  # all of type Timestamp
        "a write in progress": pending.c.ends_at,
        "an address for an upload": upload_tokens.c.expires_at,
        "a list of uncommitted files": readings.c.ends_at,
        "a lease on a commit": commits.c.leased_until,
        "a signed URL": leased_addresses.c.leased_until,
    }
    found = {"a lease from before it expired": leased}
    for what, column in columns.items():
        last = tx.execute(
            sa.select(sa.func.max(column)).where(column.table.c.repository_id == info.repository_id)
        ).scalar_one()
        if last is not None:
            found[what] = last
    return found


def close_repository(tx: Transaction, repository_id: str, *, run_id: str) -> None:
    """Closes a repository for good: afterwards it cannot be restored, whatever a clock or setting
    says.

    Its branches are deleted, so that a process that still has it open finds no branch to write to.
    Its schedule is deleted too.
    """
    update_repository(tx, repository_id, tombstoned_by=run_id)
    tx.execute(sa.delete(branches).where(branches.c.repository_id == repository_id))
    tx.execute(sa.delete(schedules).where(schedules.c.repository_key == repository_id))
