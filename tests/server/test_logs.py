"""The log of a server, the ids of requests, and what is told to other programs."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import lakefs

from tests.notify.ends import figures_of
from tests.notify.loopback import receiver
from tests.server.test_client import put
from tests.server.test_collecting import SOON, ended, place
from tests.support.server import Server, eventually, new_server


def test_an_answer_has_the_id_of_its_request(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        for path in ("/api/v1/healthcheck", "/api/v1/nothing", "/ui/", "/bucket"):
            given = http.get(path, headers={"X-Request-Id": "trace-1.a"})
            assert given.headers["X-Request-Id"] == "trace-1.a"
            made = {http.get(path).headers["X-Request-Id"] for _ in range(2)}
            assert len(made) == 2
            for bad in ("a b", "x" * 129, '"', ""):
                answer = http.get(path, headers={"X-Request-Id": bad})
                assert answer.headers["X-Request-Id"] != bad


def test_the_end_of_a_run(tmp_path: Path) -> None:
    """Other programs are told of it. The lines of its log have the id of the request that ordered
    it, and none has anything that authenticates. A failing hook is in the log."""
    file = tmp_path / "ebbtide.prom"
    with receiver() as found:
        server = new_server(
            tmp_path / "store",
            EBBTIDE_LOG_FORMAT="json",
            EBBTIDE_LOG_LEVEL="debug",
            EBBTIDE_RUN_METRICS_FILE=str(file),
            EBBTIDE_RUN_WEBHOOK=f"{found.url}/hidden-path",
            EBBTIDE_RUN_WEBHOOK_SECRET="hidden-secret",
            EBBTIDE_RUN_HOOK="false",
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
                runs = place(lake, "gc/runs")
                http.post(runs, json=SOON | {"grace": "x"})
                asked = http.post(runs, json=SOON, headers={"X-Request-Id": "order-1"})
                run_id = asked.json()["run_id"]
                state = ended(http, lake, run_id)["state"]
            eventually(lambda: "exit code 1" in server.log)
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

    (request,) = found.received
    told = json.loads(request.body)
    assert (told["run_id"], told["outcome"]) == (run_id, state)
    outcomes = [key[2] for key, value in figures_of(file).items() if key[2] and value]
    assert outcomes == [state]
