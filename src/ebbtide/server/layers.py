"""Layers around all routes: ids of requests, spans for OpenTelemetry, bodies that stay unread, and
the limit of a request's head.

Not for: limits of bodies (`bodies`), metrics (`metrics`), or authentication (`auth`).
"""

from __future__ import annotations

import re
import sys
from typing import Final

import h11
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ebbtide import telemetry
from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.logs import bind_request, request_id
from ebbtide.server.errors import answer_of
from ebbtide.telemetry import Traced

HEADER: Final = "X-Request-Id"
SERVER_ERROR: Final = 500
"""From this status on, a request failed by the server's fault."""
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


class Tracing:
    """Makes a span for each request, if OpenTelemetry is set up. Its name and attributes are those
    of OpenTelemetry's semantic conventions for HTTP servers; no path or query is among them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http" or not telemetry.is_tracing():
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        with telemetry.request_span(scope["method"], headers) as traced:
            traced.note(
                {"http.request.method": scope["method"], telemetry.REQUEST_ID: request_id()}
            )

            async def noted_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note(traced, scope, message["status"])
                await send(message)

            await self._app(scope, receive, noted_send)


def _note(traced: Traced, scope: Scope, status: int) -> None:
    """Adds what is known at the answer. Routes have the names of parameters, never values."""
    route = getattr(scope.get("route"), "path_format", None)
    repository = scope.get("path_params", {}).get("repository")
    traced.note(
        {
            "http.response.status_code": status,
            "http.route": route,
            telemetry.REPOSITORY: repository,
        }
    )
    if route is not None:
        traced.rename(f"{scope['method']} {route}")
    if status >= SERVER_ERROR:
        traced.fail(str(status))


class UnreadBodies:
    """Closes connections whose next bytes could be a body or a request, by `Connection: close`.

    A client that sends `Expect: 100-continue` waits before it sends the body, and leaves the body
    out if it is refused. The server cannot know which, so that it could read the client's next
    request as the body. Source: RFC 9110, 10.1.1.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http" or not any(name == b"expect" for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        is_received = False

        async def receiving() -> Message:
            nonlocal is_received
            message = await receive()
            is_received = message["type"] != "http.request" or not message.get("more_body")
            return message

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_received:
                closing = (b"connection", b"close")
                message = {**message, "headers": [*message.get("headers", ()), closing]}
            await send(message)

        await self._app(scope, receiving, answering)


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
