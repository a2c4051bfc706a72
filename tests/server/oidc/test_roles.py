"""The roles that a login by an issuer gives: which claims give them, and what they open."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.server.auth import COOKIE as API_COOKIE
from ebbtide.server.oidc.roles import GivenRoles, RoleRules
from ebbtide.server.pages.guarding import COOKIE
from ebbtide.store.access.keys import Role
from ebbtide.store.embedded import Store
from tests.server.oidc.conftest import World
from tests.server.pages.conftest import Browser


@pytest.mark.parametrize(
    ("text", "values", "given"),
    [
        ("a=admin,b=reader", ["b", "a", "c"], GivenRoles(Role.ADMIN)),
        ("a=admin b=reader", ["b"], GivenRoles(Role.READER)),
        ("a=admin\nb=reader", ["A"], None),
        ("a=admin", [], None),
        ("a=none", ["a"], GivenRoles()),
        ("a=lake:reader", ["a"], GivenRoles(Role.NONE, {"lake": Role.READER})),
        (
            "a=lake:reader, a=lake:writer a=sea:reader b=lake:admin a=reader",
            ["a"],
            GivenRoles(Role.READER, {"lake": Role.WRITER, "sea": Role.READER}),
        ),
        ("'cn=a, ou=b'=writer", ["cn=a, ou=b"], GivenRoles(Role.WRITER)),
        ('"it\'s"=writer', ["it's"], GivenRoles(Role.WRITER)),
        ("CORP\\a=writer", ["CORP\\a"], GivenRoles(Role.WRITER)),
        ("#a=writer", ["#a"], GivenRoles(Role.WRITER)),
        ("urn:x:a=writer", ["urn:x:a"], GivenRoles(Role.WRITER)),
    ],
)
def test_rules(text: str, values: list[str], given: GivenRoles | None) -> None:
    assert RoleRules.parse("groups", text).given_by({"groups": values}) == given


@pytest.mark.parametrize("unproven", [False, "False", "no", 1, None, "", [True], {"a": True}])
def test_an_address_that_the_issuer_does_not_vouch_for_gives_no_role(unproven: object) -> None:
    rules = RoleRules.parse("email", "boss@example.org=admin")
    claims: dict[str, Any] = {"email": "boss@example.org"}
    for proven in (claims, *(claims | {"email_verified": each} for each in ("True", "true", True))):
        assert rules.given_by(proven) == GivenRoles(Role.ADMIN)
    assert rules.given_by(claims | {"email_verified": unproven}) is None


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("groups", {"groups": ["a"]}),
        ("groups", {"groups": "a"}),
        ("realm.roles", {"realm": {"roles": ["b", "a"]}}),
        ("https://x.example/groups", {"https://x.example/groups": ["a"]}),
    ],
)
def test_where_a_claim_is(claim: str, claims: dict[str, Any]) -> None:
    rules = RoleRules.parse(claim, "a=writer")
    assert rules.given_by(claims) == GivenRoles(Role.WRITER)
    assert rules.given_by({"realm": "a", "other": ["a"]}) is None
    assert rules.given_by({"realm": {"roles": {"a": 1}}}) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nobody could log in"),
        (" , ", "nobody could log in"),
        ("admins", "'admins' is no rule"),
        ("=admin", "is no rule"),
        ("a=owner", "there is no role 'owner'"),
        ("data admins=admin", "'data' is no rule"),
        ("cn=admins,ou=b=admin", "there is no role 'admins'"),
        ("a=lake:none", "gives nothing"),
        ("a=La ke:reader", "there is no role 'La'"),
        ("a=LAKE:reader", "no name for a repository"),
        ("a=:reader", "no name for a repository"),
        ("'a=reader", "a quote is not closed"),
    ],
)
def test_texts_that_are_no_rules(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        RoleRules.parse("groups", text)
    assert reason in caught.value.message


def lake_of(store: Store, name: str = "lake") -> str:
    """A new repository with an object; its id."""
    made = store.create_repository(name, storage_url=f"memory:{new_id()}")
    return made.info.repository_id


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


def test_a_reader_reads_and_an_admin_makes_repositories(world: World) -> None:
    lake_of(world.store)
    browser = world.logged_in(groups=["readers"])
    assert can_read(browser, "lake") and not can_write(browser, "lake")
    assert browser.post("", name="another").status_code == 403
    browser = world.logged_in(groups=["data admins", "readers"])
    assert browser.post("", name="another").status_code == 303
    assert can_write(browser, "another")


def test_a_role_in_one_repository(world: World) -> None:
    """And none in another, nor in a later one of the same name before the next login."""
    early = world.logged_in(groups=["lake"])
    for name in ("lake", "sea"):
        lake_of(world.store, name)
    browser = world.logged_in(groups=["lake"])
    assert can_write(browser, "lake")
    assert not can_read(browser, "sea") and not can_read(early, "lake")
    shown = browser.get("").text
    assert "/repositories/lake" in shown and "/repositories/sea" not in shown
    assert browser.get("/repositories/lake/purges").status_code == 403

    world.store.catalog.delete("lake")
    lake_of(world.store)
    assert not can_read(browser, "lake")
    assert can_write(world.logged_in(groups=["lake"]), "lake")


def test_grants_count_besides(world: World) -> None:
    """An admin can give a person more on the command line; the higher role counts."""
    for name in ("lake", "sea"):
        lake_of(world.store, name)
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


def test_what_a_person_did_is_under_their_name(world: World) -> None:
    lake_of(world.store)
    browser = world.logged_in(groups=["lake"])
    place, form = "/repositories/lake/files", {"branch": "main", "prefix": ""}
    sent = browser.http.post(
        f"/ui{place}/upload",
        data={"form_token": browser.token(), **form},
        files={"content": ("a", b"new")},
        headers={"Origin": "http://test"},
    )
    assert sent.status_code == 303, sent.text
    assert browser.post(f"{place}/commit", message="m", **form).status_code == 303
    commit = world.store.repository("lake").commits.get("main")
    assert (commit.message, commit.committer) == ("m", "ada@example.org")


def test_the_same_login_at_the_api(world: World) -> None:
    """A token of the pages is a token of the API, with the same roles and no more."""
    lake_of(world.store)
    lake_of(world.store, "sea")
    token = world.logged_in(groups=["lake"]).http.cookies[COOKIE]
    client = world.browser().http
    for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": f"{API_COOKIE}={token}"}):
        statuses = [
            client.get(f"/api/v1/repositories/{name}/branches", headers=headers).status_code
            for name in ("lake", "sea")
        ]
        assert statuses == [200, 403]
        made = client.post(
            "/api/v1/repositories",
            json={"name": "abc", "storage_namespace": "local://x"},
            headers=headers,
        )
        assert made.status_code == 403
