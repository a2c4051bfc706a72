"""The one place that reads the time: of the host, of the database, of the object storage.

Everything else takes an instant, or a `Clock`, as an argument, so that tests set the time. What is
expired, gone or ended is judged by the database's time, read inside the transaction that acts on
it: several servers share a database, and their own clocks may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import sqlalchemy as sa


class Queries(Protocol):
    """What a clock needs of a transaction."""

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""

    @property
    def execute(self) -> Callable[..., sa.Result[Any]]:  # a row's types are the query's
        """Runs one statement in the transaction."""


class Clock(Protocol):
    """The three clocks that must agree before anything is written or deleted."""

    def host_now(self) -> datetime:
        """This machine's time, UTC."""

    def database_now(self, tx: Queries) -> datetime:
        """The database's time, UTC, to the microsecond; another call may give a later one."""

    def storage_time(self, last_modified: datetime) -> datetime:
        """The storage's time, UTC, told from the date that it gave a file written just now."""


class SystemClock:
    """The real clocks."""

    def host_now(self) -> datetime:
        """This machine's time, UTC."""
        return datetime.now(UTC)

    def database_now(self, tx: Queries) -> datetime:
        """The database's time, UTC.

        SQLite runs in this process and has no clock but the host's, of which its SQL functions
        give milliseconds only: the host is asked directly. PostgreSQL's `now()` stands still
        within a transaction, which may have waited for a lock; `clock_timestamp()` does not.
        """
        if tx.dialect_name == "sqlite":
            return self.host_now()

        import sqlalchemy as sa  # which takes long, and repositories without a database need not

        now: datetime = tx.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)

    def storage_time(self, last_modified: datetime) -> datetime:
        """What the storage itself wrote down; S3 gives whole seconds."""
        return last_modified.astimezone(UTC)
