"""The pages in this process, with an issuer on the loopback address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ebbtide.server.oidc.options import CALLBACK_PATH
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import Browser, Browsers, browsing
from tests.support.clock import ManualClock
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, TestIssuer, issuing

CALLBACK = f"https://test{CALLBACK_PATH}"
ROLES = "readers=reader, writers=writer 'data admins'=admin lake=lake:writer staff=none"


@dataclass
class World:
    """A store whose pages log people in by an issuer."""

    store: Store
    browsers: Browsers
    issuer: TestIssuer

    def browser(self) -> Browser:
        """A browser in which nobody is logged in."""
        return self.browsers(None)

    def asked(self, browser: Browser, next_page: str | None = None) -> str:
        """Begin, and log in at the issuer; the path to which it sends the browser back."""
        params = {} if next_page is None else {"next": next_page}
        begun = browser.get("/login/oidc", params=params)
        assert begun.status_code == 303, begun.text
        # Certificates take long to load, and nobody asks for them here.
        back = httpx.get(begun.headers["location"], verify=False)
        url = urlsplit(back.headers["location"])
        assert url.path == CALLBACK_PATH
        return f"{url.path}?{url.query}"

    def log_in(self, browser: Browser, next_page: str | None = None) -> httpx.Response:
        """The whole flow; the last answer of the server."""
        return browser.http.get(self.asked(browser, next_page))

    def logged_in(self, **claims: Any) -> Browser:
        """A browser in which somebody with these claims is logged in."""
        self.issuer.extra = claims
        browser = self.browser()
        answer = self.log_in(browser)
        assert answer.status_code == 200, answer.text
        return browser


def settings_of(issuer: TestIssuer, directory: Path, **more: Any) -> Settings:
    """Settings for an issuer, with a secret in a file."""
    secret = directory / "client.secret"
    secret.write_text(f"{CLIENT_SECRET}\n")
    given: dict[str, Any] = {
        "oidc_issuer": issuer.url,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret_file": secret,
        "oidc_redirect_url": CALLBACK,
        "oidc_roles": ROLES,
        "reclaim": False,
        "schedules": False,
    }
    return Settings(**(given | more))


@contextmanager
def made_world(
    directory: Path, clock: ManualClock, issuer: TestIssuer, **more: Any
) -> Iterator[World]:
    """Yields a new store and its pages, with such settings besides."""
    settings = settings_of(issuer, directory, **more)
    with (
        Store.init(directory / "store", settings=settings, clock=clock) as store,
        browsing(store) as browsers,
    ):
        yield World(store, browsers, issuer)


@pytest.fixture
def issuer() -> Iterator[TestIssuer]:
    with issuing() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock, issuer: TestIssuer) -> Iterator[World]:
    """A new store, its pages and an issuer."""
    with made_world(tmp_path, clock, issuer) as found:
        yield found
