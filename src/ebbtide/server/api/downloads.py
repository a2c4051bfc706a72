"""Objects as responses: headers, ranges and conditions (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import format_datetime
from typing import Final, Protocol

from fastapi import Response
from fastapi.responses import StreamingResponse

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.base import OCTETS
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.signed_reads import SignedRead

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_TYPE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]*")


class Download(Protocol):
    """An object that can be read: from a branch, a commit or a collection, or with a locator."""

    @property
    def entry(self) -> Entry:
        """The entry of the object. Its date is EPOCH if the date is not known."""

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yields the object's bytes from `start` (inclusive) to `end` (exclusive)."""


class RangeBehindEnd(InvalidInput):
    """The error for a range that begins after the object's end. Its headers state the object's
    size."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("range_invalid", f"the object has only {size_bytes} bytes")
        self.headers = {"Content-Range": f"bytes */{size_bytes}"}


def answer(found: Download, range_header: str | None, if_none_match: str | None) -> Response:
    """Returns the response with the whole object, or with the range that the request names. If
    `if_none_match` names its checksum, the response is 304 without a body."""
    entry = found.entry
    if if_none_match is not None and _etag(entry) in _listed(if_none_match):
        return Response(status_code=304, headers=_headers(entry))
    part = parse_range(range_header, entry.size_bytes)
    status, headers = _described(entry, part)
    # The checksum of a whole object is verified while it is sent. A range has no checksum.
    pieces = found.stream() if part is None else found.stream(start=part[0], end=part[1])
    return StreamingResponse(pieces, status, headers, media_type=_media_type(entry))


def redirect(signed: SignedRead, if_none_match: str | None) -> Response:
    """Returns the redirection to a signed URL. If `if_none_match` names the object's checksum, the
    response is 304. Nobody may cache the redirection, because the URL ends."""
    headers = {"Cache-Control": "no-store"}
    if if_none_match is not None and _etag(signed.entry) in _listed(if_none_match):
        return Response(status_code=304, headers=_headers(signed.entry) | headers)
    return Response(status_code=302, headers=headers | {"Location": signed.url})


def head(found: Download, range_header: str | None) -> Response:
    """Returns the response to a HEAD request: status and headers of the object or range, no
    bytes."""
    entry = found.entry
    status, headers = _described(entry, parse_range(range_header, entry.size_bytes))
    return Response(None, status, headers, media_type=_media_type(entry))


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Returns the range's first byte and the position after its last byte; None for the whole
    object.

    A header that cannot be parsed, or that names several ranges, is ignored (RFC 9110, 14.2).
    Raises RangeBehindEnd.
    """
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(size_bytes - int(last), 0), size_bytes
    else:
        start = int(first)
        end = min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None
    if start >= size_bytes:
        raise RangeBehindEnd(size_bytes)
    return start, end


def _described(entry: Entry, part: tuple[int, int] | None) -> tuple[int, dict[str, str]]:
    headers = _headers(entry)
    if part is None:
        return 200, headers | {"Content-Length": str(entry.size_bytes)}
    start, end = part
    return 206, headers | {
        "Content-Length": str(end - start),
        "Content-Range": f"bytes {start}-{end - 1}/{entry.size_bytes}",
    }


def _headers(entry: Entry) -> dict[str, str]:
    headers = {
        "Accept-Ranges": "bytes",
        # An uploaded script must not run in the browser of another user.
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    if entry.mtime != EPOCH:
        modified = entry.mtime.replace(microsecond=0)
        headers["Last-Modified"] = format_datetime(modified, usegmt=True)
    if _TYPE.fullmatch(entry.checksum) and '"' not in entry.checksum:
        headers["ETag"] = _etag(entry)
    return headers


def _etag(entry: Entry) -> str:
    return f'"{entry.checksum}"'


def _listed(header: str) -> set[str]:
    return {part.strip().removeprefix("W/") for part in header.split(",")}


def _media_type(entry: Entry) -> str:
    given = entry.content_type or ""
    return given if _TYPE.fullmatch(given) else OCTETS
