"""The metadata database: opens it, and runs the two kinds of transaction on it.

Not for: tables (`schema`), their versions (`migrate`), or queries (one module per table group).

Transactions are never retried here: the caller's decisions rest on the state that the failed
transaction read. A deadlock, or a lock that is not granted in time, is Failed `database_error`. The
caller can then try the whole operation again.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ebbtide.clock import Clock
from ebbtide.errors import Failed, InvalidInput, NotFound, disk_full
from ebbtide.imports import require_extra
from ebbtide.store.database.parallel_reads import READERS, Reader, in_turn, open_readers
from ebbtide.store.database.schema import repositories, store_info
from ebbtide.store.database.shared_commits import CommitGroup, SharedCommits
from ebbtide.store.database.write_queue import TurnTimeout, WriteQueue

LOCK_TIMEOUT_SECONDS: Final = 30
ROOM_BYTES_MIN: Final = 1 << 20
"""With fewer free bytes on its disk, SQLite may fail with an I/O error instead of "disk full"."""
FILE_MODE: Final = 0o600
MAPPED_BYTES_MAX: Final = 1 << 40
"""More than SQLite maps of any file. Its own limit is set at build time: 2 GB by default."""
SCATTERED_KIBIBYTES: Final = 256
"""The page cache of a connection (KiB) while it reads scattered rows. SQLite's default is 2,000."""
BEGIN_OPTION: Final = "ebbtide_begin"
"""The execution option of a connection that has the statement which begins a transaction on
SQLite."""
_BEGIN_POSTGRESQL: Final = "ebbtide_begin_postgresql"
_POOL: Final[Mapping[str, Any]] = {"pool_size": 15, "max_overflow": 0}
"""The most connections of a process. All stay open, since one that is opened for a request and
closed behind it takes longer than the request's statements."""
IDLE_SECONDS_MAX: Final = 1.0
_IDLE_SINCE: Final = "ebbtide_idle_since"

_Item = TypeVar("_Item")
_POSTGRESQL_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_DISK_FULL: Final = "53100"
"""The SQLSTATE `disk_full`: PostgreSQL's documentation, Appendix A, "PostgreSQL Error Codes"."""
_READ_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ_ONLY: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_AUTOCOMMIT: Final = ""
"""Instead of a statement that begins a transaction. Each statement is then one by itself."""

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
    def dialect_name(self) -> str:
        """The name of the database's dialect: `sqlite` or `postgresql`."""
        return self._connection.dialect.name

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
            raise NotFound(
                "repository_not_found",
                f"no repository has the id {repository_id}"
                + (" any more: it was deleted or has expired" if is_expired else ""),
            )


class Metadata:
    """The metadata database of one store. Thread-safe; every block has its own connection."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._writing = WriteQueue[CommitGroup]()
        self._commits = SharedCommits(self._writing, self._writer)

    @contextmanager
    def transaction(self, *, joins: bool = False) -> Iterator[Transaction]:
        """Opens a transaction that writes: `BEGIN IMMEDIATE` on SQLite, READ COMMITTED on
        PostgreSQL.

        With `joins`, it may share its commit with those of other threads on SQLite. PostgreSQL
        itself writes the commits of several connections to the disk at once. The block must be
        short, and must do nothing outside the database: what it reads may not be committed yet.

        Raises Failed `database_error` if the database fails, or if it does not grant a lock in
        time.
        """
        if joins and self.engine.dialect.name == "sqlite":
            with self._joined() as tx:
                yield tx
            return
        with self._turn(), self._begin("BEGIN IMMEDIATE", None) as tx:
            yield tx

    @contextmanager
    def _joined(self) -> Iterator[Transaction]:
        with translated_errors(self.engine):
            try:
                with self._commits.transaction(LOCK_TIMEOUT_SECONDS) as connection:
                    yield Transaction(connection, self.clock)
            except TurnTimeout as error:
                raise _failed("other threads were writing all the time") from error

    @contextmanager
    def _writer(self) -> Iterator[sa.Connection]:
        with self._begin("BEGIN IMMEDIATE", None) as tx:
            yield tx.connection

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
        options = {BEGIN_OPTION: _AUTOCOMMIT, _BEGIN_POSTGRESQL: _AUTOCOMMIT}
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
                stack.enter_context(_mapped(tx.connection))
                # The first read fixes the state that a connection sees. All connections see the
                # same state, because the write lock keeps other writers out.
                tx.execute(sa.select(store_info.c.store_id)).close()
                transactions.append(tx)
            writer.close()
            first, *others = (tx.connection for tx in transactions)
            readers = stack.enter_context(open_readers(others))
            yield Transaction(first, self.clock, readers)

    def close(self) -> None:
        """Closes all idle connections."""
        self.engine.dispose()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until this thread can write. On PostgreSQL it does not wait: the server has a
        queue."""
        with ExitStack() as stack:
            if self.engine.dialect.name == "sqlite":
                try:
                    stack.enter_context(self._writing.turn(LOCK_TIMEOUT_SECONDS))
                except TurnTimeout as error:
                    raise _failed("other threads were writing all the time") from error
            yield

    @contextmanager
    def _begin(self, sqlite: str, postgresql: str | None) -> Iterator[Transaction]:
        options = {BEGIN_OPTION: sqlite, _BEGIN_POSTGRESQL: postgresql or _READ_WRITE}
        with translated_errors(self.engine), self.engine.connect() as connection:
            connection = connection.execution_options(**options)
            with connection.begin():
                yield Transaction(connection, self.clock)


@contextmanager
def _mapped(connection: sa.Connection) -> Iterator[None]:  # only for SQLite
    """Maps a SQLite file into memory in this block. If the file is not cached, the system then
    reads ahead around each page. The pages of a table that was not filled in key order are
    scattered over the file, and reading them one by one takes eight times as long. Other
    connections do not map the file: if the disk fails, a signal ends a process with a mapped file,
    without an error."""
    _map(connection, MAPPED_BYTES_MAX)
    try:
        yield
    finally:
        _map(connection, 0)


@contextmanager
def unmapped(connection: sa.Connection) -> Iterator[None]:
    """Reads page by page in this block, without reading ahead. Use it for a few scattered rows, for
    which the system would otherwise read the whole file. The page cache is small meanwhile: except
    for the top of an index, hardly any page is read twice, and the system caches pages too."""
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


def _map(connection: sa.Connection, bytes_max: int) -> None:  # only for SQLite
    connection.exec_driver_sql(f"PRAGMA mmap_size = {bytes_max}").close()


def _keep(connection: sa.Connection, cache_size: int) -> None:  # only for SQLite
    connection.exec_driver_sql(f"PRAGMA cache_size = {cache_size}").close()


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


def sqlite_url(path: Path) -> str:
    """Returns the URL of a SQLite file."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


def open_engine(database_url: str) -> sa.Engine:
    """Returns an engine for `sqlite:///FILE` or a URL of libpq. It does not connect yet.

    Raises InvalidInput `invalid_setting` for any other URL. The message does not show the URL: it
    may contain a password.
    """
    scheme, _, place = database_url.partition("://")
    if scheme in _POSTGRESQL_SCHEMES:
        return _open_postgresql(place)
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise _bad_url() from None
    if url.get_backend_name() == "sqlite" and url.database:
        return _open_sqlite(url)
    raise _bad_url()


def _bad_url() -> InvalidInput:
    return InvalidInput(
        "invalid_setting",
        "EBBTIDE_DATABASE_URL: write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE, "
        "with other characters than letters and digits in percent-encoding",
        setting="database_url",
    )


def database_file(engine: sa.Engine) -> Path | None:
    """Returns the file of a SQLite database, or None for PostgreSQL."""
    is_file = engine.dialect.name == "sqlite" and engine.url.database
    return Path(str(engine.url.database)) if is_file else None


def create_database_file(engine: sa.Engine) -> None:
    """Creates the SQLite file, readable only by its owner, because it will hold secrets. Does
    nothing if the file exists, or on PostgreSQL."""
    path = database_file(engine)
    if path is not None and not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))


def _open_sqlite(url: URL) -> sa.Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"timeout": LOCK_TIMEOUT_SECONDS},
        json_deserializer=_parsed,
        hide_parameters=True,
        **_POOL,
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:  # the driver's own type
        # The driver must not begin transactions by itself: the listener below sends `BEGIN
        # IMMEDIATE`.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        # With NORMAL, a power cut may undo acknowledged commits, among them a fence.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @sa.event.listens_for(engine, "handle_error")
    def close_cursor(context: sa.ExceptionContext) -> None:
        # After an interrupt SQLAlchemy closes the connection. SQLite keeps a closed connection and
        # its lock as long as one of its statements is open.
        running = context.execution_context
        if running is not None and not isinstance(context.original_exception, Exception):
            running.cursor.close()

    _begin_by_statement(engine, BEGIN_OPTION)
    return engine


def _open_postgresql(place: str) -> sa.Engine:
    require_extra("PostgreSQL", "postgres", "psycopg")
    engine = sa.create_engine(
        URL.create("postgresql+psycopg"),
        # The driver must not begin transactions by itself: the statement that begins one also says
        # its kind, which would otherwise be one more message to the server and its answer.
        isolation_level="AUTOCOMMIT",
        # From a database in SQL_ASCII, the driver would else return bytes in place of texts.
        connect_args=_parameters(place) | {"client_encoding": "utf8"},
        hide_parameters=True,
        **_POOL,
    )
    _prepare_connections(engine)
    # A setting of the connection would not hold: a pooler gives each transaction any connection.
    timeout = f"; SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'"
    _begin_by_statement(engine, _BEGIN_POSTGRESQL, suffix=timeout)
    _ping_idle(engine)
    return engine


def _parameters(place: str) -> dict[str, Any]:
    """Returns the parameters of libpq for the part of a URL after `postgresql://`.

    libpq itself reads the forms that SQLAlchemy does not know: several hosts with ports, and a host
    that is percent-encoded. Source: PostgreSQL's documentation, "Connection URIs".
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    try:
        url = make_url(f"postgresql://{place}")
        found = dialect().create_connect_args(url)[1]  # type: ignore[no-untyped-call]
        is_known = not {",", "%"} & set(url.host or "")
    except (ArgumentError, ValueError):
        is_known = False
    try:
        if not is_known:
            found = conninfo_to_dict(f"postgresql://{place}")
        make_conninfo(**found)  # refuses names that are no parameters
    except ProgrammingError:
        raise _bad_url() from None
    if not all(port.isdecimal() for port in str(found.get("port", "")).split(",") if port):
        raise _bad_url()
    return dict(found)


def _prepare_connections(engine: sa.Engine) -> None:
    """Lets each new connection be refused if the database cannot hold every character, or has no
    place for tables. Adapts it to a pooler."""

    @sa.event.listens_for(engine, "connect")
    def check(connection: Any, _record: object) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", None):  # a pooler between may not tell it
            raise InvalidInput(
                "invalid_setting",
                f"EBBTIDE_DATABASE_URL: this database has the encoding {encoding}, and must have "
                "UTF8: make one by CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0",
            )
        row = connection.execute("SELECT pg_backend_pid(), current_schema()").fetchone()
        if row[0] != connection.info.backend_pid:
            # A pooler, such as PgBouncer, names a process of its own. The next transaction may have
            # another connection to the server, which does not know what this one has prepared.
            connection.prepare_threshold = None
        if row[1] is None:
            raise InvalidInput(
                "invalid_setting",
                "EBBTIDE_DATABASE_URL: no schema of this connection's search_path exists: make one "
                "by CREATE SCHEMA, or name another",
            )


def _parsed(text: str) -> object:
    """Parses a value in JSON. Most objects have no metadata, and listings have many objects."""
    return {} if text == "{}" else json.loads(text)


def _begin_by_statement(engine: sa.Engine, option: str, suffix: str = "") -> None:
    """Lets each transaction begin by the statement in that option of its connection, with `suffix`
    after it."""

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        statement = connection.get_execution_options().get(option, "BEGIN")
        if statement == _AUTOCOMMIT:
            return
        # `exec_driver_sql` would take several times as long: it prepares for a result.
        with closing(connection.connection.cursor()) as cursor:
            connection.dialect.do_execute(cursor, statement + suffix, ())


def _ping_idle(engine: sa.Engine) -> None:
    """Lets each connection that was idle be tried before it is used: the server may have ended it.
    Connections in steady use are not tried, because each try is a message and its answer."""

    @sa.event.listens_for(engine, "checkin")
    def note(_connection: object, record: sa.pool.ConnectionPoolEntry) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def ping(connection: Any, record: sa.pool.ConnectionPoolEntry, _proxy: object) -> None:
        since = record.info.get(_IDLE_SINCE)
        if since is None or time.monotonic() - since < IDLE_SECONDS_MAX:
            return
        driver = engine.dialect.dbapi
        assert driver is not None
        try:
            engine.dialect.do_ping(connection)
        except driver.Error as error:
            # SQLAlchemy then opens another connection.
            raise sa.exc.DisconnectionError from error
