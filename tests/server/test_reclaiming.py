"""The server reclaims beside its other work, and says so in its figures; moves over HTTP."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx

from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.app import serving
from tests.support.collected import done, figure, new_repository, refused
from tests.support.server import Server, eventually, new_server

RECLAIM_THREAD: Final = "reclaim"


def objects(directory: Path) -> int:
    return len(list(directory.glob("storage/lake/data/*/*")))


def upload(client: httpx.Client, data: bytes) -> None:
    answer = client.post(
        "/repositories/lake/branches/main/objects", params={"path": "a"}, content=data
    )
    assert answer.status_code == 201, answer.text


def figures(client: httpx.Client) -> dict[str, float]:
    names = ("reclaimed_objects_total", "reclaimed_bytes_total", "reclaim_backlog_objects")
    return {name: figure(client, f"ebbtide_{name}") for name in names}


def test_what_is_overwritten_is_deleted_by_the_server(tmp_path: Path) -> None:
    settings = {"EBBTIDE_LEASE_TTL": "0s", "EBBTIDE_RECLAIM_INTERVAL": "1s"}
    server = new_server(tmp_path / "store", **settings).start()
    try:
        server.repository("lake")
        with server.http() as client:
            upload(client, b"1")
            upload(client, b"22")
            # A batch is counted once it is done, its bytes last.
            eventually(lambda: figure(client, "ebbtide_reclaimed_bytes_total") > 0)
            assert objects(server.directory) == 1
            assert list(figures(client).values()) == [1, 1, 0]
            assert figure(client, "ebbtide_reclaim_oldest_seconds") == 0
    finally:
        assert server.stop() in (0, -15)
    assert "Traceback" not in server.log


def test_a_server_that_does_not_reclaim_has_no_thread_for_it(tmp_path: Path) -> None:
    for reclaims in (True, False):
        settings = Settings(reclaim=reclaims, lease_ttl=timedelta(0))
        before = set(threading.enumerate())
        with Store.init(tmp_path / f"{reclaims}", settings=settings) as store:
            store.create_repository("lake")
            with serving(store) as client:
                names = [thread.name for thread in set(threading.enumerate()) - before]
                assert names.count(RECLAIM_THREAD) == int(reclaims), names
                if reclaims:
                    continue
                upload(client, b"1")
                upload(client, b"22")
                assert objects(store.directory or tmp_path) == 2
                assert list(figures(client).values()) == [0, 0, 1]
                assert figure(client, "ebbtide_reclaim_oldest_seconds") > 0


def test_a_move(server: Server) -> None:
    with server.http() as client:
        place = f"/repositories/{new_repository(client)}/branches/main/objects"
        made = client.post(place, params={"path": "a"}, content=b"1").json()
        asked = {"src_path": "a"}
        moved = client.post(f"{place}/move", params={"dest_path": "b"}, json=asked)
        assert done(moved, 201) | {"path": "a"} == made
        again = client.post(f"{place}/move", params={"dest_path": "c"}, json=asked)
        refused(again, 404, "object_not_found")
