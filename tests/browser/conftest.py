"""One server with a lake, and a real browser, for the whole test run.

What the browser's console says of an error fails the test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.lake import collect, fill_lake
from tests.support.requirements import require_or_skip
from tests.support.server import Server, new_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

WAIT_MILLISECONDS = 60_000
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
PHONE: ViewportSize = {"width": 360, "height": 740}
SCREEN: ViewportSize = {"width": 1600, "height": 1000}


def find_chromium() -> str | None:
    given = os.environ.get("EBBTIDE_TEST_CHROMIUM")
    return given or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browsers() -> Iterator[Callable[[], Browser]]:
    """Gives a browser without a window: the one that runs, or a new one where that has ended."""
    path = find_chromium()
    if path is None:
        require_or_skip("chromium", "no chromium on PATH, and EBBTIDE_TEST_CHROMIUM names none")
    if find_spec("playwright") is None:
        require_or_skip("chromium", "playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        running: list[Browser] = []

        def running_one() -> Browser:
            if not running or not running[-1].is_connected():
                # Its own sandbox needs rights that root and containers do not have.
                chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
                running.append(chromium)
            return running[-1]

        yield running_one
        for chromium in running:
            chromium.close()


@pytest.fixture
def browser(browsers: Callable[[], Browser]) -> Browser:
    return browsers()


@pytest.fixture(scope="session")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose store has the lake, with one run that planned and one that swept."""
    directory: Path = tmp_path_factory.mktemp("pages") / "store"
    server = new_server(directory, EBBTIDE_RECLAIM="false").start()
    settings = Settings(reclaim=False, spark_master="none", lease_ttl=timedelta(0))
    with Store.open(directory, settings=settings) as store:
        collect(store, fill_lake(store))
        store.create_repository("empty")
        store.create_repository("dropped")
        store.catalog.delete("dropped")
    yield server
    server.stop()
    assert "Traceback" not in server.log, server.log


@dataclass
class Visitor:
    page: Page
    url: str
    said: list[str] = field(default_factory=list)

    def go(self, place: str) -> Page:
        answer = self.page.goto(f"{self.url}/ui{place}")
        assert answer is not None and answer.status == 200, place
        return self.page

    def follow(self, selector: str) -> None:
        """Click on what leads to another page, and wait for all of it. A click alone returns when
        its first bytes are there: what asks at once counts nothing."""
        with self.page.expect_navigation():
            self.page.click(selector)

    def log_in(self, server: Server, role: str) -> None:
        self.page.goto(f"{self.url}/ui/login")
        self.page.fill("#access_key_id", server.keys[role].access_key_id)
        self.page.fill("#secret", server.keys[role].secret)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(f"{self.url}/ui")


Visitors = Callable[..., Visitor]


@pytest.fixture
def visitors(browser: Browser, lake_server: Server) -> Iterator[Visitors]:
    """Gives somebody with the key of a role, at a screen of a size."""
    with visiting(browser, lake_server) as visitor_of:
        yield visitor_of


@contextmanager
def visiting(browser: Browser, server: Server) -> Iterator[Visitors]:
    """Gives visitors of a server, and looks at what their consoles said in the end."""
    contexts: list[BrowserContext] = []
    made: list[Visitor] = []

    def visitor_of(role: str | None = "admin", *, size: ViewportSize = SCREEN) -> Visitor:
        context = browser.new_context(viewport=size, reduced_motion="reduce")
        context.set_default_timeout(WAIT_MILLISECONDS)
        contexts.append(context)
        visitor = Visitor(context.new_page(), server.url)
        made.append(visitor)
        visitor.page.on("pageerror", lambda error: visitor.said.append(str(error)))
        visitor.page.on(
            "console",
            lambda said: (
                visitor.said.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        if role is not None:
            visitor.log_in(server, role)
        return visitor

    yield visitor_of
    for context in contexts:
        context.close()
    assert [said for visitor in made for said in visitor.said] == []
