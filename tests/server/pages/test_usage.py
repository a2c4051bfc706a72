"""The page of usage says what the command says, to readers as well, and keeps the last result."""

from __future__ import annotations

import html
from typing import Any

import pytest

from ebbtide.api.looks import name_of, periods_of, usage_json
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.server.job_files import add_job
from ebbtide.store.access.access_keys import Role
from ebbtide.text import count_text, known_size_text
from tests.server.pages.conftest import PLACE, Browser, Lake
from tests.server.pages.test_pages import rows_of, text_of
from tests.server.pages.test_trying import form_of
from tests.support.engines import INLINE
from tests.support.lake import HOSTILE
from tests.support.server import eventually

pytestmark = pytest.mark.xdist_group("pages")  # which share a lake

USAGE = f"{PLACE}/usage"


def figures(count: dict[str, Any]) -> str:
    return f"{known_size_text(count['bytes_total'])} {count_text(count['objects'])}"


def test_the_page_says_what_the_command_says(lake: Lake, admin: Browser) -> None:
    assert f'href="/ui{USAGE}"' in admin.get(PLACE).text
    assert "has not computed the usage yet" in admin.get(USAGE).text
    assert admin.post(USAGE).status_code == 303

    def has_ended() -> bool:
        found = admin.get(USAGE, headers={"Accept": "application/json"}).json()
        return bool(found["ended"])

    assert "data-progress" in admin.get(USAGE).text or has_ended()
    eventually(has_ended)
    page = lake.browsers(Role.READER).get(USAGE).text
    assert "<button>Compute" not in page and HOSTILE not in page
    options = RunOptions.of(lake.store.settings, unsafe=True, mode="clean")
    found = usage_json(Collector(form_of(lake), engine=INLINE, options=options).usage(), None)
    rows = rows_of(page)
    assert len(found["holders"]) > 10 and found["together"] and found["unheld"]["would_be_deleted"]
    for each in found["holders"]:
        assert f"{name_of(each)} {figures(each['alone'])} {figures(each['in_all'])}" in rows
    for each in found["together"]:
        names = ", ".join(map(name_of, each["holders"]))
        assert any(row.startswith(names) and row.endswith(figures(each)) for row in rows), names
    assert f"Would be deleted {figures(found['unheld']['would_be_deleted'])}" in rows
    for label, each in periods_of(found["periods"]):
        size = known_size_text(each["bytes_total"])
        assert f"{label} {count_text(each['objects'])} {size}" in rows
    total = known_size_text(found["listed"]["bytes_total"])
    assert f"All files {total} {count_text(found['listed']['objects'])} files" in text_of(page)


def test_an_error_is_told(lake: Lake, admin: Browser) -> None:
    """The last result stays; the next one takes the error's place."""
    lake.store.create_repository("broken")
    key = lake.store.repository("broken").info.repository_id
    job = add_job(admin.jobs._directory, key, look_id="1" * 32, looks_at="usage")
    place = "/repositories/broken/usage"
    assert "under way" in admin.get(place).text
    job.tell("error", {"kind": "internal", "message": "the disk <b>burns</b>"})
    job.end()
    page = admin.get(place).text
    assert "The disk <b>burns</b>." in html.unescape(page) and "<b>" not in page
    assert "Compute the usage" in page
    job.remove()
    lake.store.catalog.delete("broken")
