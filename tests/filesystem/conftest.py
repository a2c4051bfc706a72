"""File systems on a store, and on a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.settings import Settings
from ebbtide.store.access.keys import Role
from ebbtide.store.embedded import Store
from tests.support.server import new_server


@pytest.fixture(params=["store", "server"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EbbtideFileSystem]:
    """Of a new store with the repositories `lake` and `pond`."""
    if request.param == "store":
        with Store.init(tmp_path / "store", settings=Settings()) as store:
            for name in ("lake", "pond"):
                store.create_repository(name)
        fs = EbbtideFileSystem(str(tmp_path / "store"), skip_instance_cache=True)
        yield fs
        fs.close()
        return
    server = new_server(tmp_path / "store").start()
    try:
        with Store.open(tmp_path / "store") as store:
            for name in ("lake", "pond"):
                store.create_repository(name)
        key = server.keys[Role.ADMIN]
        fs = EbbtideFileSystem(
            endpoint=server.url,
            key=key.access_key_id,
            secret=key.secret,
            skip_instance_cache=True,
        )
        yield fs
        fs.close()
    finally:
        server.stop()
