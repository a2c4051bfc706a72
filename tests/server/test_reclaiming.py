"""The server reclaims beside its other work, and says so in its figures; moves over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.server import WAIT_SECONDS, Server, new_server


@pytest.fixture
def objects() -> Callable[[Server], set[str]]:
    """The files of objects of a server's store."""

    def found(server: Server) -> set[str]:
        return {path.name for path in server.directory.glob("storage/lake/data/*/*")}

    return found


def figure(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def upload(client: httpx.Client, data: bytes) -> None:
    answer = client.post(
        "/repositories/lake/branches/main/objects", params={"path": "a"}, content=data
    )
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("is_on", [True, False])
def test_what_is_overwritten_is_deleted_by_the_server(
    tmp_path: Path, objects: Callable[[Server], set[str]], is_on: bool
) -> None:
    server = new_server(
        tmp_path / "store",
        EBBTIDE_LEASE_TTL="1s" if is_on else "1h",
        EBBTIDE_RECLAIM="true" if is_on else "false",
        EBBTIDE_RECLAIM_INTERVAL="1s",
    ).start()
    try:
        server.repository("lake")
        with server.http() as client:
            upload(client, b"1")
            upload(client, b"22")
            ends_at = time.monotonic() + WAIT_SECONDS
            # A batch is counted once it is done, its bytes last.
            while is_on and figure(client, "ebbtide_reclaimed_bytes_total") == 0:
                assert time.monotonic() < ends_at
                time.sleep(0.05)
            if not is_on:
                # Long enough for a pass, if there were one.
                time.sleep(1.5)
            assert len(objects(server)) == (1 if is_on else 2)
            assert figure(client, "ebbtide_reclaimed_objects_total") == (1 if is_on else 0)
            assert figure(client, "ebbtide_reclaimed_bytes_total") == (1 if is_on else 0)
            assert figure(client, "ebbtide_reclaim_backlog_objects") == (0 if is_on else 1)
            assert (figure(client, "ebbtide_reclaim_oldest_seconds") > 0) == (not is_on)
    finally:
        assert server.stop() in (0, -15)
    assert "Traceback" not in server.log


def test_a_move(server: Server) -> None:
    name = "moving" + server.url.rpartition(":")[2]
    server.repository(name)
    place = f"/repositories/{name}/branches/main/objects"
    with server.http() as client:
        made = client.post(place, params={"path": "a"}, content=b"1").json()
        moved = client.post(f"{place}/move", params={"dest_path": "b"}, json={"src_path": "a"})
        assert moved.status_code == 201
        assert moved.json() | {"path": "a"} == made
        again = client.post(f"{place}/move", params={"dest_path": "c"}, json={"src_path": "a"})
        assert (again.status_code, again.json()["kind"]) == (404, "object_not_found")
