"""One server process for each kind of database, for the whole test run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import lakefs
import psycopg
import pytest
from sqlalchemy.engine import make_url

from ebbtide.ids import new_id
from tests.support.server import Server, new_server

KINDS = ("local", "shared")
"""What a server is made of: SQLite and a local directory, or PostgreSQL and S3, which several
servers can share."""

Servers = Callable[..., Server]
"""Gives the server of a kind, with such settings besides."""


@pytest.fixture(scope="session")
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """The server of a kind, started when it is first asked for."""
    started: dict[tuple[str, ...], Server] = {}

    def server_of(kind: str, **more: str) -> Server:
        key = (kind, *more.values())
        if key not in started:
            settings = {
                "EBBTIDE_IMPORT_PREFIXES": "s3://elsewhere/ file:///nowhere/",
                # What a test leaves to the collector, nobody is to take before it.
                "EBBTIDE_RECLAIM": "false",
                **more,
            }
            if kind == "shared":
                url = make_url(request.getfixturevalue("postgres").url)
                settings["EBBTIDE_DATABASE_URL"] = new_database(url.render_as_string(False))
                settings["EBBTIDE_STORAGE_URL"] = f"{request.getfixturevalue('s3_url')}/{new_id()}"
            directory: Path = tmp_path_factory.mktemp(f"server-{kind}") / "store"
            started[key] = new_server(directory, **settings).start()
        return started[key]

    yield server_of
    for server in started.values():
        server.stop()
        assert "Traceback" not in server.log, server.log


def new_database(url: str) -> str:
    """An empty database beside that of the URL; its URL."""
    name = f"server_{new_id()}"
    plain = make_url(url).set(drivername="postgresql")
    with psycopg.connect(plain.render_as_string(False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return plain.set(database=name).render_as_string(False)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server of each kind."""
    return servers(request.param)


@pytest.fixture(params=KINDS)
def leasing(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server of each kind whose locators last."""
    return servers(request.param, EBBTIDE_LEASE_TTL="1h")


@pytest.fixture
def plain(servers: Servers) -> Server:
    """A server for what no database can tell apart."""
    return servers("local")


@pytest.fixture
def repo(server: Server) -> lakefs.Repository:
    """A new repository on a server of each kind."""
    return server.repository(f"r-{new_id()}")


@pytest.fixture
def lake(plain: Server) -> lakefs.Repository:
    """A new repository on the plain server."""
    return plain.repository(f"r-{new_id()}")


@pytest.fixture
def http(plain: Server) -> Iterator[httpx.Client]:
    """Plain HTTP to the plain server, as admin."""
    with plain.http() as client:
        yield client
