"""What a server tells other programs at the end of the runs that it started."""

from __future__ import annotations

import json
from pathlib import Path

import lakefs

from tests.notify.ends import figures_of
from tests.notify.loopback import receiver
from tests.server.test_client import put
from tests.server.test_collecting import SOON, ended, place
from tests.support.server import eventually, new_server


def test_runs_of_a_server(tmp_path: Path) -> None:
    """A failing hook is in its log."""
    file = tmp_path / "ebbtide.prom"
    with receiver() as found:
        server = new_server(
            tmp_path / "store",
            EBBTIDE_RUN_METRICS_FILE=str(file),
            EBBTIDE_RUN_WEBHOOK=found.url,
            EBBTIDE_RUN_WEBHOOK_SECRET="hidden",
            EBBTIDE_RUN_HOOK="false",
        ).start()
        try:
            lake = lakefs.Repository("lake", client=server.client()).create("local://lake")
            put(lake, a="1")
            with server.http() as http:
                http.post(place(lake, "gc/runs"), json=SOON | {"grace": "x"})
                run = http.post(place(lake, "gc/runs"), json=SOON).json()
                state = ended(http, lake, run["run_id"])["state"]
            eventually(lambda: "exit code 1" in server.log)
        finally:
            server.stop()
    (request,) = found.received
    told = json.loads(request.body)
    assert (told["run_id"], told["outcome"]) == (run["run_id"], state)
    outcomes = [key[2] for key, value in figures_of(file).items() if key[2] and value]
    assert outcomes == [state]
    assert "hidden" not in server.log
