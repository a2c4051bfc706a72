"""SQL conditions on `expires_at`: filters lists by state and date.

The database stores dates, not states: when something expires by itself, no row changes.
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
    """Selects the items to list at `now`. Trashed items are selected only with `include_expired`.
    `state` and the interval [`from_date`, `to_date`) of `expires_at` restrict the list further."""

    now: datetime
    trash_time: timedelta
    include_expired: bool = False
    state: LifecycleState | None = None
    from_date: datetime | None = None
    to_date: datetime | None = None

    def conditions(self, expires_at: sa.Column[datetime]) -> list[sa.ColumnElement[bool]]:
        """Returns this filter as SQL conditions on the column `expires_at`. Gone items never meet
        them. Raises InvalidInput `invalid_date` for a date without a zone."""
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
        """Returns a query for at most `amount` rows of a repository, after the pair `after` of name
        and key, by name and key. `key` is the key column of the table `projects` or `collections`.
        Raises as `conditions` does."""
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
