"""Gives each request an id, which its answer and its lines in the log have."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.ids import new_id
from ebbtide.logs import bind_request

HEADER: Final = "X-Request-Id"
_ALLOWED: Final = re.compile(rb"[A-Za-z0-9._:=+/-]{1,128}")


class RequestIds:
    """Takes the id from the header `X-Request-Id` of the request. Without one, or if it has other
    characters than ids have, makes a new one. The answer has the id in the same header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        is_id = len(given) == 1 and _ALLOWED.fullmatch(given[0])
        request_id = given[0].decode() if is_id else new_id()
        # Each request has a context of its own, which ends with it.
        bind_request(request_id)

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, named_send)
