"""The metadata database: opens it, and runs the two kinds of transaction on it.

Not for: tables (`schema`), their versions (`migrate`), or queries (one module per table group).

Transactions are never retried here: the caller's decisions rest on the state that the failed
transaction read. A deadlock, or a lock that is not granted in time, is Failed `database_error`. The
caller can then try the whole operation again.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from ebbtide.clock import Clock
from ebbtide.errors import Failed, UnknownRepository, disk_full
from ebbtide.store.database.concurrency import (
    READERS,
    Reader,
    TurnTimeout,
    WriteQueue,
    in_turn,
    open_readers,
)
from ebbtide.store.database.dialects import (
    AUTOCOMMIT,
    BEGIN_OPTION,
    BEGIN_POSTGRESQL,
    LOCK_TIMEOUT_SECONDS,
    database_file,
    in_process,
    mapped,
)
from ebbtide.store.database.schema import repositories, store_info

ROOM_BYTES_MIN: Final = 1 << 20
"""With fewer free bytes on its disk, SQLite may fail with an I/O error instead of "disk full"."""
SPARE_CONNECTIONS: Final = 4
"""So many can be taken by other threads before a connection that was idle is asked for."""
_Item = TypeVar("_Item")
_DISK_FULL: Final = "53100"
"""The SQLSTATE `disk_full`: PostgreSQL's documentation, Appendix A, "PostgreSQL Error Codes"."""
_READ_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ_ONLY: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

LockMode = Literal["share", "exclusive"]


class Transaction:
    """One transaction. If its block ends with an exception, its changes are rolled back."""

    def __init__(
        self, connection: sa.Connection, clock: Clock, readers: tuple[Reader, ...] = ()
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._readers = readers

    @property
    def in_process(self) -> bool:
        """Whether the database runs in this process: SQLite. PostgreSQL is a server."""
        return in_process(self._connection)

    @property
    def connection(self) -> sa.Connection:
        """The connection itself, for callers that read in batches through a server-side cursor."""
        return self._connection

    @property
    def execute(self) -> Callable[..., sa.CursorResult[Any]]:  # the query decides the types
        """Runs one statement."""
        return self._connection.execute

    def now(self) -> datetime:
        """Returns the database's time at this call (UTC). Expiry is judged by this time. It moves
        on within the transaction, so that time spent waiting for a lock counts."""
        return self._clock.database_now(self)

    @property
    def reader_count(self) -> int:
        """The number of readings that `read` runs at a time."""
        return max(1, len(self._readers))

    def read(
        self, readings: Sequence[Callable[[sa.Connection], Iterator[_Item]]]
    ) -> Iterator[_Item]:
        """Yields the items of all `readings`, from the state that this transaction sees. A reading
        may run in another thread. It stops when the transaction ends."""
        if not self._readers:
            return itertools.chain.from_iterable(reading(self._connection) for reading in readings)
        readers = itertools.cycle(self._readers)
        return in_turn(
            [reader.prefetch(reading) for reader, reading in zip(readers, readings, strict=False)]
        )

    def lock_repository(
        self, repository_id: str, mode: LockMode = "share", *, trashed: bool = False
    ) -> None:
        """Locks the repository's row until the end of the transaction.

        Transactions that change a ref, policy or hold, or publish a commit, take the lock shared.
        The fence takes it exclusively, and so does a transaction that must run alone among these.
        On SQLite every write transaction runs alone anyway.

        Raises NotFound `repository_not_found` if the repository does not exist, or has expired.
        With `trashed`, which runs and restores use, a repository that has expired is locked too.
        """
        # "exclusive" is the weaker of PostgreSQL's two exclusive row locks, NO KEY UPDATE. Inserts
        # of rows with a foreign key to this row do not wait for it.
        shared = mode == "share"
        row = self.execute(
            sa.select(repositories.c.expires_at)
            .where(repositories.c.repository_id == repository_id)
            .with_for_update(read=shared, key_share=not shared)
        ).one_or_none()
        is_expired = row is not None and row.expires_at is not None and row.expires_at <= self.now()
        if row is None or (is_expired and not trashed):
            raise UnknownRepository(
                "repository_not_found",
                f"no repository has the id {repository_id}"
                + (" any more: it was deleted or has expired" if is_expired else ""),
            )


class Metadata:
    """The metadata database of one store. Thread-safe; every block has its own connection."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._writing = WriteQueue()

    def answers_at_once(self) -> bool:
        """Whether a statement that reads has to wait for nobody: the database runs in this process,
        and a few connections are idle."""
        pool = self.engine.pool
        if not in_process(self.engine) or not isinstance(pool, sa.QueuePool):
            return False
        return pool.checkedout() + SPARE_CONNECTIONS <= pool.size()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Opens a transaction that writes: `BEGIN IMMEDIATE` on SQLite, READ COMMITTED on
        PostgreSQL.

        Raises Failed `database_error` if the database fails, or if it does not grant a lock in
        time.
        """
        with self._turn(), self._begin("BEGIN IMMEDIATE", None) as tx:
            yield tx

    @contextmanager
    def snapshot(self, *, scans: bool = False) -> Iterator[Transaction]:
        """Opens a transaction that only reads. It sees one state of the database, from its first
        read on. With `scans` it is prepared to read whole tables.

        Raises Failed `database_error` if the database fails.
        """
        if scans and database_file(self.engine) is not None:
            with self._scanning() as tx:
                yield tx
        else:
            with self._begin("BEGIN", _READ_ONLY) as tx:
                yield tx

    @contextmanager
    def statement(self) -> Iterator[Transaction]:
        """Opens a block for one statement that reads, without a transaction around it. That spares
        the messages that begin and end one. If the block runs several statements, each of them sees
        a state of its own.

        Raises Failed `database_error` if the database fails.
        """
        options = {BEGIN_OPTION: AUTOCOMMIT, BEGIN_POSTGRESQL: AUTOCOMMIT}
        with translated_errors(self.engine), self.engine.connect() as connection:
            yield Transaction(connection.execution_options(**options), self.clock)

    @contextmanager
    def _scanning(self) -> Iterator[Transaction]:
        """Opens a transaction with several readers on a SQLite file, mapped into memory."""
        with ExitStack() as stack, ExitStack() as writer:
            count = READERS
            try:
                writer.enter_context(self._turn())
                writer.enter_context(self._begin("BEGIN IMMEDIATE", None))
            except Failed:
                count = 0  # another process has been writing for too long
            transactions = []
            for _ in range(1 + count):
                tx = stack.enter_context(self._begin("BEGIN", None))
                stack.enter_context(mapped(tx.connection))
                # The first read fixes the state that a connection sees. All connections see the
                # same state, because the write lock keeps other writers out.
                tx.execute(sa.select(store_info.c.store_id)).close()
                transactions.append(tx)
            writer.close()
            first, *others = (tx.connection for tx in transactions)
            readers = stack.enter_context(open_readers(others))
            yield Transaction(first, self.clock, readers)

    def close(self) -> None:
        """Closes all idle connections, and the others when they are given back."""
        pool = self.engine.pool
        self.engine.dispose()

        @sa.event.listens_for(pool, "checkin")
        def close_late(_connection: object, record: Any) -> None:  # SQLAlchemy's own type
            record.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until this thread can write. On PostgreSQL it does not wait: the server has a
        queue."""
        with ExitStack() as stack:
            if in_process(self.engine):
                try:
                    stack.enter_context(self._writing.turn(LOCK_TIMEOUT_SECONDS))
                except TurnTimeout as error:
                    raise _failed("other threads were writing all the time") from error
            yield

    @contextmanager
    def _begin(self, sqlite: str, postgresql: str | None) -> Iterator[Transaction]:
        options = {BEGIN_OPTION: sqlite, BEGIN_POSTGRESQL: postgresql or _READ_WRITE}
        with translated_errors(self.engine), self.engine.connect() as connection:
            connection = connection.execution_options(**options)
            with connection.begin():
                yield Transaction(connection, self.clock)


@contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """Raises errors of SQLAlchemy as Failed `database_error` or `disk_full`, without statement,
    values and URL."""
    try:
        yield
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        # The driver's own errors come from statements that begin connections and transactions.
        cause = getattr(error, "orig", None) or error
        if _is_full(cause, database_file(engine)):
            raise disk_full("the disk of the metadata database", _first_line(cause)) from error
        raise _failed(_first_line(cause)) from error


def _is_full(error: BaseException, file: Path | None) -> bool:
    """Whether the database reports a full disk. SQLite reports it for its file and its log. For the
    shared-memory file of its processes, SQLite reports an I/O error, whatever the reason: the free
    space then decides."""
    if not isinstance(error, sqlite3.Error):
        return getattr(error, "sqlstate", None) == _DISK_FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bits say what SQLite was doing
    if code != sqlite3.SQLITE_IOERR or file is None:
        return code == sqlite3.SQLITE_FULL
    return shutil.disk_usage(file.parent).free < ROOM_BYTES_MIN


def _failed(reason: str) -> Failed:
    return Failed(
        "database_error",
        f"the metadata database answered with an error ({reason}): try again; if the error "
        "stays, check the database",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
