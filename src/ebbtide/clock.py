"""The clocks of host, database and object storage. Only this module reads the time.

All other modules take an instant or a `Clock` as an argument, so that tests can set the time. The
database's time decides whether a thing has expired or ended, because several servers share a
database and their own clocks may differ. It is read inside the transaction that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import sqlalchemy as sa


class Queries(Protocol):
    """The parts of a transaction that a clock needs."""

    @property
    def in_process(self) -> bool:
        """Whether the database runs in this process: SQLite."""

    @property
    def execute(self) -> Callable[..., sa.Result[Any]]:  # the query decides the types
        """Runs one statement in the transaction."""


class Clock(Protocol):
    """The three clocks that must agree before anything is written or deleted."""

    def host_now(self) -> datetime:
        """Returns this machine's time, UTC."""

    def database_now(self, tx: Queries) -> datetime:
        """Returns the database's time, UTC, to the microsecond. The next call may return a later
        time."""

    def storage_time(self, last_modified: datetime) -> datetime:
        """Returns the storage's time, UTC, from the date of a file that was written just now."""


@cache
def _clock_timestamp() -> sa.Select[Any]:
    """Returns the statement that reads PostgreSQL's clock. It is built once: building it takes
    longer than running it."""
    import sqlalchemy as sa  # slow, and not needed for repositories without a database

    return sa.select(sa.func.clock_timestamp())


class SystemClock:
    """The real clocks."""

    def host_now(self) -> datetime:
        """Returns this machine's time, UTC."""
        return datetime.now(UTC)

    def database_now(self, tx: Queries) -> datetime:
        """Returns the database's time, UTC.

        SQLite runs in this process and uses the host's clock. Its SQL functions return only
        milliseconds, so that the host's clock is read directly. In PostgreSQL, `now()` does not
        change within a transaction, which may have waited for a lock; `clock_timestamp()` does.
        """
        if tx.in_process:
            return self.host_now()

        now: datetime = tx.execute(_clock_timestamp()).scalar_one()
        return now.astimezone(UTC)

    def storage_time(self, last_modified: datetime) -> datetime:
        """Returns the date that the storage recorded; S3 has whole seconds."""
        return last_modified.astimezone(UTC)
