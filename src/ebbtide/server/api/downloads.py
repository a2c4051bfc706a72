"""Objects as responses: headers, ranges and conditions (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from typing import Annotated, Final, Protocol
from urllib.parse import quote

from fastapi import Depends, Header, Response
from fastapi.responses import StreamingResponse

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.base import OCTETS
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import names
from ebbtide.store.objects.objects import Readable
from ebbtide.store.objects.signed_reads import SignedRead
from ebbtide.text import shown

WHOLE_BYTES_MAX: Final = 256 * 1024
"""An answer of at most this size (bytes) is read as a whole before it is sent."""

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f-\x9f"\\]')
"""Characters that a file's name in a header cannot have, or that some systems read as a path."""
_SHOWN_TYPES: Final = frozenset(
    (
        "text/plain",
        "text/csv",
        "application/json",
        "application/pdf",
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
    )
)
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


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """The headers of a request that say which part of an object it needs, and in which case."""

    range: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None

    def is_met_by(self, entry: Entry) -> bool:
        """Whether the client has the object already, so that the answer is 304 (RFC 9110, 13.2.2).

        `If-Modified-Since` only counts without `If-None-Match`, and if it can be parsed.
        """
        if self.if_none_match is not None:
            listed = _listed(self.if_none_match)
            return "*" in listed or any(names(entry, tag) for tag in listed)
        if self.if_modified_since is None or entry.mtime == EPOCH:
            return False
        try:
            since = parsedate_to_datetime(self.if_modified_since)
        except (ValueError, OverflowError):
            return False
        # A date without a zone is not valid in HTTP.
        return since.tzinfo is not None and entry.mtime.replace(microsecond=0) <= since


def _options(
    range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
    if_modified_since: Annotated[str | None, Header()] = None,
) -> DownloadOptions:
    return DownloadOptions(range, if_none_match, if_modified_since)


DownloadOptionsDep = Annotated[DownloadOptions, Depends(_options)]


def answer(found: Download, options: DownloadOptions, path: str = "") -> Response:
    """Returns the response with the whole object, or with the range that the request names. If the
    client has it already, the response is 304 without a body.

    A browser saves the object under the last part of `path`.
    """
    entry = found.entry
    if options.is_met_by(entry):
        return Response(status_code=304, headers=_headers(entry))
    part = parse_range(options.range, entry.size_bytes)
    status, headers = _described(entry, part, path)
    return response_of(found, part, status, headers, media_type=_media_type(entry))


def response_of(
    found: Download,
    part: tuple[int, int] | None,
    status: int,
    headers: Mapping[str, str],
    media_type: str | None = None,
) -> Response:
    """Returns the response with the object's bytes, or those of a range.

    The checksum of a whole object is verified: before the answer if it is small, else while it is
    sent. A range has no checksum. For threads: it reads the bytes of a small answer.
    """
    start, end = part or (0, None)
    size_bytes = (found.entry.size_bytes if end is None else end) - start
    is_whole = part in (None, (0, found.entry.size_bytes))
    pieces = found.stream() if is_whole else found.stream(start=start, end=end)
    if size_bytes <= WHOLE_BYTES_MAX:
        # Each piece of a stream costs a switch of threads.
        return Response(b"".join(pieces), status, dict(headers), media_type=media_type)
    return StreamingResponse(pieces, status, headers, media_type=media_type)


def redirect(signed: SignedRead, options: DownloadOptions) -> Response:
    """Returns the redirection to a signed URL, or 304 if the client has the object already. Nobody
    may cache the redirection, because the URL ends."""
    headers = {"Cache-Control": "no-store"}
    if options.is_met_by(signed.entry):
        return Response(status_code=304, headers=_headers(signed.entry) | headers)
    return Response(status_code=302, headers=headers | {"Location": signed.url})


def head(found: Download, options: DownloadOptions, path: str = "") -> Response:
    """Returns the response to a HEAD request: the status and headers that `answer` returns, no
    bytes."""
    entry = found.entry
    if options.is_met_by(entry):
        return Response(status_code=304, headers=_headers(entry))
    status, headers = _described(entry, parse_range(options.range, entry.size_bytes), path)
    return Response(None, status, headers, media_type=_media_type(entry))


def head_unpurged(found: Readable, options: DownloadOptions, path: str = "") -> Response:
    """Returns the response of `head`. Raises Gone `purged`."""
    response = head(found, options, path)
    if response.status_code != 304:
        found.require_not_purged()
    return response


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Returns the range's first byte and the position after its last byte; None for the whole
    object.

    Raises InvalidInput `range_malformed` for a header that cannot be parsed, or that names several
    ranges. HTTP permits to ignore such a header, but lakeFS refuses it. Raises RangeBehindEnd.
    """
    found = find_range(header, size_bytes)
    if header is not None and found is None:
        raise InvalidInput(
            "range_malformed",
            f"{shown(header)} is no range: write a single one, such as bytes=0-99, bytes=100- or "
            "bytes=-100",
        )
    return found


def find_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Returns the range as `parse_range` does, but None for a header that cannot be parsed (RFC
    9110, 14.2). Raises RangeBehindEnd."""
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


def disposition(entry: Entry, path: str) -> str:
    """Returns the header `Content-Disposition` (RFC 6266). Only types that run no script are shown
    in a browser; all others are saved. The name is the last part of `path`."""
    return _named("inline" if entry.content_type in _SHOWN_TYPES else "attachment", path)


def attachment(path: str) -> str:
    """Returns the header `Content-Disposition` for a file that a browser always saves."""
    return _named("attachment", path)


def _named(kind: str, path: str) -> str:
    name = _UNSAFE.sub("_", path.rstrip("/").rpartition("/")[2])
    if name in ("", ".", ".."):
        return kind
    # Old clients read the first name, which is ASCII; all others the second one.
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _described(entry: Entry, part: tuple[int, int] | None, path: str) -> tuple[int, dict[str, str]]:
    headers = _headers(entry) | {"Content-Disposition": disposition(entry, path)}
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
    return {part.strip().removeprefix("W/").strip('"') for part in header.split(",")}


def _media_type(entry: Entry) -> str:
    given = entry.content_type or ""
    return given if _TYPE.fullmatch(given) else OCTETS
