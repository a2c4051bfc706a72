"""Requests to the issuer: JSON of limited size, within a limited time, from an address that nobody
on the way can change. Not for: the meaning of the answers (`issuer`)."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlencode

from ebbtide.errors import Failed
from ebbtide.redirects import NoRedirect
from ebbtide.text import readable

SILENCE_SECONDS_MAX: Final = 5
TOTAL_SECONDS_MAX: Final = 10
ANSWER_BYTES_MAX: Final = 1 << 20
_PART_BYTES: Final = 1 << 14


def fetch_json(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    authorization: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, dict[str, Any]]:
    """Gets a document, or posts a form. Returns the status and the JSON object of the answer.

    An answer with an error's status counts, if it is a JSON object too. `clock` is in seconds.
    Raises Failed `issuer_error` if there is no such answer within the limits.
    """
    headers = {"Accept": "application/json", "User-Agent": f"ebbtide/{version('ebbtide')}"}
    if authorization is not None:
        headers["Authorization"] = authorization
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    until = clock() + TOTAL_SECONDS_MAX
    try:
        try:
            answer = urllib.request.build_opener(NoRedirect).open(
                request, timeout=SILENCE_SECONDS_MAX
            )
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            status = int(answer.status)
            body = _read(url, answer, until, clock)
    except urllib.error.URLError as error:
        raise _failed(url, str(error.reason)) from None
    except (OSError, HTTPException, UnicodeError) as error:
        raise _failed(url, str(error) or type(error).__name__) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _failed(url, f"it answered with status {status}, and no JSON object")
    return status, found


def _read(
    url: str,
    answer: HTTPResponse | urllib.error.HTTPError,
    until: float,
    clock: Callable[[], float],
) -> bytes:
    """Reads the body of an answer part by part, so that neither its size nor its pace matters."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(_PART_BYTES):
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise _failed(url, f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        if clock() > until:
            raise _failed(url, f"its answer took more than {TOTAL_SECONDS_MAX} seconds")
        parts.append(part)
    return b"".join(parts)


def _failed(url: str, reason: str) -> Failed:
    return Failed(
        "issuer_error", readable(f"the issuer of logins cannot be used at {url}: {reason}")
    )
