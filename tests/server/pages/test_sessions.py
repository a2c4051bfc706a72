"""Logging in and out; forms of others; headers; who may see which page."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from ebbtide.server.pages.app import page_routes
from ebbtide.server.pages.guarding import COOKIE, POLICY
from ebbtide.store.access.keys import Role
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import ORIGIN, Browsers
from tests.support.clock import ManualClock

R = "/repositories/{repository}"
PAGES = {
    ("GET", "/login"): None,
    ("POST", "/login"): None,
    ("GET", "/login/oidc"): None,
    ("GET", "/login/oidc/callback"): None,
    ("GET", "/static/{digest}/{name}"): None,
    ("POST", "/logout"): "none",
    ("POST", "/theme"): None,
    ("GET", ""): "none",
    ("POST", ""): "admin",
    ("GET", "/trash"): "reader",
    ("POST", "/trash/{repository_id}/restore"): "admin",
    ("GET", R): "reader",
    ("GET", R + "/files"): "reader",
    ("POST", R + "/files/upload"): "writer",
    ("POST", R + "/files/delete"): "writer",
    ("POST", R + "/files/commit"): "writer",
    ("GET", R + "/object"): "reader",
    ("GET", R + "/object/content"): "reader",
    ("GET", R + "/commits"): "reader",
    ("GET", R + "/commits/{commit_id}"): "reader",
    ("GET", R + "/compare"): "reader",
    ("POST", R + "/compare/merge"): "writer",
    ("GET", R + "/explain"): "reader",
    ("GET", R + "/refs"): "reader",
    ("POST", R + "/refs"): "writer",
    ("POST", R + "/refs/delete"): "writer",
    ("GET", R + "/collections"): "reader",
    ("POST", R + "/collections"): "writer",
    ("POST", R + "/collections/delete"): "writer",
    ("GET", R + "/policy"): "reader",
    ("POST", R + "/policy"): "admin",
    ("POST", R + "/policy/unset"): "admin",
    ("POST", R + "/policy/preview"): "admin",
    ("GET", R + "/policy/looks/{look_id}"): "admin",
    ("GET", R + "/holds"): "reader",
    ("POST", R + "/holds"): "admin",
    ("POST", R + "/holds/remove"): "admin",
    ("GET", R + "/protection"): "reader",
    ("POST", R + "/protection"): "admin",
    ("POST", R + "/protection/remove"): "admin",
    ("GET", R + "/runs"): "reader",
    ("GET", R + "/runs/trend"): "reader",
    ("GET", R + "/runs/schedule"): "reader",
    ("POST", R + "/runs/schedule"): "admin",
    ("POST", R + "/runs/schedule/switch"): "admin",
    ("POST", R + "/runs/schedule/delete"): "admin",
    ("POST", R + "/runs"): "admin",
    ("GET", R + "/runs/{run_id}"): "reader",
    ("POST", R + "/runs/{run_id}/sweep"): "admin",
    ("POST", R + "/runs/{run_id}/undo"): "admin",
    ("POST", R + "/runs/{run_id}/purge"): "admin",
    ("GET", R + "/runs/{run_id}/progress"): "reader",
    ("GET", R + "/runs/{run_id}/candidates"): "reader",
    ("GET", R + "/runs/{run_id}/charts"): "reader",
    ("GET", R + "/trash"): "reader",
    ("POST", R + "/trash/{kind}/{item_id}/restore"): "writer",
    ("GET", R + "/purges"): "admin",
    ("POST", R + "/purges"): "admin",
    ("GET", R + "/purges/{purge_id}"): "admin",
    ("POST", R + "/purges/{purge_id}/resume"): "admin",
    ("GET", R + "/purges/{purge_id}/progress"): "admin",
}
"""Every page, by whom it may be seen."""
GUARDED = [each for each, role in PAGES.items() if role is not None]


def _is_clean(answer: httpx.Response) -> bool:
    """Whether no name can run or look like anything in it."""
    has_policy = answer.headers["content-security-policy"] == POLICY
    no_inline = not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|javascript:", answer.text)
    return has_policy and no_inline


def test_every_page_has_its_role() -> None:
    found = {
        (each.method, each.path_format.removeprefix("/ui")): each.role for each in page_routes()
    }
    assert found == PAGES


def test_the_table_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pages.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+) (R?)(/?\S*)` \| (\w+) \|", text, re.MULTILINE)
    found = {
        (method, (R if short else "") + path.removeprefix("/ui")): role
        for method, short, path, role in rows
    }
    assert len(rows) == len(found)
    assert found == {each: role or "public" for each, role in PAGES.items()}


def test_logging_in(store: Store, browsers: Browsers) -> None:
    browser = browsers(None)
    pair = store.keys.create(Role.READER, name="ada")
    asked = browser.get("/repositories/x?a=b")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/ui/login?next=%2Fui%2Frepositories%2Fx%3Fa%3Db"
    assert "Log in" in browser.get("/login").text

    wrong = browser.http.post(
        "/ui/login", data={"access_key_id": "<b>", "secret": "no"}, headers=ORIGIN
    )
    assert wrong.status_code == 401 and "access key does not exist" in wrong.text
    assert "&lt;b&gt;" in wrong.text and _is_clean(wrong)
    assert COOKIE not in browser.http.cookies

    done = browser.log_in(pair, next="/ui/trash?x=1")
    assert (done.status_code, done.headers["location"]) == (303, "/ui/trash?x=1")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/ui" in cookie
    assert "Secure" not in cookie, "plain HTTP, as on loopback"
    shown = browser.get("")
    assert shown.status_code == 200 and "ada" in shown.text and "reader" in shown.text
    assert shown.headers["cache-control"] == "no-store"


def test_the_cookie_of_tls_stays_with_it(store: Store, browsers: Browsers) -> None:
    browser = browsers(None)
    pair = store.keys.create(Role.READER)
    done = browser.http.post(
        "https://test/ui/login",
        data={"access_key_id": pair.key.access_key_id, "secret": pair.secret},
        headers={"Origin": "https://test"},
    )
    assert "; Secure" in done.headers["set-cookie"]


@pytest.mark.parametrize(
    "place",
    ["https://evil", "//evil", "/ui//evil\\", "/uix", "javascript:alert(1)", "/ui/\r\nX: y", ""],
)
def test_logging_in_leads_to_a_page_of_ours(store: Store, browsers: Browsers, place: str) -> None:
    done = browsers(None).log_in(store.keys.create(Role.READER), next=place)
    assert done.headers["location"] == "/ui"


def test_logging_out(browsers: Browsers) -> None:
    browser = browsers(Role.READER)
    token = browser.http.cookies[COOKIE]
    done = browser.post("/logout")
    assert done.status_code == 303 and "notice=logged_out" in done.headers["location"]
    browser.http.cookies.set(COOKIE, token, domain="test.local", path="/ui")
    assert browser.get("", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 303


def test_a_session_ends_by_time_and_with_its_key(
    store: Store, browsers: Browsers, clock: ManualClock
) -> None:
    browser, other = browsers(Role.READER), browsers(Role.READER)
    clock.advance(timedelta(hours=11))
    assert browser.get("").status_code == 200
    session = store.sessions.find(browser.http.cookies[COOKIE])
    assert session is not None
    store.keys.revoke(session.key.access_key_id)
    assert browser.get("").status_code == 303
    assert other.get("").status_code == 200
    clock.advance(timedelta(hours=1))
    assert other.get("").status_code == 303


def test_logging_in_anew_ends_the_session_before(store: Store, browsers: Browsers) -> None:
    browser = browsers(Role.READER)
    old = browser.http.cookies[COOKIE]
    assert (
        browser.log_in(store.keys.create(Role.READER), form_token=browser.token()).status_code
        == 303
    )
    assert browser.http.cookies[COOKIE] != old
    assert store.sessions.find(old) is None


@pytest.mark.parametrize("place", ["", "/trash", "/nothing", "/login"])
def test_headers(shared_browsers: Browsers, place: str) -> None:
    answer = shared_browsers(Role.READER).get(place)
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"


def test_files_are_kept_by_browsers(shared_browsers: Browsers) -> None:
    browser = shared_browsers(None)
    places = re.findall(r'(?:href|src)="/ui(/static/[^"]+)"', browser.get("/login").text)
    assert sorted(place.rsplit("/", 1)[1] for place in places) == ["app.css", "app.js", "icon.svg"]
    for place in places:
        found = browser.get(place)
        assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
        stale = browser.get(re.sub(r"/static/\w+/", "/static/0000000000000000/", place))
        assert stale.status_code == 404 and stale.headers["cache-control"] == "no-store"
    assert browser.get("/static/0000000000000000/..%2Fapp.py").status_code == 404


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=[" ".join(each) for each in GUARDED])
def test_who_may_see(shared_browsers: Browsers, method: str, path: str) -> None:
    """Nothing named in the path is there, so that whoever may see it finds nothing."""
    needed = Role(str(PAGES[method, path]))
    place = path.replace("{", "no-such-").replace("}", "")
    stranger = shared_browsers(None)
    if method == "GET":
        assert stranger.get(place).status_code == 303
        as_script = stranger.get(place, headers={"Accept": "application/json"})
        assert as_script.status_code == 401 and as_script.json()["kind"] == "key_invalid"
    else:
        assert stranger.http.post(f"/ui{place}", headers=ORIGIN).status_code == 401
    for role in Role:
        browser = shared_browsers(role)
        answer = browser.get(place) if method == "GET" else browser.post(place)
        if role.allows(needed):
            assert answer.status_code in (200, 303, 400, 404), role
        else:
            assert answer.status_code == 403, role
        assert _is_clean(answer)


POSTED = [path for method, path in PAGES if method == "POST"]


FOREIGN: list[dict[str, str]] = [
    {},
    {"Origin": "http://evil"},
    {"Origin": "null"},
    {"Origin": "http://test:8000"},
    {"Origin": "http://test", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
]
"""What a browser says of a form of another site, or of none; and what says nothing."""


@pytest.mark.parametrize("path", POSTED)
def test_a_form_of_another_site_is_refused(shared_browsers: Browsers, path: str) -> None:
    browser = shared_browsers()
    data = {"form_token": browser.token()}
    place = path.replace("{", "no-such-").replace("}", "")
    for headers in FOREIGN:
        answer = browser.http.post(f"/ui{place}", data=data, headers=headers)
        assert answer.status_code == 403, headers
        assert "request_forged" in answer.text


@pytest.mark.parametrize("path", POSTED)
def test_a_form_without_the_token_is_refused(shared_browsers: Browsers, path: str) -> None:
    browser, other = shared_browsers(), shared_browsers()
    place = path.replace("{", "no-such-").replace("}", "")
    for token in ("", "0" * 64, "é", other.token()):
        answer = browser.http.post(f"/ui{place}", data={"form_token": token}, headers=ORIGIN)
        assert answer.status_code == 403 and "request_forged" in answer.text, token
    assert browser.get("").status_code == 200, "still logged in"


def test_what_is_no_form(shared_browsers: Browsers) -> None:
    browser = shared_browsers()
    for content, kind in (
        (b"{}", "application/json"),
        (b"form_token=\xff", "application/x-www-form-urlencoded"),
        (b"&".join(b"a=b" for _ in range(1_100)), "application/x-www-form-urlencoded"),
        (b"a=%00", "application/x-www-form-urlencoded"),
    ):
        answer = browser.http.post(
            "/ui/logout", content=content, headers=ORIGIN | {"Content-Type": kind}
        )
        assert answer.status_code in (400, 403), content
    assert browser.get("/%00").status_code == 404
    assert browser.get("/repositories/a%00b").status_code == 400
    assert browser.get("?search=%00").status_code == 400


def test_the_server_itself(shared_browsers: Browsers) -> None:
    """Browsers are sent to the pages; a session opens none of the API, nor a key the pages."""
    browser = shared_browsers()
    sent = browser.http.get("/", headers={"Accept": "text/html"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/ui")
    assert browser.http.get("/", headers={"Accept": "*/*"}).status_code == 401
    assert browser.http.get("/api/v1/repositories").status_code == 401
    assert browser.http.get("/uix").status_code == 401
    assert browser.get("/").status_code in (303, 307)
