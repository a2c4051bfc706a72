"""Commits whose data is in quarantine: what pages and API say of them, and the way back."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pytest

from ebbtide.doors.arvados.server import routes as arvados
from ebbtide.doors.s3.errors import error_response
from ebbtide.errors import Gone, Refused
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions, parse_quarantine
from ebbtide.quarantined import record_address
from ebbtide.server.job_files import Job
from ebbtide.server.jobs import Order
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import Browsers, browsing
from tests.server.pages.test_pages import text_of
from tests.support.engines import INLINE
from tests.support.lake import NAME
from tests.support.templates import AGE, date_files

PLACE = f"/repositories/{NAME}"


@dataclass
class Aside:
    """A store whose older commit has its data in quarantine."""

    store: Store
    browsers: Browsers
    run_id: str
    expired: str

    @property
    def command(self) -> str:
        return f"ebbtide gc undo {NAME} {self.run_id}"

    def api(self, place: str) -> httpx.Response:
        pair = self.store.keys.create(Role.READER)
        auth = (pair.key.access_key_id, pair.secret)
        return self.browsers(None).http.get(f"/api/v1{PLACE}{place}", auth=auth)


@pytest.fixture
def aside(tmp_path: Path) -> Iterator[Aside]:
    settings = Settings(reclaim=False, schedules=False, spark_master="none", lease_ttl=timedelta(0))
    with Store.init(tmp_path / "store", settings=settings) as store:
        lake = store.create_repository(NAME)
        for data in (b"old", b"new"):
            lake.objects.put("main", "a", data)
            lake.commits.commit("main", "change")
        lake.retention.set({"default": {"keep_last": 1}})
        expired = lake.commits.get("main~1").commit_id
        date_files(tmp_path / "store", lake.context.clock.host_now() - AGE)
        chosen: dict[str, Any] = {"grace": timedelta(0), "unsafe": True, "allow_share": True}
        options = RunOptions.of(settings, **chosen, quarantine=timedelta(days=3))
        form = EmbeddedRepository(lake.context, store_id=store.store_id)
        report = Collector(form, engine=INLINE, options=options).run()
        assert (report.state, report.counts["quarantined"].objects) == ("swept", 1)
        with browsing(store) as browsers:
            yield Aside(store, browsers, report.run_id, expired)


def test_an_answer_of_the_api_and_of_the_file_system(aside: Aside) -> None:
    fs = fsspec.filesystem("ebbtide", store=str(aside.store.directory), skip_instance_cache=True)
    with closing(fs), pytest.raises(FileNotFoundError, match="quarantined its data until"):
        fs.cat_file(f"{NAME}/{aside.expired}/a")
    for place in ("objects?path=a", "objects?path=a&presign=true"):  # without FastAPI, and with it
        answer = aside.api(f"/refs/{aside.expired}/{place}")
        document = answer.json()
        assert (answer.status_code, document["kind"]) == (410, "commit_expired")
        assert "quarantined its data until" in document["message"]
        assert (document["run_id"], document["restore_command"]) == (aside.run_id, aside.command)
        assert datetime.fromisoformat(document["quarantined_until"]).tzinfo is not None
    record = record_address(aside.run_id)
    aside.store.repository(NAME).storage.put(record, b"{")
    damaged = aside.api(f"/refs/{aside.expired}/objects?path=a")
    assert (damaged.status_code, damaged.json()["kind"]) == (410, "commit_expired")
    assert "restore_command" not in damaged.json()


def test_pages_offer_the_undo(aside: Aside) -> None:
    admin, reader = aside.browsers(), aside.browsers(Role.READER)
    button = f'action="/ui{PLACE}/runs/{aside.run_id}/undo"'
    places = (
        f"/commits/{aside.expired}",
        f"/object?ref={aside.expired}&path=a",
        f"/explain?what={aside.expired}",
        f"/explain?what={aside.expired}&path=a",
    )
    for place in places:
        page = admin.get(PLACE + place)
        assert "quarantine" in page.text, place
        assert button in page.text, place
        assert "deleted its data" not in page.text, place
        seen = reader.get(PLACE + place)
        assert button not in seen.text and "needs the role admin" in text_of(seen.text), place
    graph = html.unescape(admin.get(f"{PLACE}/commits").text)
    assert f"run {aside.run_id} quarantined its data until" in graph and aside.command in graph

    assert reader.post(f"{PLACE}/runs/{aside.run_id}/undo").status_code == 403
    assert admin.post(f"{PLACE}/runs/{aside.run_id}/undo").status_code == 303


def test_a_cleared_field_means_a_week(aside: Aside, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line: to delete at once has to be asked for."""
    admin = aside.browsers()
    lake = aside.store.repository(NAME)
    form = {"cron": "0 3 * * *", "timezone": "UTC"}
    for typed, kept in (("", "7d"), ("none", "none"), ("2d", "2d")):
        admin.post(f"{PLACE}/runs/schedule", quarantine=typed, **form)
        schedule = aside.store.schedules.find(lake.info.repository_id)
        assert schedule is not None and schedule.options["quarantine"] == kept
    orders: list[Order] = []

    def start(order: Order) -> Job:
        orders.append(order)
        raise Refused("run_in_progress", "another run")

    monkeypatch.setattr(admin.jobs, "start", start)
    for typed in ("", "none"):
        assert admin.post(f"{PLACE}/runs", action="run", quarantine=typed).status_code == 409
    form_of = EmbeddedRepository(lake.context, store_id=aside.store.store_id)
    asked = [parse_quarantine(order.options["quarantine"], form_of) for order in orders]
    assert asked == [timedelta(days=7), None]


def test_the_forms_of_other_clients() -> None:
    """S3 and Arvados have errors of their own, and carry the same."""
    until = "2026-03-08T00:00:00Z"
    error = Gone("commit_expired", "m", run_id="r", quarantined_until=until, restore_command="c")
    xml = bytes(error_response(error, resource="/r", request_id="i").body).decode()
    assert f"<QuarantinedUntil>{until}</QuarantinedUntil>" in xml
    assert "<RestoreCommand>c</RestoreCommand>" in xml
    document = json.loads(bytes(arvados.answer_of(error).body))
    assert document["errors"] == ["m"] and document["restore_command"] == "c"
