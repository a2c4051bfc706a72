"""Who asks: the access key of a request, by HTTP Basic. Not for: what a role allows (`routing`)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Denied, EbbtideError
from ebbtide.server.errors import answer_of
from ebbtide.store.keys import AccessKey, AccessKeys

PRINCIPAL = "ebbtide.principal"
"""Where a request's scope has its access key."""


class Authentication:
    """Refuses every request without the key of somebody, but for paths that are open to all.

    It stands before the routes, so that what has no route, or no method, is refused alike.
    """

    def __init__(self, app: ASGIApp, *, keys: AccessKeys, is_public: Callable[[str], bool]) -> None:
        self._app = app
        self._keys = keys
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find who asks, and pass the request on."""
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            try:
                pair = parse_basic(Headers(scope=scope).get("authorization"))
                scope[PRINCIPAL] = await run_in_threadpool(self._keys.authenticate, *pair)
            except EbbtideError as error:
                await answer_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def principal_of(scope: Scope) -> AccessKey:
    """The key that a request came with. Raises Denied `key_invalid`."""
    found = scope.get(PRINCIPAL)
    if not isinstance(found, AccessKey):
        raise Denied("key_invalid", "this needs an access key")
    return found


def parse_basic(header: str | None) -> tuple[str, str]:
    """Id and secret of a header `Authorization`. Raises Denied `key_invalid`."""
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
