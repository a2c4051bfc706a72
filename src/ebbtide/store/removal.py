"""Collecting a gone repository as a whole: its checks and changes in the database.

Each function works in a transaction of its caller. All transactions of a run are therefore in one
place (`formats/gone.py`). Not for: the files.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.errors import NotFound, Refused
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.settings import Settings
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.repositories import (
    RepositoryInfo,
    repository_by_id,
    update_repository,
)
from ebbtide.store.metadata.schema import branches, commits, pending, readings, upload_tokens


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
    columns: dict[str, sa.Column[Any]] = {  # of Timestamp
        "a write in progress": pending.c.ends_at,
        "an address for an upload": upload_tokens.c.expires_at,
        "a list of uncommitted files": readings.c.ends_at,
        "a lease on a commit": commits.c.leased_until,
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
    """Closes a repository for good: from this transaction on no clock or setting restores it.

    Its branches are deleted, so that a process that still has it open finds no branch to write to.
    """
    update_repository(tx, repository_id, tombstoned_by=run_id)
    tx.execute(sa.delete(branches).where(branches.c.repository_id == repository_id))
