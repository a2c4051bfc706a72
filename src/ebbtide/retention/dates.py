"""Instants and spans of time: checked on the way in, written for people on the way out.

Not for: reading the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def to_utc(instant: datetime, *, what: str) -> datetime:
    """`instant` in UTC. Raises InvalidInput (`invalid_date`), naming `what`, without a zone, or
    where it lies outside the years 1 to 9999 in UTC."""
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
    """`2026-03-01T12:00:00Z`, with microseconds only where there are any."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def span_text(span: timedelta) -> str:
    """`2 days`, `1 hour`: the largest unit that fits, rounded down."""
    seconds = int(span.total_seconds())
    for unit, size in _UNITS:
        count = seconds // size
        if count:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "less than a second"
