"""Spans of requests, for OpenTelemetry: one for each, within the client's span if it names one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide import telemetry
from ebbtide.logs import request_id
from ebbtide.telemetry import Traced

SERVER_ERROR: Final = 500
"""From this status on, a request failed by the server's fault."""


class Tracing:
    """Makes a span for each request, if OpenTelemetry is set up. Its name and attributes are those
    of OpenTelemetry's semantic conventions for HTTP servers; no path or query is among them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request."""
        if scope["type"] != "http" or not telemetry.is_on():
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


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): text.decode("latin-1") for name, text in headers}


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
