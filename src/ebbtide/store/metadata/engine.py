"""The metadata database: how it is opened, and the two kinds of transaction on it.

Not for: tables (`schema`), their versions (`migrate`), or queries (one module per table group).

Transactions are never tried again here: the caller decided on what it read in the one that failed.
A deadlock or a lock that is not given in time is Failed `database_error`, and the whole operation
may be asked for again.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ebbtide.clock import Clock
from ebbtide.errors import Failed, InvalidInput, NotFound, disk_full
from ebbtide.store.metadata.lanes import LANES, Lane, in_turn, open_lanes
from ebbtide.store.metadata.schema import repositories, store_info
from ebbtide.store.metadata.turns import Turns

LOCK_TIMEOUT_SECONDS: Final = 30
ROOM_BYTES_MIN: Final = 1 << 20
"""With less on its disk SQLite cannot be sure to work at all."""
FILE_MODE: Final = 0o600
MAPPED_BYTES_MAX: Final = 1 << 40
"""As much of a file as SQLite was built to map: 2 GB, where nothing else was said."""
SCATTERED_KIBIBYTES: Final = 256
"""Of pages that a connection keeps while it reads rows that lie anywhere, not 2,000."""
BEGIN_OPTION: Final = "ebbtide_begin"
"""Execution option of a connection: how a transaction on SQLite begins."""

_Item = TypeVar("_Item")
_DISK_FULL: Final = "53100"
"""Appendix A, "PostgreSQL Error Codes", of PostgreSQL's documentation."""
_READ_ONLY: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"

LockMode = Literal["share", "exclusive"]


class Transaction:
    """One transaction. What it did is undone when its block ends with an exception."""

    def __init__(
        self, connection: sa.Connection, clock: Clock, lanes: tuple[Lane, ...] = ()
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._lanes = lanes

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._connection.dialect.name

    @property
    def connection(self) -> sa.Connection:
        """The connection itself, for what reads in batches through a server-side cursor."""
        return self._connection

    @property
    def execute(self) -> Callable[..., sa.CursorResult[Any]]:  # a row's types are the query's
        """Runs one statement."""
        return self._connection.execute

    def now(self) -> datetime:
        """The database's time at this call. What is expired is judged by it, and late."""
        return self._clock.database_now(self)

    @property
    def reader_count(self) -> int:
        """How many readings `read` does at a time."""
        return max(1, len(self._lanes))

    def read(
        self, readings: Sequence[Callable[[sa.Connection], Iterator[_Item]]]
    ) -> Iterator[_Item]:
        """What all of them yield, of the state that this transaction sees. A reading may run in
        another thread; none goes on once the transaction ends."""
        if not self._lanes:
            return itertools.chain.from_iterable(reading(self._connection) for reading in readings)
        lanes = itertools.cycle(self._lanes)
        return in_turn(
            [lane.ahead(reading) for lane, reading in zip(lanes, readings, strict=False)]
        )

    def lock_repository(
        self, repository_id: str, mode: LockMode = "share", *, trashed: bool = False
    ) -> None:
        """Hold the repository's row until the end.

        Shared by whoever changes a ref, policy or hold or publishes a commit; exclusive for the
        fence, and for what must be alone among those. On SQLite a write transaction is alone
        already. NotFound `repository_not_found` when the repository is no more, or is not live,
        unless `trashed`: for runs, and for what brings it back.
        """
        # The exclusive lock is the weaker one of PostgreSQL's two (NO KEY UPDATE), which the
        # foreign keys of rows that are inserted meanwhile do not wait for.
        shared = mode == "share"
        row = self.execute(
            sa.select(repositories.c.expires_at)
            .where(repositories.c.repository_id == repository_id)
            .with_for_update(read=shared, key_share=not shared)
        ).one_or_none()
        is_expired = row is not None and row.expires_at is not None and row.expires_at <= self.now()
        if row is None or (is_expired and not trashed):
            raise NotFound(
                "repository_not_found",
                f"no repository has the id {repository_id}"
                + (" any more: it was deleted or has expired" if is_expired else ""),
            )


class Metadata:
    """The database of one store. Thread-safe; every block has a connection of its own."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._writing = Turns()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that writes: `BEGIN IMMEDIATE` on SQLite, READ COMMITTED on PostgreSQL.

        Raises Failed `database_error` when the database breaks, or locks out for too long.
        """
        with self._turn(), self._begin("BEGIN IMMEDIATE", None) as tx:
            yield tx

    @contextmanager
    def snapshot(self, *, scans: bool = False) -> Iterator[Transaction]:
        """A transaction that only reads, and sees one state of the database from its first read.
        One that `scans` goes through whole tables.

        Raises Failed `database_error` when the database breaks.
        """
        if scans and database_file(self.engine) is not None:
            with self._scanning() as tx:
                yield tx
        else:
            with self._begin("BEGIN", _READ_ONLY) as tx:
                yield tx

    @contextmanager
    def _scanning(self) -> Iterator[Transaction]:
        """A transaction with lanes, of a SQLite file that is read as a part of memory."""
        with ExitStack() as readers, ExitStack() as writer:
            count = LANES
            try:
                writer.enter_context(self._turn())
                writer.enter_context(self._begin("BEGIN IMMEDIATE", None))
            except Failed:
                count = 0  # somebody writes for long
            transactions = []
            for _ in range(1 + count):
                tx = readers.enter_context(self._begin("BEGIN", None))
                readers.enter_context(_mapped(tx.connection))
                # With the first read a state is chosen: one for all, since nobody else writes.
                tx.execute(sa.select(store_info.c.store_id)).close()
                transactions.append(tx)
            writer.close()
            first, *others = (tx.connection for tx in transactions)
            lanes = readers.enter_context(open_lanes(others))
            yield Transaction(first, self.clock, lanes)

    def close(self) -> None:
        """Close every connection that is idle."""
        self.engine.dispose()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Among the threads that write: those of SQLite alone, for PostgreSQL keeps a queue."""
        with ExitStack() as stack:
            if self.engine.dialect.name == "sqlite":
                try:
                    stack.enter_context(self._writing.turn(LOCK_TIMEOUT_SECONDS))
                except TimeoutError as error:
                    raise _failed("others have been writing all the time") from error
            yield

    @contextmanager
    def _begin(self, sqlite: str, postgresql: str | None) -> Iterator[Transaction]:
        with translated_errors(self.engine), self.engine.connect() as connection:
            connection = connection.execution_options(**{BEGIN_OPTION: sqlite})
            with connection.begin():
                if postgresql is not None and connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(postgresql)
                yield Transaction(connection, self.clock)


@contextmanager
def _mapped(connection: sa.Connection) -> Iterator[None]:  # of SQLite
    """Read a SQLite file as a part of memory: where it lies in no cache, the system reads around
    what is asked for. The pages of a table that was not filled in its order lie anywhere, and one
    by one they take eight times as long. Not for every connection: where the disk fails, a process
    that has a file mapped is ended by a signal, and gets no error."""
    _map(connection, MAPPED_BYTES_MAX)
    try:
        yield
    finally:
        _map(connection, 0)


@contextmanager
def unmapped(connection: sa.Connection) -> Iterator[None]:
    """Read page by page meanwhile, and nothing around a page: for rows that lie anywhere, of which
    so few are wanted that the system would read the whole file for them. Few pages are kept: but
    for those at the top of an index hardly one is wanted twice, and the system keeps them too."""
    if connection.dialect.name != "sqlite":
        yield
        return
    mapped = connection.exec_driver_sql("PRAGMA mmap_size").scalar()
    kept = connection.exec_driver_sql("PRAGMA cache_size").scalar()
    _map(connection, 0)
    _keep(connection, -SCATTERED_KIBIBYTES)
    try:
        yield
    finally:
        _keep(connection, kept or 0)
        _map(connection, mapped or 0)


def _map(connection: sa.Connection, bytes_max: int) -> None:  # of SQLite
    connection.exec_driver_sql(f"PRAGMA mmap_size = {bytes_max}").close()


def _keep(connection: sa.Connection, cache_size: int) -> None:  # of SQLite
    connection.exec_driver_sql(f"PRAGMA cache_size = {cache_size}").close()


@contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """SQLAlchemy's errors as Failed `database_error`, or `disk_full`: statement, values and URL
    stay out."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        # SQLite's own errors: those of the settings that each connection begins with.
        cause = getattr(error, "orig", None) or error
        if _is_full(cause, database_file(engine)):
            raise disk_full("the disk of the metadata database", _first_line(cause)) from error
        raise _failed(_first_line(cause)) from error


def _is_full(error: BaseException, file: Path | None) -> bool:
    """Whether a database has no room. SQLite says so of its file and its log; of the file of
    memory that its processes share it says that the disk fails, whatever the reason."""
    if not isinstance(error, sqlite3.Error):
        return getattr(error, "sqlstate", None) == _DISK_FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest tells what it was doing
    if code != sqlite3.SQLITE_IOERR or file is None:
        return code == sqlite3.SQLITE_FULL
    return shutil.disk_usage(file.parent).free < ROOM_BYTES_MIN


def _failed(reason: str) -> Failed:
    return Failed(
        "database_error",
        f"the metadata database answered with an error ({reason}): try again, and look at "
        "the database if it stays",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


def open_engine(database_url: str) -> sa.Engine:
    """An engine for `sqlite:///FILE` or `postgresql://…`. Connects to nothing yet.

    Raises InvalidInput `invalid_setting` for any other URL, which is not shown: it may hold a
    password.
    """
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise _bad_url() from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database:
        return _open_sqlite(url)
    if backend == "postgresql":
        return _open_postgresql(url)
    raise _bad_url()


def _bad_url() -> InvalidInput:
    return InvalidInput(
        "invalid_setting",
        "EBBTIDE_DATABASE_URL: write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE",
        setting="database_url",
    )


def database_file(engine: sa.Engine) -> Path | None:
    """The file of a SQLite database; None for PostgreSQL."""
    is_file = engine.dialect.name == "sqlite" and engine.url.database
    return Path(str(engine.url.database)) if is_file else None


def create_database_file(engine: sa.Engine) -> None:
    """Make a SQLite file that only its owner may read: it will hold secrets. Others: nothing."""
    path = database_file(engine)
    if path is not None and not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))


def _open_sqlite(url: URL) -> sa.Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": LOCK_TIMEOUT_SECONDS},
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:  # the driver's own type
        # The driver must not begin transactions by itself: `BEGIN IMMEDIATE` is sent below.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        # With NORMAL, a power cut may undo commits that were acknowledged: a fence among them.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        statement = connection.get_execution_options().get(BEGIN_OPTION, "BEGIN")
        connection.exec_driver_sql(statement)

    return engine


def _open_postgresql(url: URL) -> sa.Engine:
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        connect_args={"options": f"-c lock_timeout={LOCK_TIMEOUT_SECONDS}s"},
        hide_parameters=True,
        pool_pre_ping=True,
    )
