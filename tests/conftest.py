"""Fixtures that many tests share: databases, and a store with a clock that the test sets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.metadata.engine import open_engine
from ebbtide.store.metadata.migrate import upgrade_schema
from ebbtide.store.repository import Repository
from tests.support.ceph import BUCKET, find_ceph, start_ceph
from tests.support.clock import ManualClock
from tests.support.postgres import PostgresServer, find_postgres, start_postgres
from tests.support.requirements import require_or_skip

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One server for the whole test run."""
    if find_postgres() is None:
        require_or_skip("postgres", "no initdb in /usr/lib/postgresql/*/bin or on PATH")
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a bucket: the one that EBBTIDE_TEST_S3_URL names, with endpoint and credentials in
    AWS_ variables, or one of a server for the whole test run."""
    given = os.environ.get("EBBTIDE_TEST_S3_URL")
    if given is not None:
        yield given
        return
    if not find_ceph():
        require_or_skip("s3", "EBBTIDE_TEST_S3_URL names no bucket, and there is no Ceph")
    server = start_ceph()
    request.addfinalizer(server.stop)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment().items():
            patched.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a database that holds the tables and nothing else."""
    with _new_database(postgres, drop=False) as url:
        _make_tables(url)
    return str(make_url(url).database)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that holds the tables and nothing else."""
    path = tmp_path_factory.mktemp("sqlite") / "metadata.db"
    _make_tables(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'metadata.db'}"
    else:
        with _new_database(request.getfixturevalue("postgres")) as url:
            yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with the tables in it, copied, which is faster than making them."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "metadata.db")
        yield f"sqlite:///{tmp_path / 'metadata.db'}"
    else:
        template = request.getfixturevalue("postgres_template")
        with _new_database(request.getfixturevalue("postgres"), template=template) as url:
            yield url


@contextmanager
def _new_database(
    server: PostgresServer, *, template: str = "template1", drop: bool = True
) -> Iterator[str]:
    url = make_url(server.url)
    name = f"test_{new_id()}"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield url.set(database=name).render_as_string(hide_password=False)
        if drop:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _make_tables(url: str) -> None:
    engine = open_engine(url)
    upgrade_schema(engine)
    engine.dispose()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands at START until the test moves it."""
    return ManualClock(START)


@pytest.fixture
def store(database_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """A new store on each kind of database, with small ranges, in `tmp_path / "store"`."""
    settings = Settings(database_url=database_url, range_entries_target=4)
    with Store.init(tmp_path / "store", settings=settings, clock=clock) as store:
        yield store


@pytest.fixture
def repository(store: Store) -> Repository:
    """A new repository, `lake`, kept in memory."""
    return store.create_repository("lake", storage_url=f"memory:{new_id()}")
