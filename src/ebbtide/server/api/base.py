"""Types that all requests and answers share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ebbtide.model import EPOCH

OCTETS: Final = "application/octet-stream"
"""The type of an object that was stored without a type."""


SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999."""


def _storable(text: str) -> str:
    """Returns the text if the databases can store it: they take neither zero bytes nor lone
    surrogates."""
    if "\0" in text:
        raise ValueError("holds a zero byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode") from None
    return text


def _instant(value: object) -> datetime:
    """Parses an instant. Numbers are refused, because they can be seconds or milliseconds."""
    if not isinstance(value, str):
        raise ValueError("write an instant as 2026-03-01T12:30:00Z, with its zone")
    return datetime.fromisoformat(value)


Text = Annotated[str, AfterValidator(_storable)]
Metadata = dict[Text, Text]
Seconds = Annotated[int, Field(ge=0, le=SECONDS_MAX)]
"""Seconds since 1970-01-01, UTC."""
Instant = Annotated[datetime, BeforeValidator(_instant)]
"""An instant in ISO 8601. The store refuses an instant without a time zone."""
Segment = Annotated[Text, Path()]
"""A segment of a path."""


class Wire(BaseModel):
    """The base of requests and answers. Unknown fields are ignored, because newer clients may send
    more."""

    model_config = ConfigDict(extra="ignore")


class ExpiryChange(Wire):
    """The instant at which an item expires; null means never. A future instant, or null, also
    restores the item from the trash. If its name was taken since, `ensure_unique_name` gives it
    another name."""

    expires_at: Instant | None
    ensure_unique_name: bool = False


class Restoration(Wire):
    """How to restore an item from the trash. If its name was taken since, `ensure_unique_name`
    gives it another name."""

    ensure_unique_name: bool = False


class Pagination(Wire):
    """Whether a list continues, and where."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int


class ErrorAnswer(Wire):
    """The form of every error. `kind` is for programs, and never changes its meaning. If `message`
    is the one that lakeFS has for such an error, `detail` says what was wrong and what to do."""

    message: str
    kind: str
    detail: str | None = None


def seconds_of(instant: datetime) -> int:
    """Returns the whole seconds since 1970-01-01, UTC."""
    return int((instant - EPOCH).total_seconds())
