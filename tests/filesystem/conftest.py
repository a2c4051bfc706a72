"""File systems on a store, and on a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.server import Server, new_server


@pytest.fixture
def fs_server(tmp_path: Path) -> Iterator[Server]:
    """A server with the repositories `lake` and `pond`."""
    server = new_server(tmp_path / "store").start()
    try:
        with Store.open(tmp_path / "store", settings=server.settings) as store:
            for name in ("lake", "pond"):
                store.create_repository(name)
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["store", "server"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EbbtideFileSystem]:
    """On a new store, or through a server."""
    if request.param == "server":
        server = request.getfixturevalue("fs_server")
        key = server.keys["admin"]
        fs = EbbtideFileSystem(
            endpoint=server.url,
            key=key.access_key_id,
            secret=key.secret,
            skip_instance_cache=True,
        )
    else:
        with Store.init(tmp_path / "store", settings=Settings()) as store:
            for name in ("lake", "pond"):
                store.create_repository(name)
        fs = EbbtideFileSystem(str(tmp_path / "store"), skip_instance_cache=True)
    yield fs
    fs.close()
