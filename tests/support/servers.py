"""Fixtures: one server process of each kind for all tests of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import lakefs
import pytest

from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from tests.support import randomized
from tests.support.app import serving
from tests.support.ceph import find_ceph
from tests.support.databases import new_database
from tests.support.postgres import find_postgres
from tests.support.server import Server, new_server

KINDS = ("local", "shared")
"""What a server is made of: SQLite and a directory, or PostgreSQL and S3, which can be shared."""

FILES = {"a/x": "xx", "a/y": "y", "b": "", "c/ü d": "text"}

Servers = Callable[..., Server]
"""Gives the server of a kind, with such settings besides."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `twins` run on both kinds of server."""
    wanted = "server_kind" in metafunc.fixturenames
    if wanted and metafunc.definition.get_closest_marker("twins"):
        metafunc.parametrize("server_kind", KINDS, indirect=True)


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
                url = request.getfixturevalue("postgres")
                settings["EBBTIDE_DATABASE_URL"] = new_database(url)
                settings["EBBTIDE_STORAGE_URL"] = f"{request.getfixturevalue('s3_url')}/{new_id()}"
            directory: Path = tmp_path_factory.mktemp(f"server-{kind}") / "store"
            started[key] = new_server(directory, **settings).start()
        return started[key]

    yield server_of
    for server in started.values():
        server.stop()
        assert "Traceback" not in server.log, server.log


@pytest.fixture
def server_kind(request: pytest.FixtureRequest) -> str:
    """One kind of server: both in turn for tests marked `twins`, one by chance for all others,
    more often the one that answers sooner.

    Without PostgreSQL or S3 chance has no choice.
    """
    kind: str | None = getattr(request, "param", None)
    if kind is not None:
        return kind
    has_s3 = "EBBTIDE_TEST_S3_URL" in os.environ or find_ceph()
    if find_postgres() is None or not has_s3:
        return KINDS[0]
    return randomized.choose(f"server of {request.node.nodeid}", (KINDS[0], KINDS[0], *KINDS))


@pytest.fixture
def server(servers: Servers, server_kind: str) -> Server:
    return servers(server_kind)


@pytest.fixture
def leasing(servers: Servers, server_kind: str) -> Server:
    """A server of one kind whose locators last."""
    return servers(server_kind, EBBTIDE_LEASE_TTL="1h")


@pytest.fixture
def remote(servers: Servers) -> Server:
    """A server on PostgreSQL and S3 whose leases last."""
    return servers("shared", EBBTIDE_LEASE_TTL="1h")


@pytest.fixture
def plain(servers: Servers) -> Server:
    """A server for what no database can tell apart."""
    return servers("local")


@pytest.fixture
def repo(server: Server) -> lakefs.Repository:
    return server.repository(f"r-{new_id()}")


@pytest.fixture
def lake(plain: Server) -> lakefs.Repository:
    return plain.repository(f"r-{new_id()}")


@pytest.fixture
def http(plain: Server) -> Iterator[httpx.Client]:
    """Plain HTTP to the plain server, as admin."""
    with plain.http() as client:
        yield client


@pytest.fixture
def leases(leasing: Server) -> Iterator[httpx.Client]:
    """The same to the server whose locators last."""
    with leasing.http() as client:
        yield client


@pytest.fixture
def timed(store: Store) -> Iterator[httpx.Client]:
    """The server of a store whose clock the test sets, with files in a repository `lake`."""
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    for path, text in FILES.items():
        lake.objects.put("main", path, text.encode())
    lake.commits.commit("main", "files")
    with serving(store) as client:
        yield client
