"""Errors as Arvados's clients read them: `{"errors": […]}`, with statuses of their own.

Source: Arvados's documentation, "API requests". `kind` is this server's addition.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ebbtide.errors import EbbtideError, quarantine_fields
from ebbtide.server.errors import STATUS

logger = logging.getLogger(__name__)

UNPROCESSABLE: Final = 422
_AGAIN: Final = frozenset((400, 409))
"""Statuses that become 422. Arvados's clients repeat a request that got 409, and a request that
conflicts stays refused."""


def status_of(kind: str) -> int:
    """Returns the status for a kind of error."""
    status = STATUS[kind]
    return UNPROCESSABLE if status in _AGAIN else status


def answer_of(error: EbbtideError) -> JSONResponse:
    """Returns the answer for an error."""
    status = status_of(error.kind)
    if status >= 500:
        logger.error("%s: %s", error.kind, error.message)
    return _answer(status, error.kind, error.message, quarantine_fields(error))


def on_error(request: Request, error: Exception) -> JSONResponse:
    """Answers an error of this program."""
    assert isinstance(error, EbbtideError)
    request.app.state.store.tell(error)
    return answer_of(error)


def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answers a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    path = request.scope["raw_path"].decode("latin-1")
    text = f"this server has no {request.method} {path}: docs/arvados.md lists what it has"
    return _answer(error.status_code, "route_not_found", text)


def on_defect(_request: Request, _error: Exception) -> JSONResponse:
    """Answers an unexpected error. The traceback is in the server's log."""
    return _answer(500, "internal", "a defect in this program: the server's log says more")


def _answer(
    status: int, kind: str, message: str, more: Mapping[str, str] | None = None
) -> JSONResponse:
    # Paths and messages may hold characters that UTF-8 cannot encode.
    text = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"errors": [text], "kind": kind, **(more or {})}, status_code=status)
