"""Logins: a session for an access key and its secret, which later requests name by its token."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import Field

from ebbtide.server.api.base import Text, Wire, seconds_of
from ebbtide.server.api.routing import PREFIX, Routes
from ebbtide.server.auth import COOKIE, set_cookie
from ebbtide.server.serving import ServedDep


class LoginInformation(Wire):
    """An access key and its secret."""

    access_key_id: Text
    secret_access_key: Text = Field(repr=False)


class AuthenticationToken(Wire):
    """The token of a login, and the second at which the login ends."""

    token: str = Field(repr=False)
    token_expiration: int


routes = Routes("logins")


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
