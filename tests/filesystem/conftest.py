"""File systems on a store, and on a server. Each is made once; a test gets new repositories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.server import Server, new_server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = new_server(tmp_path_factory.mktemp("fs-server") / "store").start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fs-store") / "store"
    Store.init(directory, settings=Settings()).close()
    return directory


def new_repositories(directory: Path, settings: Settings) -> None:
    """Puts the empty repositories `lake` and `pond` in the place of those of earlier tests."""
    with Store.open(directory, settings=settings) as store:
        for repository in store.catalog.page():
            store.catalog.delete(repository.info.name)
        for name in ("lake", "pond"):
            store.create_repository(name, storage_url=str(directory.parent / new_id()))


@pytest.fixture
def fs_server(shared_server: Server) -> Server:
    """A server with the repositories `lake` and `pond`."""
    new_repositories(shared_server.directory, shared_server.settings)
    return shared_server


@pytest.fixture(params=["store", "server"])
def fs(request: pytest.FixtureRequest) -> Iterator[EbbtideFileSystem]:
    """On a store, or through a server."""
    if request.param == "server":
        server = request.getfixturevalue("fs_server")
        key, secret = server.keys["admin"].pair
        fs = EbbtideFileSystem(
            endpoint=server.url, key=key, secret=secret, skip_instance_cache=True
        )
    else:
        directory = request.getfixturevalue("shared_store")
        new_repositories(directory, Settings())
        fs = EbbtideFileSystem(str(directory), skip_instance_cache=True)
    yield fs
    fs.close()
