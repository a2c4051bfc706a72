"""The database of a history: SQLite, whose transactions are points, copied and brought back.

Readers see one state while a writer has changed what it has not committed. Who wants to write
meanwhile waits, as the scheduler says. Not for: writers beside each other, as PostgreSQL has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.store.database.dialects import open_engine, sqlite_url
from ebbtide.store.database.engine import Metadata, Transaction
from tests.simulation.scheduler import ANY, CALL, LOCK_WAIT, READ, Scheduler
from tests.support.clock import ManualClock


class Database:
    """A file. `scheduler` is the one of the history that is under way."""

    def __init__(self, path: Path, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.writer: object | None = None
        self.engine = open_engine(sqlite_url(path))
        sa.event.listen(self.engine, "connect", _no_disk)
        self.plain = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        """For what happens outside of the history."""

    def copy(self) -> sqlite3.Connection:
        """What it holds, in memory."""
        copied = sqlite3.connect(":memory:", check_same_thread=False)
        self.plain.backup(copied)
        return copied

    def bring_back(self, copied: sqlite3.Connection) -> None:
        self.writer = None
        copied.backup(self.plain)

    def close(self) -> None:
        self.engine.dispose()
        self.plain.close()


def _no_disk(connection: Any, _record: object) -> None:  # the driver's own type
    """No power fails here."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA synchronous = OFF")


class _Transaction(Transaction):
    """A transaction whose changes are points."""

    scheduler: Scheduler

    @property
    def execute(self) -> Callable[..., sa.CursorResult[Any]]:  # a row's types are the query's

        def watched(statement: Any, *arguments: Any, **options: Any) -> sa.CursorResult[Any]:
            if isinstance(statement, sa.UpdateBase):
                method = type(statement).__name__.upper()
                table = getattr(statement, "table", None)
                self.scheduler.point(f"{method} {getattr(table, 'name', '')}")
            return execute(statement, *arguments, **options)

        execute = super().execute
        return watched


class SimulatedMetadata(Metadata):
    """A database as one process sees it."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        super().__init__(database.engine, clock)
        self._database = database

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        database, scheduler = self._database, self._database.scheduler
        _require(scheduler.point("begin", allowed=READ))
        scheduler.wait_for(
            "the writer before it", lambda: database.writer is None, longest=LOCK_WAIT
        )
        database.writer = scheduler.current
        lost = None
        try:
            with super().transaction() as tx:
                watched = _Transaction(tx.connection, self.clock)
                watched.scheduler = scheduler
                yield watched
                lost = scheduler.point("commit", allowed=CALL, effect=True)
                _require(lost)
        finally:
            database.writer = None
        if lost == "lose":
            raise Failed("database_error", "the answer of COMMIT was lost")
        if lost == "die":
            scheduler.die()

    @contextmanager
    def snapshot(self, *, scans: bool = False) -> Iterator[Transaction]:
        """See `Metadata.snapshot`; by one connection, without threads."""
        del scans
        _require(self._database.scheduler.point("read", allowed=READ))
        with super().snapshot() as tx:
            yield tx
            # What was read may be old by now.
            self._database.scheduler.point("end of reading", allowed=ANY)


def _require(fault: str | None) -> None:
    if fault == "fail":
        raise Failed("database_error", "the database was made to fail")
