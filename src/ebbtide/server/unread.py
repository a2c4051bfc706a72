"""Closes connections whose next bytes could be a body or a request.

A client that sends `Expect: 100-continue` waits before it sends the body, and leaves the body out
if it is refused. The server cannot know which, so that it could read the client's next request as
the body. Source: RFC 9110, 10.1.1.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class UnreadBodies:
    """Adds `Connection: close` to the answer to such a request, unless its body was received."""

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
