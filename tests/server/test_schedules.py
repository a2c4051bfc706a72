"""Schedules over HTTP, and a server that starts a run which is due."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import lakefs

from ebbtide.run_request import ScheduledOptions
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.schedules import SCHEDULES
from ebbtide.timetable import Timetable
from tests.notify.loopback import receiver
from tests.server.test_collecting import place
from tests.support.collected import refused
from tests.support.server import Key, eventually, new_server

NIGHTLY = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "jitter": "30min"}


def test_the_life_of_a_schedule(lake: lakefs.Repository, http: httpx.Client) -> None:
    where = place(lake, "schedule")
    for wrong, kind in (
        ({"cron": "0 3 * *"}, "invalid_schedule"),
        ({"jitter": "5"}, "invalid_duration"),
        ({"run": {"grace": "soon"}}, "invalid_duration"),
        ({"run": {"quarantine": "soon"}}, "invalid_duration"),
    ):
        refused(http.put(where, json=NIGHTLY | wrong), 400, kind)
        refused(http.get(where), 404, "schedule_not_found")
    made = http.put(where, json=NIGHTLY | {"run": {"mode": "clean", "grace": "2d"}}).json()
    assert (made["cron"], made["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    run = made["run"]
    assert (made["jitter_seconds"], run["mode"], run["grace"]) == (1800, "clean", "2d")
    assert run["quarantine"] == "7d", "as for `gc run`"
    due, start = (datetime.fromisoformat(made[f"next_{name}_at"]) for name in ("due", "start"))
    assert due <= start <= due + timedelta(minutes=30)
    assert http.get(where).json() == made
    assert made in http.get("/schedules").json()["results"]
    off = http.patch(where, json={"enabled": False}).json()
    assert off["enabled"] is False and "next_due_at" not in off
    assert http.patch(where, json={"enabled": True}).json()["next_due_at"] == made["next_due_at"]
    figures = http.get("/metrics").text
    assert f'ebbtide_schedule_missed_total{{repository="{lake.id}"}} 0.0' in figures
    assert http.delete(where).status_code == 204
    refused(http.delete(where), 404, "schedule_not_found")


def set_hours_ago(store: Store, name: str) -> None:
    """Makes a repository with a schedule of each hour, three of which have passed."""
    key = store.create_repository(name).info.repository_id
    options = ScheduledOptions(quarantine="none")
    made = store.schedules.put(key, name, Timetable("0 * * * *"), options, by="me")
    assert made.next_due_at is not None
    with store.metadata.transaction() as tx:
        SCHEDULES.update(tx, key, next_due_at=made.next_due_at - timedelta(hours=3))


def test_a_server_starts_what_is_due(tmp_path: Path) -> None:
    """Due times that passed before its start are missed but for the latest. Other programs are told
    of the run's end, and of a schedule whose run cannot start."""
    with receiver() as found:
        server = new_server(tmp_path / "store", EBBTIDE_RUN_WEBHOOK=found.url)
        with Store.init(server.directory, settings=server.settings) as store:
            pair = store.keys.create(Role.ADMIN)
            server.keys["admin"] = Key(pair.key.access_key_id, pair.secret)
            for name in ("lake", "lost"):
                set_hours_ago(store, name)
            store.catalog.delete("lost")
        server.start(init=False)
        try:
            with server.http() as http:

                def ends() -> bool:
                    rows = http.get("/schedules").json()["results"]
                    return all(
                        row.get("last_run", {}).get("outcome", "running") != "running"
                        for row in rows
                    )

                eventually(ends)
                rows = {row["repository"]: row for row in http.get("/schedules").json()["results"]}
                lake, lost = rows["lake"], rows["lost"]
                run_id = lake["last_run"]["run_id"]
                run = http.get(f"/repositories/lake/gc/runs/{run_id}").json()
                assert lake["last_run"]["outcome"] == run["state"]
                assert (lake["started_count"], lake["missed_count"]) == (1, 2)
                assert lost["last_run"]["outcome"] == "failed"
                assert lost["last_run"]["error"]["kind"] == "repository_not_found"
                eventually(lambda: len(found.received) == 2)
        finally:
            server.stop()
    assert "2 due times had no run" in server.log
    told = [json.loads(each.body) for each in found.received]
    outcomes = {each["repository"]: each["outcome"] for each in told}
    assert outcomes == {"lake": run["state"], "lost": "failed"}
