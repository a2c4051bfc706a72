"""Several servers on one PostgreSQL and one storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lakefs
from lakefs.exceptions import ObjectExistsException

from ebbtide.ids import new_id
from tests.server.conftest import Servers
from tests.support.collected import refused
from tests.support.server import new_server


def test_both_serve_one_store(servers: Servers, tmp_path: Path) -> None:
    """The second one has what another machine needs to join. Without the key it says so."""
    first, directory = servers("shared"), tmp_path / "store"
    directory.mkdir()
    shared = ("EBBTIDE_DATABASE_URL", "EBBTIDE_STORAGE_URL")
    second = new_server(directory, **{name: first.environment[name] for name in shared})
    second.keys = first.keys
    second.start(init=False)
    try:
        with second.http() as client:
            refused(client.get("/repositories"), 500, "secret_key_missing")
        assert "EBBTIDE_SECRET_KEY" in second.log
    finally:
        second.stop()
    second.environment["EBBTIDE_SECRET_KEY"] = (first.directory / "secret.key").read_text().strip()
    second.start(init=False)
    try:
        name = f"r-{new_id()}"
        here = first.repository(name)
        there = lakefs.Repository(name, client=second.client())

        def upload(number: int) -> None:
            repository = (here, there)[number % 2]
            repository.branch("main").object(f"{number:02}").upload(str(number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(upload, range(20)))
        head = here.branch("main").commit("from one").get_commit().id
        assert there.branch("main").head.id == head
        assert len(list(there.branch("main").objects())) == 20

        def claim(number: int) -> bool:
            repository = (here, there)[number % 2]
            try:
                repository.branch("main").object("claimed").upload(str(number), mode="xb")
            except ObjectExistsException:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(claim, range(8))) == 1
    finally:
        second.stop()
