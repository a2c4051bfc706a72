"""Authentication: finds the access key of a request (HTTP Basic). Not for: what a role allows
(`routing`)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Denied, EbbtideError
from ebbtide.server.errors import answer_of
from ebbtide.store.access.keys import AccessKey, AccessKeys

PRINCIPAL = "ebbtide.principal"
"""The entry of a request's scope that holds its access key."""


class Authentication:
    """Refuses every request without a valid access key, except on public paths.

    It runs before the routes, so that unknown paths and methods are refused in the same way.
    """

    def __init__(self, app: ASGIApp, *, keys: AccessKeys, is_public: Callable[[str], bool]) -> None:
        self._app = app
        self._keys = keys
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Finds the request's key and forwards the request."""
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            try:
                pair = parse_basic(Headers(scope=scope).get("authorization"))
                scope[PRINCIPAL] = await run_in_threadpool(self._keys.authenticate, *pair)
            except EbbtideError as error:
                await answer_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


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
        raise Denied("key_invalid", "this needs an access key, by HTTP Basic")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Denied("key_invalid", "the header Authorization cannot be understood") from None
    access_key_id, colon, secret = text.partition(":")
    if not colon or "\0" in access_key_id:
        raise Denied("key_invalid", "the header Authorization cannot be understood")
    return access_key_id, secret
