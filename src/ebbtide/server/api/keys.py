"""Logins with an access key, the rotation of signing keys, and the key of the request.

A login gives a session, which later requests name by its token.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Request, Response
from pydantic import Field

from ebbtide.server.api.base import Text, Wire, seconds_of
from ebbtide.server.api.routes import PREFIX, Routes
from ebbtide.server.auth import COOKIE, set_cookie
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.access.signed_tokens import Rotation


class LoginInformation(Wire):
    """An access key and its secret."""

    access_key_id: Text
    secret_access_key: Text = Field(repr=False)


class AuthenticationToken(Wire):
    """The token of a login, and the second at which the login ends."""

    token: str = Field(repr=False)
    token_expiration: int


class RotationRequest(Wire):
    """A request for a new signing key. Without `at_once`, an older key stays valid for as long as
    any token that it signed can be used. With `at_once`, all older keys are retired."""

    at_once: bool = False


class UserAnswer(Wire):
    """The access key of the request, in the place of a user."""

    id: str
    creation_date: int
    friendly_name: str


class CurrentUser(Wire):
    """The sender of the request."""

    user: UserAnswer


routes = Routes("keys")


@routes.add("POST", "/auth/login", None)
def log_in(
    request: Request, response: Response, asked: LoginInformation, served: ServedDep
) -> AuthenticationToken:
    """Starts a session. Its token is accepted as a bearer token and as a cookie, until the session
    ends or the key is revoked. The browser sends the cookie only to the routes of the API."""
    session = served.store.sessions.start(asked.access_key_id, asked.secret_access_key)
    set_cookie(request, response, session, name=COOKIE, path=PREFIX)
    response.headers["Cache-Control"] = "no-store"
    return AuthenticationToken(token=session.token, token_expiration=seconds_of(session.expires_at))


@routes.add("GET", "/user", Role.NONE)
def get_current_user(served: ServedDep) -> CurrentUser:
    """Returns the access key of the request."""
    key = served.key
    return CurrentUser(
        user=UserAnswer(
            id=key.access_key_id,
            creation_date=seconds_of(key.created_at),
            friendly_name=served.committer,
        )
    )


@routes.add("POST", "/signing-keys/rotate", Role.ADMIN)
def rotate_signing_keys(
    served: ServedDep, asked: Annotated[RotationRequest | None, Body()] = None
) -> Rotation:
    """Makes a new key that signs from now on, and retires older keys."""
    return served.store.signing_keys.rotate(at_once=asked is not None and asked.at_once)
