"""How much one request may bring along. Not for: how it is worked on meanwhile (`streaming`)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Message

from ebbtide.errors import InvalidInput


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

    return Request(request.scope, receive)


def declared_bytes(request: Request) -> int | None:
    """How long the body is going to be, where the client says so."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def too_large(bytes_max: int) -> InvalidInput:
    """The error for a body above a limit."""
    return InvalidInput("too_large", f"the request has more than {bytes_max} bytes")
