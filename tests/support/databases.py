"""Databases for tests: a new one with nothing in it, or one with the tables, which are empty.

Tables are made once. On SQLite each test has a copy of that file. On PostgreSQL a database goes
from test to test, emptied in between: that takes 1 ms, a copy of a template 34.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from ebbtide.ids import new_id
from ebbtide.store.database.dialects import open_engine
from ebbtide.store.database.migrate import upgrade_schema
from ebbtide.store.database.schema import metadata as tables


def new_database(server_url: str) -> str:
    """A new, empty database on the PostgreSQL server at a URL of SQLAlchemy's; its URL."""
    name = f"test_{new_id()}"
    with psycopg.connect(_plain(server_url), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


class SqliteDatabases:
    def __init__(self, directory: Path) -> None:
        self.template = directory / "template.db"
        _make_tables(f"sqlite:///{self.template}")

    @contextmanager
    def database(self, directory: Path) -> Iterator[str]:
        path = directory / "metadata.db"
        shutil.copy(self.template, path)
        yield f"sqlite:///{path}"


class PostgresDatabases:
    """Databases of one server, which tests have one after the other."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._free: list[str] = []

    @contextmanager
    def database(self, _directory: Path) -> Iterator[str]:
        url = self._free.pop() if self._free else self._new()
        yield url
        with psycopg.connect(_plain(url), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            for table in reversed(tables.sorted_tables):
                connection.execute(f"DELETE FROM {table.name}")
        self._free.append(url)

    def _new(self) -> str:
        url = new_database(self._server_url)
        _make_tables(url)
        return url


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _make_tables(url: str) -> None:
    engine = open_engine(url)
    upgrade_schema(engine)
    engine.dispose()
