"""Objects as S3 describes them in headers, and conditions on them (RFC 9110, 13).

The store checks conditions on writes, deletes and sources of copies on the very entry that it
replaces, deletes or copies.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.utils import format_datetime, parsedate_to_datetime
from typing import Final

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import S3Error
from ebbtide.errors import Conflict, NotFound
from ebbtide.model import EPOCH
from ebbtide.server.api.base import OCTETS
from ebbtide.store.content.entries import (
    CHECKSUM,
    HEADER,
    HEADERS,
    META,
    Entry,
    checksums_of,
    is_external,
)
from ebbtide.store.content.etags import etag_of, names
from ebbtide.text import shown

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


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The object must have one of the listed ETags; `*` stands for each."""

    tags: str

    def check(self, path: str, found: Entry | None) -> None:
        """Raises NotFound `object_not_found` or Conflict `precondition_failed`."""
        if found is None:
            raise NotFound("object_not_found", f"there is no object {shown(path)}")
        if not lists(self.tags, found):
            raise _failed(path, found)


@dataclass(frozen=True, slots=True)
class IfNoneMatch:
    """There must be no object."""

    def check(self, path: str, found: Entry | None) -> None:
        """Raises Conflict `precondition_failed`."""
        if found is not None:
            raise _failed(path, found)


@dataclass(frozen=True, slots=True)
class IfUnchanged:
    """The condition of a delete: the object must have these ETags, date or size. None: any."""

    tags: str | None = None
    modified: datetime | None = None
    size_bytes: int | None = None

    def check(self, path: str, found: Entry | None) -> None:
        """Raises Conflict `precondition_failed`. A path without an object meets the condition:
        nothing is deleted."""
        if found is None:
            return
        is_met = (
            (self.tags is None or lists(self.tags, found))
            and (self.modified is None or second_of(found) == self.modified)
            and self.size_bytes in (None, found.size_bytes)
        )
        if not is_met:
            raise _failed(path, found)


@dataclass(frozen=True, slots=True)
class IfSource:
    """The condition of a copy on its source, in the headers that begin with SOURCE."""

    headers: Mapping[str, str]

    def check(self, path: str, found: Entry | None) -> None:
        """Raises S3Error `PreconditionFailed`."""
        if found is not None and is_unchanged(found, self.headers, prefix=SOURCE):
            raise S3Error(
                "PreconditionFailed", f"the source {shown(path)} does not meet the condition"
            )


def condition_of_write(headers: Mapping[str, str]) -> IfMatch | IfNoneMatch | None:
    """Returns the condition of a write. Raises S3Error `InvalidArgument` or `NotImplemented`."""
    if_none_match, if_match = headers.get("if-none-match"), headers.get("if-match")
    if if_none_match is not None and if_match is not None:
        raise S3Error("InvalidArgument", "give either If-None-Match or If-Match")
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise S3Error(
                "NotImplemented",
                f"If-None-Match: {if_none_match} is not supported in a write: its only value is *, "
                "for a path without an object; to replace a known object, send If-Match",
            )
        return IfNoneMatch()
    return None if if_match is None else IfMatch(if_match)


def condition_of_delete(
    tags: str | None, modified: str | None, size: str | None
) -> IfUnchanged | None:
    """Returns the condition of a delete from its texts. Raises S3Error `InvalidArgument`: a delete
    whose condition cannot be read must not happen."""
    if tags is None and modified is None and size is None:
        return None
    date = None if modified is None else _instant(modified)
    if size is not None and not (size.isascii() and size.isdigit() and len(size) < 16):
        raise S3Error("InvalidArgument", "the size in the condition is no number")
    return IfUnchanged(tags, date, None if size is None else int(size))


def _instant(text: str) -> datetime:
    """Reads a date as headers or as XML have it, in whole seconds."""
    found = date_of(text)
    if found is None:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise S3Error("InvalidArgument", "the date in the condition is no date") from None
    if found.tzinfo is None:
        raise S3Error("InvalidArgument", "the date in the condition has no zone")
    return found.replace(microsecond=0)


def _failed(path: str, found: Entry) -> Conflict:
    return Conflict(
        "precondition_failed",
        f"the object {shown(path)} with the ETag {quoted(etag_of(found))} does not meet the "
        "condition",
    )
