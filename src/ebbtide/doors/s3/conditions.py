"""Conditions on writes, deletes and sources of copies. The store checks them on the very entry that
it replaces, deletes or copies.

Not for: conditions on reads (`described`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ebbtide.doors.s3.described import (
    SOURCE,
    date_of,
    is_unchanged,
    lists,
    quoted,
    second_of,
)
from ebbtide.doors.s3.errors import S3Error
from ebbtide.errors import Conflict, NotFound
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import etag_of
from ebbtide.text import shown


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
