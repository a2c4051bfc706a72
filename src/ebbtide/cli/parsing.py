"""Parses values of the command line. Not for: durations (`ebbtide.durations`)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.retention.dates import to_utc


def parse_date(text: str) -> datetime:
    """Parses an instant in ISO 8601. Raises InvalidInput `invalid_date` if it is not a date, has no
    zone, or is outside the years 1 to 9999 in UTC."""
    how = "write it as 2026-03-01T12:30:00Z, with its zone"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("invalid_date", f"{shown(text)} is not a date: {how}") from None
    if instant.tzinfo is None:
        raise InvalidInput("invalid_date", f"{shown(text)} has no time zone: {how}")
    return to_utc(instant, what="the date")


def parse_pairs(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """Parses `KEY=VALUE` texts to a mapping. Raises InvalidInput `invalid_argument` for another
    text, and for a key that is given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput(
                "invalid_argument", f"{option} {shown(text)}: write it as NAME=VALUE"
            )
        if key in pairs:
            raise InvalidInput("invalid_argument", f"{option} names {shown(key)} twice")
        pairs[key] = value
    return pairs
