"""Logins over the API: what a token opens. How long it lasts is the store's."""

from __future__ import annotations

import lakefs_sdk
from lakefs_sdk.client import LakeFSClient

from ebbtide.server.auth import COOKIE
from tests.server.test_client import failed
from tests.support.collected import done, refused
from tests.support.server import Server


def pair_of(server: Server, role: str) -> dict[str, str]:
    key = server.keys[role]
    return {"access_key_id": key.access_key_id, "secret_access_key": key.secret}


def test_a_login_by_lakefs_own_client(server: Server) -> None:
    """As web tools log in: first with nothing, then with a token that has the key's role."""
    nobody = LakeFSClient(lakefs_sdk.Configuration(host=server.url))
    token = nobody.auth_api.login(lakefs_sdk.LoginInformation(**pair_of(server, "writer")))
    assert token.token_expiration is not None
    known = LakeFSClient(lakefs_sdk.Configuration(host=server.url, access_token=token.token))
    user = known.auth_api.get_current_user().user
    assert (user.id, user.friendly_name) == (server.keys["writer"].access_key_id, "writer")
    assert user.creation_date > 0
    asked = lakefs_sdk.RepositoryCreation(name="abc", storage_namespace="local://x")
    failed(403, lambda: known.repositories_api.create_repository(asked), "role_missing")


def test_a_cookie_opens_what_its_own_pages_ask_for(server: Server) -> None:
    with server.http(None) as client:
        answer = client.post("/auth/login", json=pair_of(server, "admin"))
        token = answer.json()["token"]
        assert answer.headers["cache-control"] == "no-store"
        name, *marks = answer.headers["set-cookie"].split("; ")
        assert name == f"{COOKIE}={token}"
        assert {"HttpOnly", "Path=/api/v1", "SameSite=strict"} <= set(marks)
        assert token not in server.log
        assert client.get("/user").json()["user"]["id"] == server.keys["admin"].access_key_id
        for name, value in (
            ("Origin", "https://elsewhere"),
            ("Sec-Fetch-Site", "cross-site"),
        ):
            answer = client.post("/signing-keys/rotate", headers={name: value})
            refused(answer, 403, "request_forged")
        own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        for headers in (None, own):
            done(client.post("/signing-keys/rotate", headers=headers))
        # A header counts, whatever the cookie.
        wrong = client.get("/user", headers={"Authorization": "Bearer wrong"})
        refused(wrong, 401, "key_invalid")


def test_wrong_keys_and_secrets_are_refused_alike(server: Server) -> None:
    pair = pair_of(server, "reader")
    with server.http(None) as client:
        answers = [
            client.post("/auth/login", json=pair | change)
            for change in ({"access_key_id": "EBBTNOBODY"}, {"secret_access_key": "wrong"})
        ]
        assert [answer.status_code for answer in answers] == [401, 401]
        assert answers[0].json() == answers[1].json()
        assert "set-cookie" not in answers[0].headers
        for body in ({}, {"access_key_id": "x"}, pair | {"access_key_id": "a\0b"}):
            answer = client.post("/auth/login", json=body)
            assert answer.status_code == 400
            assert pair["secret_access_key"] not in answer.text
