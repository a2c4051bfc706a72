"""Reads dates, checks instants from callers, and writes instants and spans of time for people.

Not for: reading the clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.text import shown

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
DATE_FORMS: Final = "2026-03-01 (midnight in UTC) or 2026-03-01T12:30:00Z"
"""The forms of a date, for the help of options."""


def parse_date(text: str, how: str = f"write {DATE_FORMS}") -> datetime:
    """Parses a date in ISO 8601: a day, which is its begin in UTC, or an instant with a zone.

    Raises InvalidInput `invalid_date` if it is not a date, has a time without a zone, or is outside
    the years 1 to 9999 in UTC. `how` says how to write it.
    """
    text = text.strip()
    try:
        day = date.fromisoformat(text)
    except ValueError:
        pass
    else:
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("invalid_date", f"{shown(text)} is not a date: {how}") from None
    if instant.tzinfo is None:
        raise InvalidInput("invalid_date", f"{shown(text)} has no time zone: {how}")
    return to_utc(instant, what="the date")


def to_utc(instant: datetime, *, what: str) -> datetime:
    """Returns `instant` in UTC. Raises InvalidInput `invalid_date`, naming `what`, if it has no
    zone or lies outside the years 1 to 9999 in UTC."""
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        raise InvalidInput(
            "invalid_date", f"{what}: {instant.isoformat()} has no zone: give a date in UTC"
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(
            "invalid_date",
            f"{what}: {instant.isoformat()} lies outside the years 1 to 9999 in UTC",
        ) from None


def instant_text(instant: datetime) -> str:
    """Returns an instant as `2026-03-01T12:00:00Z`, with microseconds only if they are not zero."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def span_text(span: timedelta) -> str:
    """Returns a span in its largest unit, rounded down: `2 days`, `1 hour`."""
    seconds = int(span.total_seconds())
    for unit, size in _UNITS:
        count = seconds // size
        if count:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "less than a second"
