"""Limits on the size of one request. Not for: how a body is stored while it arrives
(`streaming`)."""

from __future__ import annotations

import json
import sys
from typing import Any

import h11
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ebbtide.errors import InvalidInput
from ebbtide.server.errors import answer_of
from ebbtide.strict_json import unique_keys


class HeaderLimit:
    """Refuses a request whose line and headers are too long (`headers_too_large`). The HTTP parser
    applies the same limit (`Parser`), but not to a request head that arrives in one piece."""

    def __init__(self, app: ASGIApp, *, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or answers with the error."""
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if size > self._bytes_max:
                text = f"the request's line and headers have more than {self._bytes_max} bytes"
                await answer_of(InvalidInput("headers_too_large", text))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Parser(H11Protocol):
    """Reads requests. What is no HTTP, or has too long a head, gets an error of the usual form."""

    def send_400_response(self, msg: str) -> None:
        """Answers a request that could not be read, and closes the connection."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            answer = answer_of(
                InvalidInput("headers_too_large", "the request's headers are too long")
            )
        else:
            answer = answer_of(InvalidInput("invalid_argument", f"{msg} {error or ''}".strip()))
        # A request whose body cannot be read may have its answer under way already.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(
                    status_code=answer.status_code,
                    headers=[*answer.raw_headers, (b"connection", b"close")],
                ),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class StrictRequest(Request):
    """A request whose JSON body must not repeat a key within one object."""

    async def json(self) -> Any:  # any JSON value
        """Returns the value of the body. Raises InvalidInput `invalid_argument`,
        JSONDecodeError."""
        hook = unique_keys("invalid_argument", "the request's body")
        return json.loads(await self.body(), object_pairs_hook=hook)


def limited(request: Request, bytes_max: int) -> Request:
    """Returns the same request with a limit: reading more than `bytes_max` bytes of its body raises
    InvalidInput `too_large`. A declared length above the limit raises it at once."""
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
    """Returns the length of the body that the client declares; None if it declares none."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def too_large(bytes_max: int) -> InvalidInput:
    """Returns the error for a body above a limit."""
    return InvalidInput("too_large", f"the request has more than {bytes_max} bytes")
