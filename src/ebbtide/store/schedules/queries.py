"""Queries on the table of schedules. Each works in a transaction of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import repositories, schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule as it is stored. `repository` is the present name of the repository."""

    repository_key: str
    repository: str
    cron: str
    timezone: str
    jitter_seconds: int
    options: Mapping[str, Any]  # JSON
    set_by: str
    set_at: datetime
    next_due_at: datetime | None
    started_count: int = 0
    missed_count: int = 0
    skipped_count: int = 0
    starting_due_at: datetime | None = None
    starting_since: datetime | None = None
    last_due_at: datetime | None = None
    last_started_at: datetime | None = None
    last_run_id: str | None = None
    last_outcome: str | None = None
    last_error: Mapping[str, str] | None = None
    last_ended_at: datetime | None = None


_NAME = sa.func.coalesce(repositories.c.name, schedules.c.repository).label("repository")
_COLUMNS = [_NAME if each.name == "repository" else each for each in schedules.c]
"""A repository of the store can get another name when it is restored."""


def list_schedules(tx: Transaction) -> list[ScheduleRow]:
    """Returns all schedules, by the names of their repositories."""
    return [ScheduleRow(**row._mapping) for row in tx.execute(_select().order_by(_NAME))]


def find_schedule(
    tx: Transaction, repository_key: str, *, locks: bool = False
) -> ScheduleRow | None:
    """Returns the schedule of a repository, or None. With `locks`, its row stays locked until the
    end of the transaction."""
    query = _select().where(schedules.c.repository_key == repository_key)
    row = tx.execute(query.with_for_update(of=schedules) if locks else query).one_or_none()
    return None if row is None else ScheduleRow(**row._mapping)


def _select() -> sa.Select[Any]:
    joined = schedules.outerjoin(
        repositories, repositories.c.repository_id == schedules.c.repository_key
    )
    return sa.select(*_COLUMNS).select_from(joined)


def insert_schedule(tx: Transaction, values: Mapping[str, Any]) -> None:
    """Records a schedule. `values` has the columns by their names."""
    tx.execute(sa.insert(schedules).values(**values))


def update_schedule(tx: Transaction, repository_key: str, values: Mapping[str, Any]) -> None:
    """Sets columns of a schedule."""
    tx.execute(
        sa.update(schedules).where(schedules.c.repository_key == repository_key).values(**values)
    )


def claim_schedule(tx: Transaction, seen: ScheduleRow, values: Mapping[str, Any]) -> bool:
    """Sets columns of a schedule, if nobody has claimed its due time or set it since it was
    `seen`. Returns whether it did."""
    same = [
        schedules.c[name].is_not_distinct_from(getattr(seen, name))
        for name in ("repository_key", "set_at", "next_due_at", "starting_due_at")
    ]
    return tx.execute(sa.update(schedules).where(*same).values(**values)).rowcount == 1


def delete_schedule(tx: Transaction, repository_key: str) -> bool:
    """Deletes a schedule. Returns whether there was one."""
    done = tx.execute(sa.delete(schedules).where(schedules.c.repository_key == repository_key))
    return done.rowcount == 1
