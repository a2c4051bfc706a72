"""Logins by an issuer: the whole flow, and every answer that must not log anybody in."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.server.oidc.issuer import (
    ANSWER_BYTES_MAX,
    DOCUMENT_SECONDS_MAX,
    TOTAL_SECONDS_MAX,
    Issuer,
    fetch_json,
)
from ebbtide.server.oidc.options import oidc_options
from ebbtide.server.oidc.provider import FLOW_TIME
from ebbtide.server.pages.browser import COOKIE
from ebbtide.server.pages.login import FLOW_COOKIE
from ebbtide.store.access.access_keys import Role
from ebbtide.store.database.schema import sessions
from ebbtide.store.embedded import Store
from tests.server.oidc.conftest import CALLBACK, World, made_world, settings_of
from tests.server.pages.conftest import Browser, browsing
from tests.support.clock import ManualClock
from tests.support.issuer import (
    CLIENT_ID,
    CLIENT_SECRET,
    TestIssuer,
    by_another_key,
    by_ec,
    by_nobody,
    by_public_key,
    by_rsa,
)
from tests.support.randomized import choose

Claims = dict[str, Any]


def said(answer: httpx.Response) -> str:
    """The error that the login page shows."""
    found = re.search(r'role="alert">([^<]*)<', answer.text)
    return "" if found is None else found[1]


def check_refused(world: World, browser: Browser, answer: httpx.Response, status: int = 401) -> str:
    """Nobody is logged in, and the login page says why; the reason."""
    assert answer.status_code == status, answer.text
    assert "Secret access key" in answer.text, "the login page"
    assert COOKIE not in browser.http.cookies
    assert browser.get("").status_code == 303
    with world.store.metadata.snapshot() as tx:
        assert tx.execute(sa.select(sessions)).all() == []
    reason = said(answer)
    assert reason.endswith(".")
    return reason


@pytest.mark.parametrize("sign", [by_rsa, by_ec])
def test_the_whole_flow(world: World, sign: Callable[[Claims], str]) -> None:
    world.issuer.sign = sign
    browser = world.browser()
    page = browser.get("/login?next=/ui/trash").text
    assert f"Log in at {urlsplit(world.issuer.url).netloc}" in page
    assert 'href="/ui/login/oidc?next=%2Fui%2Ftrash"' in page

    answer = world.log_in(browser, "/ui/trash")
    assert answer.status_code == 200
    assert 'content="0; url=/ui/trash"' in answer.text
    marks = {
        cookie.partition("=")[0]: set(cookie.split("; ")[1:])
        for cookie in answer.headers.get_list("set-cookie")
    }
    assert {"HttpOnly", "SameSite=strict", "Path=/ui"} <= marks[COOKIE]
    assert FLOW_COOKIE not in browser.http.cookies, "it counts once"
    shown = browser.get("/trash")
    assert shown.status_code == 200
    assert "ada@example.org" in shown.text and '<span class="role">reader</span>' in shown.text


def test_the_cookie_of_a_login_on_its_way(world: World) -> None:
    """The issuer's redirect carries it, scripts cannot read it, and it reveals nothing. Two logins
    have nothing in common. The redirect leads back to what the setting says, whatever the host."""
    seen: set[str] = set()
    for _ in range(2):
        begun = world.browser().get("/login/oidc", headers={"Host": "evil.example"})
        cookie = begun.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=lax", "Path=/ui/login/oidc"} <= set(cookie.split("; "))
        asked = dict(parse_qsl(urlsplit(begun.headers["location"]).query))
        assert asked["tenant"] == "a", "the issuer's own query stays"
        assert asked["redirect_uri"] == CALLBACK
        assert asked["nonce"] not in cookie and asked["state"] not in cookie
        seen |= {asked[name] for name in ("state", "nonce", "code_challenge")}
    assert len(seen) == 6


CLAIMS: list[tuple[Claims, str]] = [
    ({"nonce": "another"}, "nonce is of another login"),
    ({"nonce": None}, "nonce is of another login"),
    ({"nonce": "\ud800"}, "nonce is of another login"),
    ({"exp": int(time.time()) - 3600}, "signature has expired"),
    ({"exp": None}, 'missing the "exp" claim'),
    ({"exp": "soon"}, "exp"),
    ({"iat": int(time.time()) + 3600}, "not yet valid"),
    ({"aud": "another"}, "audience doesn't match"),
    ({"aud": [CLIENT_ID, "another"]}, "made for another client"),
    ({"azp": "another"}, "made for another client"),
    ({"iss": "https://another.example"}, "invalid issuer"),
    ({"sub": "x" * 256}, "subject is empty or too long"),
    ({"sub": 7}, "subject must be a string"),
    ({"groups": ["strangers"]}, "nothing in the claim"),
    ({"groups": [["readers"], {"readers": 1}, 7]}, "nothing in the claim"),
]
SIGNERS: list[tuple[Callable[[Claims], str], str]] = [
    (by_nobody, "signed by none, which is not accepted"),
    (by_public_key, "signed by HS256, which is not accepted"),
    (by_another_key, "signature verification failed"),
    (lambda _: "no.token", "not enough segments"),
    (lambda claims: by_rsa(claims)[:-8] + "AAAAAAAA", "signature verification failed"),
]


def test_tokens_that_log_nobody_in(world: World) -> None:
    browser = world.browser()
    for extra, reason in CLAIMS:
        world.issuer.extra = {"groups": ["readers"]} | extra
        found = check_refused(world, browser, world.log_in(browser))
        assert reason in unescape(found), extra
    world.issuer.extra = {"groups": ["readers"]}
    for sign, reason in SIGNERS:
        world.issuer.sign = sign
        assert reason in check_refused(world, browser, world.log_in(browser)), sign
    world.issuer.sign = by_rsa
    answer = world.log_in(browser, "https://evil.example")
    assert answer.status_code == 200, "the same login, with nothing wrong"
    assert 'content="0; url=/ui"' in answer.text, "the next page is one of the pages"


def test_an_answer_that_this_browser_did_not_ask_for(world: World, clock: ManualClock) -> None:
    """A wrong state, or none; a forged cookie; the issuer's refusal; an answer that names another
    issuer (RFC 9207); the link of somebody else, who would be logged in here; and too late."""
    mine, other = world.browser(), world.browser()
    place = world.asked(other)
    reason = "has begun no such login"
    assert reason in check_refused(world, mine, mine.http.get(place))
    world.asked(mine)
    assert reason in check_refused(world, mine, mine.http.get(place))
    path = urlsplit(CALLBACK).path
    for change in ({"state": "wrong"}, {"state": ""}, {"state": "\u00e9"}):
        asked = dict(parse_qsl(urlsplit(world.asked(mine)).query)) | change
        answer = mine.http.get(f"{path}?{urlencode(asked)}")
        assert reason in check_refused(world, mine, answer)
    for kept in ("", "x", "AAAA", "A" * 400):
        place = world.asked(mine)
        mine.http.cookies.clear()
        mine.http.cookies.set(FLOW_COOKIE, kept)
        assert reason in check_refused(world, mine, mine.http.get(place)), kept
    mine.http.cookies.clear()
    state = dict(parse_qsl(urlsplit(world.asked(mine)).query))["state"]
    said_no = urlencode({"state": state, "error": "access_denied<b>"})
    answer = mine.http.get(f"{path}?{said_no}")
    assert "access_denied&lt;b&gt;" in check_refused(world, mine, answer)
    answer = mine.http.get(f"{world.asked(mine)}&iss=https%3A%2F%2Fanother.example")
    assert "not of the issuer" in check_refused(world, mine, answer)
    place = world.asked(mine)
    clock.advance(FLOW_TIME)
    assert "ten minutes" in check_refused(world, mine, mine.http.get(place))
    assert "/token" not in world.issuer.asked, "no code was used up"


def test_a_code_counts_once(world: World) -> None:
    """Even if the browser keeps its cookie against the server's will."""
    browser = world.browser()
    begun = world.asked(browser)
    kept = browser.http.cookies[FLOW_COOKIE]
    assert browser.http.get(begun).status_code == 200
    thief = world.browser()
    assert thief.http.get(begun).status_code == 401
    thief.http.cookies.set(FLOW_COOKIE, kept, path="/ui/login/oidc")
    answer = thief.http.get(begun)
    assert answer.status_code == 401
    assert "it works only once" in said(answer)
    assert thief.get("").status_code == 303


def test_an_issuer_that_names_itself(
    tmp_path: Path, clock: ManualClock, issuer: TestIssuer
) -> None:
    """An answer that names none is refused then. It has no address for logging out."""
    told = choose("what an issuer says of its name", (True, "true", 1))
    issuer.document = {"authorization_response_iss_parameter_supported": told}
    described = issuer.described()
    del described["end_session_endpoint"]
    document = (200, json.dumps(described).encode())
    issuer.answers["/.well-known/openid-configuration"] = lambda: document
    with made_world(tmp_path, clock, issuer) as world:
        browser = world.browser()
        answer = browser.http.get(re.sub("&iss=[^&]*", "", world.asked(browser)))
        assert "not of the issuer" in check_refused(world, browser, answer)
        assert world.log_in(browser).status_code == 200
        out = browser.post("/logout")
        assert out.headers["location"] == "/ui/login?notice=logged_out"
        assert browser.get("").status_code == 303


def test_keys_log_in_beside_it(world: World) -> None:
    browser = world.browser()
    pair = world.store.keys.create(Role.READER, name="etl")
    assert browser.log_in(pair).status_code == 303
    assert "etl" in browser.get("").text
    # A login by the issuer takes the place of the earlier one.
    earlier = browser.http.cookies[COOKIE]
    assert world.log_in(browser).status_code == 200
    assert world.store.sessions.find(earlier) is None
    assert "ada@example.org" in browser.get("").text


def test_nothing_is_asked_before_a_login(
    tmp_path: Path, clock: ManualClock, issuer: TestIssuer
) -> None:
    """The server starts, and keys log in, while the issuer is down. The login page says so."""
    issuer.answers["/.well-known/openid-configuration"] = lambda: (502, b"<html>")
    with made_world(tmp_path, clock, issuer) as world:
        browser = world.browser()
        assert browser.get("/login").status_code == 200
        assert issuer.asked == []
        answer = browser.get("/login/oidc?next=/ui/trash")
        reason = check_refused(world, browser, answer, 503)
        assert "The issuer of logins cannot be used at http://127" in reason
        assert "status 502, and no JSON object" in reason
        assert 'name="next" value="/ui/trash"' in answer.text
        pair = world.store.keys.create(Role.READER)
        assert browser.log_in(pair).status_code == 303
        # When it is up again, the next login works.
        del issuer.answers["/.well-known/openid-configuration"]
        assert world.log_in(world.browser()).status_code == 200


def test_answers_that_are_none(world: World) -> None:
    """The login page says that the issuer cannot be used; documents that lead away are refused."""
    browser = world.browser()
    changes: tuple[dict[str, Any], ...] = (
        {"issuer": "https://another.example"},
        {"issuer": None},
        {"token_endpoint": "http://elsewhere.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"end_session_endpoint": "http://elsewhere.example/"},
        {"token_endpoint": None},
    )
    for world.issuer.document in changes:
        check_refused(world, browser, browser.get("/login/oidc"), 503)
    world.issuer.document = {}  # remembered from here on
    for path in ("/.well-known/openid-configuration", "/token", "/keys"):
        for found in ((200, b"[]"), (200, b"{}"), (500, b'{"error": "server_error"}')):
            world.issuer.answers = {path: lambda: found}  # noqa: B023
            is_document = path.startswith("/.well-known")
            answer = browser.get("/login/oidc") if is_document else world.log_in(browser)
            assert "issuer" in check_refused(world, browser, answer, 503), (path, found)


def test_answers_that_no_request_waits_for(issuer: TestIssuer) -> None:
    """Of one, the parts arrive in time, and the whole does not."""
    for found in (
        (200, b"\xff"),
        (200, b"[" * 100_000),
        (200, b'{"a": "' + b"x" * ANSWER_BYTES_MAX + b'"}'),
        (302, b"https://elsewhere.example/"),
    ):
        issuer.answers = {"/keys": lambda: found}  # noqa: B023
        with pytest.raises(Failed) as caught:
            fetch_json(f"{issuer.url}/keys")
        assert caught.value.kind == "issuer_error", found[1][:30]
    issuer.answers = {}
    times = iter([0.0, TOTAL_SECONDS_MAX + 1.0])
    with pytest.raises(Failed, match="took more than 10 seconds"):
        fetch_json(f"{issuer.url}/keys", clock=lambda: next(times))
    # Where nobody listens, and a name that no host can have.
    for url in ("http://127.0.0.1:1/keys", f"https://{'a' * 70}.example/keys"):
        with pytest.raises(Failed) as caught:
            fetch_json(url)
        assert caught.value.kind == "issuer_error"


def test_the_document_is_remembered_for_a_while(issuer: TestIssuer, tmp_path: Path) -> None:
    """And the keys are fetched for each login."""
    options = oidc_options(settings_of(issuer, tmp_path))
    assert options is not None
    now = 0.0
    found = Issuer(options, conversations_max=1, clock=lambda: now)
    assert found.document().token == f"{issuer.url}/token"
    assert len(found.keys()) == 3
    now = DOCUMENT_SECONDS_MAX - 1.0
    assert len(found.keys()) == 3
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys", "/keys"]
    now = float(DOCUMENT_SECONDS_MAX)
    issuer.document = {"token_endpoint": "https://moved.example/token"}
    assert found.document().token == "https://moved.example/token"


def test_an_issuer_that_hangs_holds_up_nobody(
    tmp_path: Path, clock: ManualClock, issuer: TestIssuer
) -> None:
    """With four threads, one request waits for it. The next one is told, and pages are served."""
    arrived, end = Event(), Event()

    def hang() -> tuple[int, bytes]:
        arrived.set()
        end.wait()
        return 500, b""

    issuer.answers["/.well-known/openid-configuration"] = hang
    with made_world(tmp_path, clock, issuer, server_threads=4) as world:
        waiting, other = world.browser(), world.browser()
        thread = Thread(target=lambda: waiting.get("/login/oidc"))
        thread.start()
        arrived.wait()
        reason = check_refused(world, other, other.get("/login/oidc"), 503)
        assert "too many logins wait" in reason.lower()
        assert other.get("/login").status_code == 200
        end.set()
        thread.join()


@pytest.mark.parametrize("methods", [["client_secret_post"], ["client_secret_basic", "x"]])
def test_how_the_server_names_itself(
    world: World, methods: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With a wrong secret, nobody is logged in. The log has no secret."""
    world.issuer.document = {"token_endpoint_auth_methods_supported": methods}
    world.issuer.secret = "changed"
    browser = world.browser()
    place = world.asked(browser)
    assert "invalid_client" in check_refused(world, browser, browser.http.get(place), 503)
    assert "issuer_error: the issuer answered" in caplog.text
    assert dict(parse_qsl(urlsplit(place).query))["code"] not in caplog.text
    world.issuer.secret = CLIENT_SECRET
    assert CLIENT_SECRET not in caplog.text
    assert world.log_in(browser).status_code == 200


def test_a_public_client(tmp_path: Path, clock: ManualClock, issuer: TestIssuer) -> None:
    issuer.secret = None
    with made_world(tmp_path, clock, issuer, oidc_client_secret_file=None) as world:
        assert world.log_in(world.browser()).status_code == 200


def test_the_header_host_leads_nowhere_else(
    tmp_path: Path, clock: ManualClock, issuer: TestIssuer
) -> None:
    """Without the setting, only a loopback address counts."""
    with made_world(tmp_path, clock, issuer, oidc_redirect_url=None) as world:
        browser = world.browser()
        for host in ("127.0.0.1:8000", "localhost", "[::1]:9"):
            answer = browser.get("/login/oidc", headers={"Host": host})
            asked = parse_qs(urlsplit(answer.headers["location"]).query)
            assert asked["redirect_uri"] == [f"http://{host}/ui/login/oidc/callback"]
        for host in ("evil.example", "127.0.0.1:8000@evil.example", "localhost:8000/x?", ""):
            answer = browser.get("/login/oidc", headers={"Host": host})
            reason = check_refused(world, browser, answer, 500)
            assert "EBBTIDE_OIDC_REDIRECT_URL" in reason, host


def test_a_person_is_one_key(world: World) -> None:
    """However often the person logs in, and whatever their name is by then."""
    world.logged_in(groups=["readers"], email="ada@example.org")
    world.logged_in(groups=["writers"], email="ada@example.com")
    world.logged_in(groups=["writers"], sub="other", email=None)
    world.logged_in(groups=["writers"], sub="third", email="x\n")
    # `test_roles.py` has each way to say that an address is proven.
    for sub, is_proven in (("4", "no"), ("5", "True")):
        mail = {"email": f"{sub}@example.org", "email_verified": is_proven}
        world.logged_in(groups=["writers"], sub=sub, **mail)
    keys = world.store.keys.list()
    named = {"ada@example.com", "other", "third", "4", "5@example.org"}
    assert {key.name for key in keys} == named
    assert len(keys) == len(named)
    assert {key.role for key in keys} == {Role.NONE}


def test_the_end_of_a_session(world: World, clock: ManualClock) -> None:
    """By time, which is shorter than that of a key, and by revoking the person's key."""
    browser = world.logged_in(groups=["readers"])
    clock.advance(timedelta(hours=4) - timedelta(seconds=1))
    assert browser.get("").status_code == 200
    clock.advance(timedelta(seconds=1))
    assert browser.get("").status_code == 303

    again = world.logged_in(groups=["readers"])
    (key,) = world.store.keys.list()
    world.store.keys.revoke(key.access_key_id)
    assert again.get("").status_code == 303
    browser = world.browser()
    refused = world.log_in(browser)
    assert (refused.status_code, browser.get("").status_code) == (401, 303)
    assert "An admin revoked" in said(refused)


def test_without_its_issuer_a_session_ends(
    tmp_path: Path, clock: ManualClock, issuer: TestIssuer
) -> None:
    """And there are no pages for logins by an issuer."""
    with made_world(tmp_path, clock, issuer) as world:
        browser = world.logged_in(groups=["data admins"])
        token = browser.http.cookies[COOKIE]
        assert world.store.sessions.find(token) is not None
    changed = settings_of(issuer, tmp_path, oidc_issuer=None)
    with (
        Store.open(tmp_path / "store", settings=changed, clock=clock) as store,
        browsing(store) as browsers,
    ):
        assert store.sessions.find(token) is None
        browser = browsers(None)
        assert "Log in at" not in browser.get("/login").text
        for place in ("/login/oidc", "/login/oidc/callback"):
            assert browser.get(place).status_code == 404


def test_logging_out_here_and_there(world: World) -> None:
    browser = world.logged_in(groups=["readers"])
    token = browser.http.cookies[COOKIE]
    answer = browser.post("/logout")
    assert answer.status_code == 200
    assert world.store.sessions.find(token) is None
    assert COOKIE not in browser.http.cookies
    found = re.search(r'content="0; url=([^"]*)"', answer.text)
    assert found is not None
    url = found[1].replace("&amp;", "&")
    assert url.startswith(f"{world.issuer.url}/logout?")
    back = httpx.get(url, verify=False)
    assert back.headers["location"] == "https://test/ui/login?notice=logged_out"
    (asked,) = world.issuer.logged_out
    assert asked["client_id"] == CLIENT_ID and asked["id_token_hint"].count(".") == 2


def test_who_writes_to_the_database_gains_nothing(world: World) -> None:
    """The roles of a login are sealed for its own session."""
    browser = world.logged_in(groups=["readers"])
    admin = world.logged_in(groups=["data admins"], sub="admin")
    with world.store.metadata.transaction() as tx:
        rows = {row.access_key_id: row for row in tx.execute(sa.select(sessions)).all()}
        mine = world.store.sessions.find(browser.http.cookies[COOKIE])
        theirs = world.store.sessions.find(admin.http.cookies[COOKIE])
        assert mine is not None and theirs is not None
        tx.execute(
            sa.update(sessions)
            .where(sessions.c.access_key_id == mine.key.access_key_id)
            .values(seal=rows[theirs.key.access_key_id].seal)
        )
    assert browser.get("").status_code == 303
