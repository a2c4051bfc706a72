"""Settings of an issuer: those that are refused before the server listens, and the roles that a
login gives: which claims give them, and what they open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, InvalidInput
from ebbtide.ids import new_id
from ebbtide.server.auth import COOKIE as API_COOKIE
from ebbtide.server.oidc.options import GivenRoles, RoleRules, oidc_options
from ebbtide.server.pages.browser import COOKIE
from ebbtide.settings import Settings, is_loopback_name
from ebbtide.store.access.access_keys import Role
from tests.server.oidc.conftest import World, settings_of
from tests.server.pages.conftest import Browser
from tests.support.issuer import CLIENT_SECRET, TestIssuer
from tests.support.server import new_server


def test_rules() -> None:
    of_lake = GivenRoles(Role.READER, {"lake": Role.WRITER, "sea": Role.READER})
    cases: tuple[tuple[str, list[str], GivenRoles | None], ...] = (
        ("a=admin,b=reader", ["b", "a", "c"], GivenRoles(Role.ADMIN)),
        ("a=admin b=reader", ["b"], GivenRoles(Role.READER)),
        ("a=admin\nb=reader", ["A"], None),
        ("a=none", ["a"], GivenRoles()),
        ("a=lake:reader, a=lake:writer a=sea:reader b=lake:admin a=reader", ["a"], of_lake),
        ("'cn=a, ou=b'=writer", ["cn=a, ou=b"], GivenRoles(Role.WRITER)),
        ('"it\'s"=writer', ["it's"], GivenRoles(Role.WRITER)),
        ("CORP\\a=writer", ["CORP\\a"], GivenRoles(Role.WRITER)),
        ("#a=writer", ["#a"], GivenRoles(Role.WRITER)),
        ("urn:x:a=writer", ["urn:x:a"], GivenRoles(Role.WRITER)),
    )
    for text, values, given in cases:
        assert RoleRules.parse("groups", text).given_by({"groups": values}) == given, text


@pytest.mark.parametrize("unproven", [False, "False", "no", 1, None, "", [True], {"a": True}])
def test_an_address_that_the_issuer_does_not_vouch_for_gives_no_role(unproven: object) -> None:
    rules = RoleRules.parse("email", "boss@example.org=admin")
    claims: dict[str, Any] = {"email": "boss@example.org"}
    for proven in (claims, *(claims | {"email_verified": each} for each in ("True", "true", True))):
        assert rules.given_by(proven) == GivenRoles(Role.ADMIN)
    assert rules.given_by(claims | {"email_verified": unproven}) is None


def test_where_a_claim_is() -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("groups", {"groups": "a"}),
        ("realm.roles", {"realm": {"roles": ["b", "a"]}}),
        ("https://x.example/groups", {"https://x.example/groups": ["a"]}),
    )
    for claim, claims in cases:
        rules = RoleRules.parse(claim, "a=writer")
        assert rules.given_by(claims) == GivenRoles(Role.WRITER), claim
        assert rules.given_by({"realm": "a", "other": ["a"]}) is None
        assert rules.given_by({"realm": {"roles": {"a": 1}}}) is None


def test_texts_that_are_no_rules() -> None:
    for text, reason in (
        ("", "nobody could log in"),
        ("admins", "'admins' is no rule"),
        ("=admin", "is no rule"),
        ("a=owner", "there is no role 'owner'"),
        ("data admins=admin", "'data' is no rule"),
        ("a=lake:none", "gives nothing"),
        ("a=La ke:reader", "there is no role 'La'"),
        ("a=LAKE:reader", "no name for a repository"),
        ("'a=reader", "a quote is not closed"),
    ):
        with pytest.raises(InvalidInput) as caught:
            RoleRules.parse("groups", text)
        assert reason in caught.value.message, text


def can_read(browser: Browser, name: str) -> bool:
    status = browser.get(f"/repositories/{name}").status_code
    assert status in (200, 403)
    return status == 200


def can_write(browser: Browser, name: str) -> bool:
    """Whether a branch can be made."""
    status = browser.post(
        f"/repositories/{name}/refs", kind="branch", name=f"b-{new_id()}", source="main"
    ).status_code
    assert status in (303, 403)
    return status == 303


def test_roles_of_all_repositories_and_of_one(world: World) -> None:
    """None in another, nor in a later one of the same name before the next login."""
    early = world.logged_in(groups=["lake"])
    browser = world.logged_in(groups=["data admins", "readers"])
    for name in ("lake", "sea"):
        assert browser.post("", name=name).status_code == 303
        assert can_write(browser, name)
    browser = world.logged_in(groups=["readers"])
    assert can_read(browser, "lake") and not can_write(browser, "lake")
    assert browser.post("", name="another").status_code == 403
    browser = world.logged_in(groups=["lake"])
    assert can_write(browser, "lake")
    assert not can_read(browser, "sea") and not can_read(early, "lake")
    shown = browser.get("").text
    assert "/repositories/lake" in shown and "/repositories/sea" not in shown
    assert browser.get("/repositories/lake/purges").status_code == 403

    world.store.catalog.delete("lake")
    world.store.create_repository("lake", storage_url=f"memory:{new_id()}")
    assert not can_read(browser, "lake")
    assert can_write(world.logged_in(groups=["lake"]), "lake")


def test_grants_count_besides(world: World) -> None:
    """An admin can give a person more on the command line; the higher role counts."""
    for name in ("lake", "sea"):
        world.store.create_repository(name)
    browser = world.logged_in(groups=["lake", "staff"])
    (key,) = world.store.keys.list()
    world.store.grants.add(key.access_key_id, "lake", Role.READER)
    world.store.grants.add(key.access_key_id, "sea", Role.WRITER)
    assert can_write(browser, "lake") and can_write(browser, "sea")
    # What the issuer no longer gives is gone with the next login, and grants stay.
    later = world.logged_in(groups=["staff"])
    assert can_read(later, "lake") and not can_write(later, "lake")
    assert can_write(later, "sea")
    # The earlier session has the roles of its login until its end.
    assert can_write(browser, "lake")


def test_what_a_person_did(world: World) -> None:
    """It is under their name. The token of the pages is one of the API, with the same roles."""
    lake, _ = (world.store.create_repository(name) for name in ("lake", "sea"))
    lake.objects.put("main", "a", b"new")
    browser = world.logged_in(groups=["lake"])
    form = {"branch": "main", "prefix": "", "message": "m"}
    assert browser.post("/repositories/lake/files/commit", **form).status_code == 303
    commit = lake.commits.get("main")
    assert (commit.message, commit.committer) == ("m", "ada@example.org")

    token, client = browser.http.cookies[COOKIE], world.browser().http
    for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": f"{API_COOKIE}={token}"}):
        statuses = [
            client.get(f"/api/v1/repositories/{name}/branches", headers=headers).status_code
            for name in ("lake", "sea")
        ]
        assert statuses == [200, 403]
        asked = {"name": "abc", "storage_namespace": "local://x"}
        made = client.post("/api/v1/repositories", json=asked, headers=headers)
        assert made.status_code == 403


ISSUER = TestIssuer("https://login.example.org/realms/a")


def test_options(tmp_path: Path) -> None:
    found = oidc_options(settings_of(ISSUER, tmp_path, oidc_scopes=" openid  groups "))
    assert found is not None
    assert found.client_secret == CLIENT_SECRET and found.scopes == "openid groups"
    assert found.host == "login.example.org"
    assert CLIENT_SECRET not in repr(found)
    assert oidc_options(Settings()) is None


def test_settings_that_are_refused(tmp_path: Path) -> None:
    cases: tuple[tuple[str, Any, str], ...] = (
        ("client_id", None, "EBBTIDE_OIDC_CLIENT_ID: is not set"),
        ("roles", "", "EBBTIDE_OIDC_ROLES: nobody could log in"),
        ("scopes", "profile", "EBBTIDE_OIDC_SCOPES: lacks 'openid'"),
        ("client_secret_file", Path("/none/such"), "CLIENT_SECRET_FILE: /none/such cannot"),
        ("client_secret_file", Path("/dev/null"), "/dev/null is empty"),
        ("redirect_url", "https://a.example/x/ui/login/oidc/callback", "write https://HOST"),
        ("redirect_url", "https://a.example/ui/login/oidc/callback?x", "write https://HOST"),
        ("redirect_url", "http://a.example/ui/login/oidc/callback", "only for a loopback"),
        ("issuer", "http://login.example.org", "only for a loopback"),
        ("issuer", "ftp://login.example.org", "write an address https://"),
        ("issuer", "https://user@login.example.org", "write an address https://"),
    )
    for name, value, reason in cases:
        with pytest.raises(InvalidInput) as caught:
            oidc_options(settings_of(ISSUER, tmp_path, **{f"oidc_{name}": value}))
        assert caught.value.kind == "invalid_setting"
        assert reason in caught.value.message


def test_loopback_names() -> None:
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"):
        assert is_loopback_name(host), host
    for other in ("0.0.0.0", "localhost.example.org", "127.0.0.1.example.org", "", None):
        assert not is_loopback_name(other), other


def test_the_server_says_so_before_it_starts(tmp_path: Path) -> None:
    server = new_server(tmp_path / "store", EBBTIDE_OIDC_ISSUER="https://login.example.org")
    assert server.command("init", str(server.directory)).returncode == 0
    for options in ((), ("--processes", "2")):
        done = server.command("serve", "--port", "0", *options)
        assert done.returncode == ExitCode.USAGE
        assert "EBBTIDE_OIDC_CLIENT_ID: is not set" in done.stderr
