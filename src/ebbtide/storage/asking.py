"""Requests by signed URLs, for what obstore does not ask. Not for: signing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from io import BytesIO
from typing import Final, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from ebbtide.errors import EbbtideError
from ebbtide.escaping import shown
from ebbtide.storage import clients

FAILURES: Final = (HTTPException, ElementTree.ParseError, *clients.ERRORS)
"""The exceptions of a failed request. One with an answer is an HTTPError, and a FailedAnswer if it
comes from `repeated`."""
TIMEOUT_SECONDS: Final = 150
TRIES_MAX: Final = 5
_AT_ONCE: Final = 16
_NOT_IMPLEMENTED: Final = 501
_BODY_BYTES_MAX: Final = 1 << 16
_Answer = TypeVar("_Answer")


class FailedAnswer(HTTPError):
    """An HTTPError whose connection is closed. `body` is what the answer said."""

    def __init__(self, error: HTTPError) -> None:
        self.body = b""
        with error, suppress(*FAILURES):
            self.body = error.read(_BODY_BYTES_MAX)
        super().__init__(error.url, error.code, error.reason, error.headers, BytesIO())
        self.close()

    def told(self) -> tuple[str, str]:
        """Returns the code and the message of the storage. Both are "" without such an answer."""
        try:
            found = ElementTree.fromstring(self.body)
        except ElementTree.ParseError:
            return "", ""
        return found.findtext("{*}Code") or "", found.findtext("{*}Message") or ""


def document(body: bytes, *kinds: str) -> ElementTree.Element:
    """Parses the XML of an answer, whose root is one of `kinds`, in any namespace.

    Raises ValueError for any other document. A proxy's page in HTML can have the status 200, and
    holds no keys: it would look like an empty listing.
    """
    found = ElementTree.fromstring(body)
    if found.tag.rpartition("}")[2] not in kinds:
        raise ValueError(
            f"the answer is a document {shown(found.tag)} in place of {kinds[0]}, perhaps of a "
            "proxy before the storage"
        )
    return found


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


def repeated(send: Callable[[], _Answer], *, tries: int = TRIES_MAX) -> _Answer:
    """Sends a request, and again if the network or the server failed. Raises FAILURES."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return send()
        except HTTPError as error:
            # Not closed, the error would hold the connection.
            failed = FailedAnswer(error)
            is_final = error.code == _NOT_IMPLEMENTED or (error.code < 500 and error.code != 429)
            if is_final or attempt == tries:
                raise failed from None
        except FAILURES:
            if attempt == tries:
                raise
        time.sleep(0.2 * 2**attempt)
