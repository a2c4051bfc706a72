"""Several servers on one PostgreSQL and one storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lakefs
import pytest
from lakefs.exceptions import ObjectExistsException

from ebbtide.ids import new_id
from tests.server.conftest import Servers
from tests.support.server import Server, new_server


@pytest.fixture(scope="module")
def pair(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> tuple[Server, Server]:
    """The first server, and what another machine needs to join it."""
    first = servers("shared")
    directory: Path = tmp_path_factory.mktemp("second") / "store"
    directory.mkdir()
    second = new_server(
        directory,
        EBBTIDE_DATABASE_URL=first.environment["EBBTIDE_DATABASE_URL"],
        EBBTIDE_STORAGE_URL=first.environment["EBBTIDE_STORAGE_URL"],
        EBBTIDE_SECRET_KEY=(first.directory / "secret.key").read_text().strip(),
    )
    second.keys = first.keys
    return first, second


def test_both_serve_one_store(pair: tuple[Server, Server]) -> None:
    first, second = pair
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


def test_a_server_without_the_key_says_what_is_missing(pair: tuple[Server, Server]) -> None:
    _, second = pair
    settings = dict(second.environment)
    del settings["EBBTIDE_SECRET_KEY"]
    third = Server(second.directory, settings, second.keys).start(init=False)
    try:
        with third.http() as client:
            answer = client.get("/repositories")
        assert (answer.status_code, answer.json()["kind"]) == (500, "secret_key_missing")
        assert "EBBTIDE_SECRET_KEY" in third.log
    finally:
        third.stop()
