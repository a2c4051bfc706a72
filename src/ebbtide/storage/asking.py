"""Requests by signed URLs, for what obstore does not ask. Not for: signing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Final, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from ebbtide.errors import EbbtideError
from ebbtide.storage import clients

FAILURES: Final = (HTTPException, ElementTree.ParseError, *clients.ERRORS)
"""The exceptions of a failed request. One with an answer is an HTTPError."""
TIMEOUT_SECONDS: Final = 150
_TRIES_MAX: Final = 5
_AT_ONCE: Final = 16
_NOT_IMPLEMENTED: Final = 501
_Answer = TypeVar("_Answer")


def headers_at(url: str) -> Mapping[str, str]:
    """Returns the headers of an object, whose names have any case. Raises FAILURES."""

    def send() -> Mapping[str, str]:
        with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT_SECONDS) as answer:
            found: Mapping[str, str] = answer.headers
            return found

    return repeated(send)


def headers_of_each(
    sign: Callable[[str], str | None], addresses: Sequence[str]
) -> list[Mapping[str, str] | None]:
    """Returns the headers of each object, with one request for each. `sign` returns a signed URL
    for them. None stands for headers that cannot be read."""

    def one(address: str) -> Mapping[str, str] | None:
        try:
            url = sign(address)
            return None if url is None else headers_at(url)
        except (EbbtideError, *FAILURES):
            return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, addresses))


def repeated(send: Callable[[], _Answer]) -> _Answer:
    """Sends a request, and again if the network or the server failed. Raises FAILURES."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return send()
        except FAILURES as error:
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection
            is_final = isinstance(error, HTTPError) and error.code < 500 and error.code != 429
            is_final = is_final or getattr(error, "code", None) == _NOT_IMPLEMENTED
            if is_final or attempt == _TRIES_MAX:
                raise
        time.sleep(0.2 * 2**attempt)
