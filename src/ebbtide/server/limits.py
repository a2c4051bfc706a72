"""How much one request may bring along. Not for: how it is worked on meanwhile (`streaming`)."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.documents import unique_keys
from ebbtide.errors import InvalidInput
from ebbtide.server.errors import answer_of


class HeaderLimit:
    """Refuses requests whose line and headers are too long. The parser stops at the same size, but
    for what came in one piece."""

    def __init__(self, app: ASGIApp, *, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if size > self._bytes_max:
                text = f"the request's line and headers have more than {self._bytes_max} bytes"
                await answer_of(InvalidInput("headers_too_large", text))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class StrictRequest(Request):
    """A request in whose JSON body each key of an object stands once."""

    async def json(self) -> Any:  # whatever JSON holds
        """Returns the body's value. Raises InvalidInput `invalid_argument`, JSONDecodeError."""
        hook = unique_keys("invalid_argument", "the request's body")
        return json.loads(await self.body(), object_pairs_hook=hook)


def limited(request: Request, bytes_max: int) -> Request:
    """The same request, whose body ends with InvalidInput `too_large` above so many bytes."""
    declared = declared_bytes(request)
    if declared is not None and declared > bytes_max:
        raise too_large(bytes_max)
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > bytes_max:
            raise too_large(bytes_max)
        return message

    return StrictRequest(request.scope, receive)


def declared_bytes(request: Request) -> int | None:
    """How long the body is going to be, where the client says so."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def too_large(bytes_max: int) -> InvalidInput:
    """The error for a body above a limit."""
    return InvalidInput("too_large", f"the request has more than {bytes_max} bytes")
