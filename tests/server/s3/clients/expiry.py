"""A policy that expires all commits but the newest, and a run that deletes their data."""

from __future__ import annotations

import httpx
import lakefs

from tests.server.test_collecting import SOON, ended, place


def expire_older(http: httpx.Client, lake: lakefs.Repository) -> str:
    """Runs the collector until it is done. Its id, which errors name from then on."""
    policy = {"policy": {"default": {"keep_last": 1}}}
    assert http.put(place(lake, "settings/retention"), json=policy).status_code == 200
    run = ended(http, lake, http.post(place(lake, "gc/runs"), json=SOON).json()["run_id"])
    assert run["state"] == "swept", run
    assert run["report"]["deleted_count"] > 0, run
    return str(run["run_id"])
