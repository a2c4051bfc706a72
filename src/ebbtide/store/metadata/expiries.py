"""Conditions on `expires_at`: which states, and which dates, a list is asked for.

A database sees dates, not states: what has expired by itself changes no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ebbtide.retention.dates import to_utc
from ebbtide.retention.lifecycle import LifecycleState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """What to list at `now`: what is not trashed, with `include_expired` the trash too, and of
    these only what is in `state` or expires within [`from_date`, `to_date`)."""

    now: datetime
    trash_time: timedelta
    include_expired: bool = False
    state: LifecycleState | None = None
    from_date: datetime | None = None
    to_date: datetime | None = None

    def conditions(self, expires_at: sa.Column[datetime]) -> list[sa.ColumnElement[bool]]:
        """The same in SQL, for rows with that column. What is gone never fits. Raises InvalidInput
        `invalid_date` for a date without a zone."""
        horizon = self.now - self.trash_time if self.include_expired else self.now
        found = [sa.or_(expires_at.is_(None), expires_at > horizon)]
        if self.state is LifecycleState.PERSISTENT:
            found.append(expires_at.is_(None))
        elif self.state is LifecycleState.EXPIRING:
            found.append(expires_at > self.now)
        elif self.state is LifecycleState.TRASHED:
            found.append(expires_at <= self.now)
        elif self.state is LifecycleState.GONE:
            found.append(sa.false())
        if self.from_date is not None:
            found.append(expires_at >= to_utc(self.from_date, what="from_date"))
        if self.to_date is not None:
            found.append(expires_at < to_utc(self.to_date, what="to_date"))
        return found

    def page(
        self,
        key: sa.Column[str],
        columns: Sequence[sa.ColumnElement[Any]],
        repository_id: str,
        *,
        after: tuple[str, str],
        amount: int,
    ) -> sa.Select[Any]:
        """At most `amount` rows of a repository, of the table of projects or collections whose key
        that is, behind (name, key), by name and key. Raises as `conditions`."""
        row = key.table.c
        return (
            sa.select(*columns)
            .where(
                row.repository_id == repository_id,
                sa.tuple_(row.name, key) > sa.tuple_(*after),
                *self.conditions(row.expires_at),
            )
            .order_by(row.name, key)
            .limit(amount)
        )
