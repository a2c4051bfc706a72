"""Authentication: finds the access key of a request. Not for: what a role allows (`routing`).

A request names its key by HTTP Basic, by the token of a login as a bearer token, or by the cookie
of a login. Headers say which site a browser's request comes from.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Denied, EbbtideError
from ebbtide.server.errors import answer_of
from ebbtide.store.access.access_keys import AccessKey, AccessKeys
from ebbtide.store.access.sessions import Session, Sessions

PRINCIPAL = "ebbtide.principal"
"""The entry of a request's scope that holds its access key."""


COOKIE = "internal_auth_session"
"""The cookie with the token of a login. lakeFS's specification has this name."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Authentication:
    """Refuses every request without a valid access key, except on public paths.

    It runs before the routes, so that unknown paths and methods are refused in the same way.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: AccessKeys,
        sessions: Sessions,
        is_public: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._keys = keys
        self._sessions = sessions
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Finds the request's key and forwards the request."""
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            try:
                scope[PRINCIPAL] = await run_in_threadpool(
                    identify, scope, self._keys, self._sessions
                )
            except EbbtideError as error:
                await answer_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def identify(scope: Scope, keys: AccessKeys, sessions: Sessions) -> AccessKey:
    """Returns the key of a request. A cookie counts only without a header. For threads.

    Raises Denied `key_invalid` or `request_forged`.
    """
    request = HTTPConnection(scope)
    header = request.headers.get("authorization")
    cookie = request.cookies.get(COOKIE) if header is None else None
    if cookie is not None:
        # A browser sends cookies by itself, also if a page of another site made the request.
        if scope["method"] not in _SAFE_METHODS and is_foreign(request.headers):
            raise Denied("request_forged", "a page of another site sent the request")
        return _key_of_login(cookie, sessions)
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        return _key_of_login(token.strip(), sessions)
    return keys.authenticate(*parse_basic(header))


def _key_of_login(token: str, sessions: Sessions) -> AccessKey:
    session = sessions.find(token)
    if session is None:
        raise Denied("key_invalid", "the login does not exist, or has ended: log in again")
    return session.key


def principal_of(scope: Scope) -> AccessKey:
    """Returns the access key of a request. Raises Denied `key_invalid`."""
    found = scope.get(PRINCIPAL)
    if not isinstance(found, AccessKey):
        raise Denied("key_invalid", "this needs an access key")
    return found


def parse_basic(header: str | None) -> tuple[str, str]:
    """Returns the id and the secret of an `Authorization` header. Raises Denied `key_invalid`."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        raise Denied("key_invalid", "this needs an access key, by HTTP Basic, or a login")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Denied("key_invalid", "the header Authorization cannot be understood") from None
    access_key_id, colon, secret = text.partition(":")
    if not colon or "\0" in access_key_id:
        raise Denied("key_invalid", "the header Authorization cannot be understood")
    return access_key_id, secret


def set_cookie(
    request: Request, response: Response, session: Session, *, name: str, path: str
) -> None:
    """Sets a cookie with the token of a session.

    Scripts cannot read the cookie, and requests from other sites do not contain it. The browser
    sends it only to paths below `path`. If the request came over TLS, the browser never sends it
    over plain HTTP.
    """
    response.set_cookie(
        name,
        session.token,
        path=path,
        expires=session.expires_at,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def is_foreign(headers: Headers) -> bool:
    """Whether the headers `Sec-Fetch-Site` and `Origin` say that a page of another site sent the
    request. Programs that are no browsers send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_own_site = site in (None, "same-origin")
    is_own_origin = origin is None or _host_of(origin) == headers.get("host", "").lower()
    return not (is_own_site and is_own_origin)


def names_no_origin(headers: Headers) -> bool:
    """Whether the request has neither of the two headers."""
    return headers.get("sec-fetch-site") is None and headers.get("origin") is None


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
