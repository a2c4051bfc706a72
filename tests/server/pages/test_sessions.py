"""Logins, foreign forms, headers, who may see which page, and the theme."""

from __future__ import annotations

import re

import httpx

from ebbtide.server.pages.app import page_routes
from ebbtide.server.pages.browser import COOKIE, POLICY
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import ORIGIN, Browsers
from tests.server.test_roles import place_of, table_of

PAGES = table_of("pages.md")
POSTED = [place_of(path) for method, path in PAGES if method == "POST"]


def _is_clean(answer: httpx.Response) -> bool:
    """Whether no name can run or look like anything in it."""
    has_policy = answer.headers["content-security-policy"] == POLICY
    no_inline = not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|javascript:", answer.text)
    return has_policy and no_inline


def test_the_table_in_the_documentation() -> None:
    found = {
        (each.method, each.path_format.removeprefix("/ui")): each.role or "public"
        for each in page_routes()
    }
    assert found == PAGES


def test_logging_in_and_out(store: Store, browsers: Browsers) -> None:
    browser = browsers(None)
    pair = store.keys.create(Role.READER, name="ada")
    asked = browser.get("/repositories/x?a=b")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/ui/login?next=%2Fui%2Frepositories%2Fx%3Fa%3Db"
    assert "Log in" in browser.get("/login").text

    data = {"access_key_id": "<b>", "secret": "no"}
    wrong = browser.http.post("/ui/login", data=data, headers=ORIGIN)
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

    old = browser.http.cookies[COOKIE]
    assert browser.log_in(pair, form_token=browser.token()).status_code == 303
    token = browser.http.cookies[COOKIE]
    assert token != old and store.sessions.find(old) is None
    done = browser.post("/logout")
    assert done.status_code == 303 and "notice=logged_out" in done.headers["location"]
    assert browser.get("", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 303


def test_the_cookie_of_tls_and_the_next_page(store: Store, browsers: Browsers) -> None:
    """The cookie stays with TLS, and the next page is one of ours."""
    browser = browsers(None)
    pair = store.keys.create(Role.READER)
    data = {"access_key_id": pair.key.access_key_id, "secret": pair.secret}
    headers = {"Origin": "https://test"}
    done = browser.http.post("https://test/ui/login", data=data, headers=headers)
    assert "; Secure" in done.headers["set-cookie"]
    places = ("https://evil", "//evil", "/ui//evil\\", "/ui/../x\\y", "/uix", "/api/v1/user")
    for place in (*places, "javascript:alert(1)", "", "/ui/\r\nX: y"):
        assert browsers(None).log_in(pair, next=place).headers["location"] == "/ui", place


def test_headers(shared_browsers: Browsers) -> None:
    browser = shared_browsers(Role.READER)
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY
    expected = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cache-control": "no-store",
    }
    for place in ("", "/trash", "/nothing", "/login"):
        assert expected.items() <= dict(browser.get(place).headers).items(), place


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


def test_who_may_see(shared_browsers: Browsers) -> None:
    """Nothing named in the path is there, so that whoever may see it finds nothing."""
    stranger = shared_browsers(None)
    browsers = {role: shared_browsers(role) for role in Role}
    guarded = {each: role for each, role in PAGES.items() if role != "public"}
    for method, path in sorted(guarded, key=lambda each: each[1] == "/logout"):
        needed, place = Role(guarded[method, path]), place_of(path)
        if method == "GET":
            assert stranger.get(place).status_code == 303
            as_script = stranger.get(place, headers={"Accept": "application/json"})
            assert as_script.status_code == 401 and as_script.json()["kind"] == "key_invalid"
        else:
            assert stranger.http.post(f"/ui{place}", headers=ORIGIN).status_code == 401
        for role, browser in browsers.items():
            answer = browser.get(place) if method == "GET" else browser.post(place)
            expected = (200, 303, 400, 404) if role.allows(needed) else (403,)
            assert answer.status_code in expected, (method, path, role)
            assert _is_clean(answer), (method, path, role)


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


def test_a_forged_form_is_refused(shared_browsers: Browsers) -> None:
    """Of another site, or without the token of this login: each form in two ways, one in all."""
    browser, other = shared_browsers(), shared_browsers()
    token, wrong = browser.token(), ("", "0" * 64, "é", other.token())
    forged = [(token, headers) for headers in FOREIGN] + [(each, ORIGIN) for each in wrong]
    tried = [("/logout", each) for each in forged]
    tried += [(place, each) for place in POSTED for each in ((token, FOREIGN[1]), ("", ORIGIN))]
    for place, (form_token, headers) in tried:
        data = {"form_token": form_token}
        answer = browser.http.post(f"/ui{place}", data=data, headers=headers)
        assert answer.status_code == 403, (place, form_token, headers)
        assert "request_forged" in answer.text, (place, form_token, headers)
    assert browser.get("").status_code == 200, "still logged in"


def test_what_is_no_form(shared_browsers: Browsers) -> None:
    browser, form = shared_browsers(), "application/x-www-form-urlencoded"
    for content, kind in (
        (b"{}", "application/json"),
        (b"form_token=\xff", form),
        (b"&".join(b"a=b" for _ in range(1_100)), form),
        (b"a=%00", form),
    ):
        headers = ORIGIN | {"Content-Type": kind}
        answer = browser.http.post("/ui/logout", content=content, headers=headers)
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


def theme_of(page: str) -> tuple[str | None, list[str]]:
    """The theme of a page, and the pressed buttons."""
    found = re.search(r'<html lang="en" data-theme="(\w+)">', page)
    pressed = re.findall(r'value="(\w+)" aria-pressed="true"', page)
    return (None if found is None else found[1]), pressed


def test_a_theme_is_remembered(shared_browsers: Browsers) -> None:
    """Also before a login."""
    stranger, reader = shared_browsers(None), shared_browsers(Role.READER)
    for browser, place in ((stranger, "/login"), (reader, "/trash")):
        assert theme_of(browser.get(place).text) == (None, ["system"])
        fields = {
            "form_token": "" if browser is stranger else reader.token(),
            "next": f"/ui{place}",
        }
        for theme, shown in (("dark", "dark"), ("light", "light"), ("system", None)):
            answer = browser.http.post("/ui/theme", data=fields | {"theme": theme}, headers=ORIGIN)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/ui{place}")
            assert "SameSite=lax" in answer.headers["set-cookie"]
            page = browser.get(place).text
            assert theme_of(page) == (shown, [theme])
            assert f'name="next" value="/ui{place}"' in page
            found = re.search(r'name="color-scheme" content="([\w ]+)"', page)
            assert found is not None and found[1] == (shown or "light dark")


def test_other_texts(shared_browsers: Browsers) -> None:
    browser = shared_browsers(Role.READER)
    assert browser.post("/theme", theme='"><script>').status_code == 400
    away = browser.post("/theme", theme="dark", next="https://evil.example/ui")
    assert away.headers["location"] == "/ui"
    browser.http.cookies.set("ebbtide_theme", "bright", domain="test.local", path="/ui")
    assert theme_of(browser.get("/trash").text) == (None, ["system"])


def test_the_page_to_come_back_to(shared_browsers: Browsers) -> None:
    """With its search, without its notice; of a refused form, a page that there is."""
    browser = shared_browsers()
    page = browser.get("/trash?after=a%26b&notice=restored").text
    assert 'name="next" value="/ui/trash?after=a%26b"' in page
    assert 'name="next" value="/ui"' in browser.post("", name="?").text
