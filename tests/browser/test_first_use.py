"""What somebody does who has just made a store: through the pages alone, from a key to the first
file that is deleted for good reason. docs/pages.md tells it ("A first try")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.browser.conftest import Visitor, visiting
from tests.support.server import Server, eventually, new_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

POLICY = '{"default": "1s"}'
OLD_ENOUGH = timedelta(seconds=2.5)
"""Older than the grace, a lease, and the part of a second that dates may leave out."""


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Server]:
    server = new_server(
        tmp_path / "store",
        EBBTIDE_GRACE="1s",
        EBBTIDE_LEASE_TTL="1s",
        EBBTIDE_CLOCK_SKEW_MAX="1s",
    ).start()
    yield server
    server.stop()
    assert "Traceback" not in server.log, server.log


def upload(visitor: Visitor, file: Path, *, path: str = "") -> None:
    page = visitor.page
    if page.locator("details.start[open]").count() == 0:
        page.click("summary:has-text('Upload')")
    page.set_input_files("#content", file)
    page.fill("#path", path)
    visitor.follow("button:has-text('Upload')")
    page.wait_for_selector("text=The file is uploaded")


def commit(visitor: Visitor, message: str) -> None:
    visitor.page.fill("#message", message)
    visitor.follow("button:has-text('Commit')")
    visitor.page.wait_for_selector("text=The changes are committed")


def newest_commit(server: Server) -> datetime:
    with Store.open(server.directory, settings=Settings()) as store:
        return store.repository("lake").commits.get("main").created_at


def test_from_a_key_to_the_first_byte(browser: Browser, new_store: Server, tmp_path: Path) -> None:
    wanted, unwanted = tmp_path / "wanted.csv", tmp_path / "un wanted „2“.csv"
    wanted.write_bytes(b"kept" * 1000)
    unwanted.write_bytes(b"gone" * 900_000)  # more than what passes in one piece
    with visiting(browser, new_store) as visitor_of:
        visitor = visitor_of()
        page = visitor.page
        page.fill("#name", "lake")
        visitor.follow("button:has-text('Make it')")
        page.wait_for_selector("text=The repository is created")
        upload(visitor, wanted)
        upload(visitor, unwanted, path="raw/first.csv")
        visitor.follow("nav.path a")
        upload(visitor, unwanted)
        assert page.locator(".changes li").count() == 3
        commit(visitor, "Three files")
        visitor.follow("[aria-label='Delete un wanted „2“.csv']")
        page.wait_for_selector("text=The file is deleted from the branch")
        commit(visitor, "Without one")

        visitor.follow("nav.sections >> text=Policy")
        page.click("label:text-is('JSON')")
        page.fill("#policy", POLICY)
        visitor.follow("button:text-is('Set')")
        page.wait_for_selector("text=The policy is set")

        eventually(lambda: datetime.now(UTC) - newest_commit(new_store) > OLD_ENOUGH)
        visitor.follow("nav.sections >> text=Runs")
        page.fill("#quarantine", "none")
        visitor.follow("button:has-text('Start')")
        page.wait_for_selector(".head .badge.planned", timeout=120_000)
        visitor.follow("text=look at them")
        page.wait_for_selector("tbody tr")
        assert page.locator("tbody tr:has-text('3.4 MiB')").count() == 1
        visitor.follow("text=The run")
        page.click("summary:has-text('Sweep')")
        page.fill("#quarantine", "none")
        page.fill("#confirmation", "lake")
        visitor.follow("button.danger:has-text('Sweep')")
        page.wait_for_selector(".head .badge.swept", timeout=120_000)
        deleted = page.locator(".figures div:has-text('Deleted') dd").first.inner_text()
        assert re.match(r"3\.4 MiB", deleted), deleted

        visitor.follow("nav.sections >> text=Files")
        names = [name.strip() for name in page.locator("tbody th").all_inner_texts()]
        assert names == ["raw/", "wanted.csv"]
    with Store.open(new_store.directory, settings=Settings()) as store:
        lake = store.repository("lake")
        assert lake.objects.get("main", "wanted.csv") == wanted.read_bytes()
        assert lake.objects.get("main", "raw/first.csv") == unwanted.read_bytes()
        assert [each.message for each in lake.commits.log("main", amount=2)] == [
            "Without one",
            "Three files",
        ]
