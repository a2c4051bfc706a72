"""What all requests and answers have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ebbtide.model import EPOCH

SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999."""


def _storable(text: str) -> str:
    """Databases take neither zero bytes nor halves of characters."""
    if "\0" in text:
        raise ValueError("holds a zero byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is no valid Unicode") from None
    return text


def _instant(value: object) -> datetime:
    """Numbers are no instants: nobody could tell seconds from milliseconds."""
    if not isinstance(value, str):
        raise ValueError("write an instant as 2026-03-01T12:30:00Z, with its zone")
    return datetime.fromisoformat(value)


Text = Annotated[str, AfterValidator(_storable)]
Metadata = dict[Text, Text]
Seconds = Annotated[int, Field(ge=0, le=SECONDS_MAX)]
"""Since 1970."""
Instant = Annotated[datetime, BeforeValidator(_instant)]
"""ISO 8601; the store refuses one without a zone."""
Segment = Annotated[Text, Path()]
"""A part of a path."""


class Wire(BaseModel):
    """A request or an answer. What is not known here is passed over, as clients grow."""

    model_config = ConfigDict(extra="ignore")


class ExpiryChange(Wire):
    """When something is to expire, null for never. Brought back from the trash into a name that was
    taken since, it gets another if `ensure_unique_name`."""

    expires_at: Instant | None
    ensure_unique_name: bool = False


class Restoration(Wire):
    """How to bring something back: as with `ExpiryChange`."""

    ensure_unique_name: bool = False


class Pagination(Wire):
    """Where a list goes on."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int


class ErrorAnswer(Wire):
    """What every error looks like; `kind` is for programs and never changes its meaning."""

    message: str
    kind: str


def seconds_of(instant: datetime) -> int:
    """Whole seconds since 1970."""
    return int((instant - EPOCH).total_seconds())
