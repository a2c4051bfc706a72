"""Objects as S3 describes them in headers, and conditions on them (RFC 9110, 13)."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.utils import format_datetime, parsedate_to_datetime
from typing import Final

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import S3Error
from ebbtide.model import EPOCH
from ebbtide.server.api.base import OCTETS
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.content.etags import etag_of, names
from ebbtide.store.content.reserved import CHECKSUM, HEADER, HEADERS, META, checksums_of

SOURCE: Final = "x-amz-copy-source-"
"""The beginning of headers with conditions on the source of a copy."""

_VISIBLE: Final = re.compile(r"[\x20-\x7e]*")
_META: Final = META.lower()
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TYPE: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]*")
_SHA256: Final = re.compile("[0-9a-f]{64}")
_KEPT: Final = frozenset(HEADER + name for name in HEADERS)


def headers_of(entry: Entry) -> dict[str, str]:
    """Returns the headers that describe an object."""
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": quoted(etag_of(entry)),
        "Last-Modified": format_datetime(second_of(entry), usegmt=True),
        "Content-Type": _media_type(entry),
        # An uploaded script must not run in the browser of another user.
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    for name in _KEPT & entry.metadata.keys():
        if _VISIBLE.fullmatch(entry.metadata[name]):
            headers[name.removeprefix(HEADER).title()] = entry.metadata[name]
    return headers | _users_headers(entry.metadata)


def _users_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers for the metadata of users, and the number of those that have none.

    Names of the API may lack the prefix. If several names give one header, that of S3 counts.
    """
    names = [name for name in metadata if name not in _KEPT and not name.startswith(CHECKSUM)]
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (not name.lower().startswith(_META), name)):
        header = _META + name.lower().removeprefix(_META)
        if _TOKEN.fullmatch(name) and header not in (_META, *found):
            found[header] = _header_value(metadata[name])
    missing = len(names) - len(found)
    return found | ({"x-amz-missing-meta": str(missing)} if missing else {})


def checksum_headers(entry: Entry, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the checksums of a whole object, if the client asked for them."""
    if headers.get("x-amz-checksum-mode", "").upper() != "ENABLED":
        return {}
    found = sums_of(entry)
    named = {checksums.PREFIX + name: value for name, value in found.items()}
    return named | ({"x-amz-checksum-type": checksums.type_of(found)} if found else {})


def sums_of(entry: Entry) -> dict[str, str]:
    """Returns the checksums of an object by algorithm: those that its writer sent, and the SHA-256
    that every upload gets. If the writer sent a checksum of the parts' checksums, it is the only
    one: an answer has one type for all."""
    return {} if is_external(entry.address) else sums_among(entry.metadata, entry.checksum)


def sums_among(metadata: Mapping[str, str], checksum: str) -> dict[str, str]:
    """Returns the checksums of an object with that metadata and that checksum, as `sums_of`
    does."""
    found = {name.removeprefix(CHECKSUM): value for name, value in checksums_of(metadata).items()}
    kept = {name: value for name, value in found.items() if checksums.is_valid(name, value)}
    composite = {name: value for name, value in kept.items() if checksums.is_composite(value)}
    if composite:
        return composite
    if _SHA256.fullmatch(checksum):
        kept["sha256"] = checksums.of_hex(checksum)
    return kept


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata that a request attaches to an object: the user's, whose names are
    lower-case in HTTP, and the headers that readers are to get."""
    found = {
        META + name.removeprefix(_META): _decoded(value)
        for name, value in headers.items()
        if name.startswith(_META) and name != _META
    }
    for name in HEADERS:
        value = headers.get(name, "").strip()
        if name == "content-encoding":
            value = _content_encoding(value)
        if value:
            found[HEADER + name] = value
    return found


def metadata_of_sums(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata that keeps checksums, given by algorithm. The SHA-256 of the whole
    object is kept anyway."""
    return {
        CHECKSUM + name: value
        for name, value in found.items()
        if name != "sha256" or checksums.is_composite(value)
    }


def _content_encoding(value: str) -> str:
    """Returns the encodings of an object. `aws-chunked` is that of the request's body alone."""
    parts = [part.strip() for part in value.split(",")]
    return ", ".join(part for part in parts if part and part.lower() != "aws-chunked")


def is_unchanged(entry: Entry, headers: Mapping[str, str], *, prefix: str = "") -> bool:
    """Whether the client has the object already, by `If-None-Match` or `If-Modified-Since`.

    `prefix` begins the names of the headers. Raises S3Error `PreconditionFailed` if `If-Match` or
    `If-Unmodified-Since` does not hold.
    """
    modified = second_of(entry)
    if_match = headers.get(prefix + "if-match")
    since = date_of(headers.get(prefix + "if-unmodified-since"))
    is_met = since is None or modified <= since if if_match is None else lists(if_match, entry)
    if not is_met:
        raise S3Error("PreconditionFailed", "the object does not meet the request's condition")
    if_none_match = headers.get(prefix + "if-none-match")
    if if_none_match is not None:
        return lists(if_none_match, entry)
    since = date_of(headers.get(prefix + "if-modified-since"))
    return since is not None and modified <= since


def may_use_range(entry: Entry, headers: Mapping[str, str]) -> bool:
    """Whether a range is to be sent: `If-Range`, if given, names the object as it is."""
    text = headers.get("if-range")
    if text is None:
        return True
    if text.startswith('"'):
        return names(entry, text.strip('"'))
    return date_of(text) == second_of(entry)


def lists(header: str, entry: Entry) -> bool:
    """Whether a header that lists ETags has that of an object, or the star that stands for each."""
    tags = {part.strip().removeprefix("W/").strip('"') for part in header.split(",")}
    return "*" in tags or any(names(entry, tag) for tag in tags)


def quoted(etag: str) -> str:
    """Returns an ETag as headers and XML have it."""
    return f'"{etag}"'


def date_of(text: str | None) -> datetime | None:
    """Returns the date of a header. A date that cannot be read is no condition (RFC 9110, 13.1)."""
    try:
        return None if text is None else parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def second_of(entry: Entry) -> datetime:
    """Returns the date of an object, in whole seconds as headers have it."""
    return entry.mtime.replace(microsecond=0) if entry.mtime >= EPOCH else EPOCH


def _media_type(entry: Entry) -> str:
    given = entry.content_type or ""
    return given if _TYPE.fullmatch(given) else OCTETS


def _header_value(value: str) -> str:
    """Returns a value as a header can have it. S3 writes other characters as RFC 2047 does."""
    if _VISIBLE.fullmatch(value):
        return value
    return f"=?UTF-8?B?{base64.b64encode(value.encode()).decode()}?="


def _decoded(value: str) -> str:
    """Decodes the value of a header, which is bytes: as UTF-8 if possible, else as Latin-1. Words
    that are encoded by RFC 2047 are decoded, if a reader is sent them encoded again."""
    with suppress(UnicodeDecodeError):
        value = value.encode("latin-1").decode()
    if "=?" not in value:
        return value
    # An unknown encoding, or one that is wrong, is the user's own text.
    with suppress(ValueError, LookupError, HeaderParseError):
        decoded = str(make_header(decode_header(value)))
        return value if _VISIBLE.fullmatch(decoded) else decoded
    return value
