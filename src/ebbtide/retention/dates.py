"""Checks instants from callers, and writes instants and spans of time for people.

Not for: reading the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


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
