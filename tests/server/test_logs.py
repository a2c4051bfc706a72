"""The log of a server, and the ids of requests."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import lakefs
import pytest

from tests.server.test_client import put
from tests.server.test_collecting import SOON, ended, place
from tests.support.server import Server, new_server


@pytest.mark.parametrize("path", ["/api/v1/healthcheck", "/api/v1/nothing", "/ui/", "/bucket"])
def test_an_answer_has_the_id_of_its_request(server: Server, path: str) -> None:
    with httpx.Client(base_url=server.url) as http:
        given = http.get(path, headers={"X-Request-Id": "trace-1.a"})
        assert given.headers["X-Request-Id"] == "trace-1.a"
        made = {http.get(path).headers["X-Request-Id"] for _ in range(2)}
        assert len(made) == 2
        for bad in ("a b", "x" * 129, '"', ""):
            assert http.get(path, headers={"X-Request-Id": bad}).headers["X-Request-Id"] != bad


def test_lines_have_the_ids_and_no_secrets(tmp_path: Path) -> None:
    """Of a run that a request ordered, and of nothing that authenticates."""
    server = new_server(
        tmp_path / "store",
        EBBTIDE_LOG_FORMAT="json",
        EBBTIDE_LOG_LEVEL="debug",
        EBBTIDE_RUN_WEBHOOK="http://127.0.0.1:1/hidden-path",
        EBBTIDE_RUN_WEBHOOK_SECRET="hidden-secret",
    ).start()
    key = server.keys["admin"]
    login = {"access_key_id": key.access_key_id, "secret_access_key": key.secret}
    try:
        lake = lakefs.Repository("lake", client=server.client()).create("local://lake")
        put(lake, a="1")
        with server.http() as http:
            token = http.post("/auth/login", json=login).json()["token"]
            http.get("/config", headers={"Authorization": f"Bearer {token}x"})
            http.get(f"/locators/{token}")
            signed = {"X-Amz-Signature": "hidden-signature", "X-Amz-Credential": "hidden/x"}
            httpx.get(f"{server.url}/lake/main/a", params=signed)
            asked = http.post(
                place(lake, "gc/runs"), json=SOON, headers={"X-Request-Id": "order-1"}
            )
            run_id = asked.json()["run_id"]
            ended(http, lake, run_id)
    finally:
        server.stop()
    lines = [json.loads(line) for line in server.log.splitlines()]
    of_run = [line for line in lines if line["run_id"] == run_id]
    assert {line["request_id"] for line in of_run} == {"order-1"}
    said = [line["message"] for line in of_run]
    assert "step list" in said
    assert any(each.startswith("the run is ") for each in said)
    for secret in (key.secret, token, "hidden"):
        assert secret not in server.log
