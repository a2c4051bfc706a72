"""The two databases, SQLite and PostgreSQL, and all that differs between them.

Other modules do not ask for the SQL dialect. If a cost differs, they ask `in_process`. If a
statement differs, they make it of `insert_on` or `either`. Not for: transactions (`engine`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from ebbtide.errors import InvalidInput
from ebbtide.imports import require_extra

LOCK_TIMEOUT_SECONDS: Final = 30
FILE_MODE: Final = 0o600
MAPPED_BYTES_MAX: Final = 1 << 40
"""More than SQLite maps of any file. Its own limit is set at build time: 2 GB by default."""
SCATTERED_KIBIBYTES: Final = 256
"""The page cache of a connection (KiB) while it reads scattered rows. SQLite's default is 2,000."""
BEGIN_OPTION: Final = "ebbtide_begin"
"""The execution option of a connection that has the statement which begins a transaction on
SQLite."""
BEGIN_POSTGRESQL: Final = "ebbtide_begin_postgresql"
_POOL: Final[Mapping[str, Any]] = {"pool_size": 15, "max_overflow": 0}
"""The most connections of a process. All stay open, since one that is opened for a request and
closed behind it takes longer than the request's statements."""
AUTOCOMMIT: Final = ""
"""Instead of a statement that begins a transaction. Each statement is then one by itself."""
IDLE_SECONDS_MAX: Final = 1.0
_IDLE_SINCE: Final = "ebbtide_idle_since"

_POSTGRESQL_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})

_Value = TypeVar("_Value")
Insert: TypeAlias = sqlite.Insert | postgresql.Insert
InsertOn: TypeAlias = Callable[[sa.Table], Insert]


def in_process(bind: sa.Engine | sa.Connection) -> bool:
    """Whether the database runs in this process: SQLite. PostgreSQL is a server, and each statement
    costs a message and its answer."""
    return bind.dialect.name == "sqlite"


def insert_on(connection: sa.Connection) -> InsertOn:
    """Returns the function that makes an insert into a table, with the clauses `ON CONFLICT` of the
    connection's database."""
    return sqlite.insert if in_process(connection) else postgresql.insert


def either(
    *, on_sqlite: sa.ColumnElement[_Value], on_postgresql: sa.ColumnElement[_Value]
) -> sa.ColumnElement[_Value]:
    """Returns an expression that differs between the databases."""
    return _Either(on_sqlite, on_postgresql)


class _Either(FunctionElement[_Value]):
    """Its clauses are the expression on SQLite, and the one on PostgreSQL."""

    inherit_cache = True

    def __init__(self, *clauses: sa.ColumnElement[_Value]) -> None:
        super().__init__(*clauses)
        self.type = clauses[0].type


@compiles(_Either, "sqlite")
def _first(element: _Either[Any], compiler: SQLCompiler, **options: Any) -> str:
    on_sqlite, _ = element.clauses
    return f"({compiler.process(on_sqlite, **options)})"


@compiles(_Either, "postgresql")
def _second(element: _Either[Any], compiler: SQLCompiler, **options: Any) -> str:
    _, on_postgresql = element.clauses
    return f"({compiler.process(on_postgresql, **options)})"


def by_code_points(column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Returns a column of texts, with an order that does not depend on the database's language."""
    return either(on_sqlite=column, on_postgresql=sa.collate(column, "C"))


def each_of(connection: sa.Connection, values: Sequence[str]) -> sa.Select[str]:
    """Returns a query of texts as rows, with one parameter for any number of them."""
    if in_process(connection):
        listed = sa.func.json_each(json.dumps(values)).table_valued("value")
        return sa.select(sa.type_coerce(listed.c.value, sa.Text))
    array_type = postgresql.ARRAY(sa.Text)
    array = sa.cast(sa.literal(list(values), array_type), array_type)
    return sa.select(sa.func.unnest(array).column_valued("value"))


@contextmanager
def mapped(connection: sa.Connection) -> Iterator[None]:  # only for SQLite
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
    if not in_process(connection):
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
    is_file = in_process(engine) and engine.url.database
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
    _begin_by_statement(engine, BEGIN_POSTGRESQL, suffix=timeout)
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
        if statement == AUTOCOMMIT:
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
