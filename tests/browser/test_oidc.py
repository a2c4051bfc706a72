"""Logins by an issuer in a real browser. The issuer is another site, as it is for users: its name
of the loopback address differs from that of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import PHONE, Visitors, visiting
from tests.browser.test_flows import check_looks
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, TestIssuer, issuing
from tests.support.server import Server, new_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def issuer() -> Iterator[TestIssuer]:
    with issuing("localhost") as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: TestIssuer) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("oidc")
    secret = directory / "secret"
    secret.write_text(CLIENT_SECRET)
    found = new_server(
        directory / "store",
        EBBTIDE_RECLAIM="false",
        EBBTIDE_OIDC_ISSUER=issuer.url,
        EBBTIDE_OIDC_CLIENT_ID=CLIENT_ID,
        EBBTIDE_OIDC_CLIENT_SECRET_FILE=str(secret),
        EBBTIDE_OIDC_ROLES="readers=reader",
    ).start()
    yield found
    found.stop()
    assert "Traceback" not in found.log, found.log


@pytest.fixture
def visitors(browser: Browser, server: Server) -> Iterator[Visitors]:
    with visiting(browser, server) as found:
        yield found


def test_logging_in_and_out_by_the_issuer(visitors: Visitors, issuer: TestIssuer) -> None:
    visitor = visitors(None, size=PHONE)
    page = visitor.page
    page.goto(f"{visitor.url}/ui/trash")
    assert "/ui/login" in page.url
    check_looks(page, "/login with an issuer")

    page.click("text=Log in at localhost")
    page.wait_for_url(f"{visitor.url}/ui/trash")
    assert page.locator(".role").inner_text() == "reader"
    assert page.locator(".who-name").inner_text() == "ada@example.org"
    assert page.evaluate("document.cookie") == "", "scripts see neither cookie"

    page.click("text=Log out")
    # Not for an address: a script takes the notice out of it.
    page.wait_for_selector("text=You are logged out. Log in to continue.")
    assert page.url.startswith(f"{visitor.url}/ui/login")
    assert len(issuer.logged_out) == 1
    page.goto(f"{visitor.url}/ui")
    assert "/ui/login" in page.url


def test_a_login_that_gives_no_role(visitors: Visitors, issuer: TestIssuer) -> None:
    visitor = visitors(None)
    page = visitor.page
    issuer.extra = {"groups": []}
    page.goto(f"{visitor.url}/ui/login")
    page.click("text=Log in at localhost")
    page.wait_for_selector("[role=alert]")
    visitor.said.clear()  # the browser says that it was 401, as it should be
    assert "gives you a role here" in page.locator("[role=alert]").inner_text()
    check_looks(page, "/login refused")
    issuer.extra = {"groups": ["readers"]}
    page.click("text=Log in at localhost")
    page.wait_for_url(f"{visitor.url}/ui")


def test_the_page_on_the_way(visitors: Visitors, server: Server) -> None:
    """It leads on by itself, which is left out here; a browser that does not gets a link."""
    with httpx.Client(follow_redirects=True) as client:
        answer = client.get(f"{server.url}/ui/login/oidc")
    html, count = re.subn('<meta http-equiv="refresh"[^>]*>', "", answer.text)
    assert count == 1
    visitor = visitors(None)
    page = visitor.page
    page.route("**/ui/shown", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{visitor.url}/ui/shown")
    assert page.locator("h1").inner_text() == "You are logged in."
    check_looks(page, "on the way from an issuer")
    with page.expect_navigation(url=f"{visitor.url}/ui/login"):  # this browser has no session
        page.click("text=Continue")
