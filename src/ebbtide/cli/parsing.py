"""Parses values of the command line: dates, periods from now, pairs. Reads files of text.

Not for: durations (`ebbtide.durations`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ebbtide.durations import PERIOD_FORMS, parse_period
from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.retention.dates import to_utc

LAST: Final = datetime.max.replace(tzinfo=UTC)
DATE_FORMS: Final = "2026-03-01 (midnight in UTC) or 2026-03-01T12:30:00Z"
"""The forms of a date, for the help of options."""
WHEN_FORMS: Final = f"A date, {DATE_FORMS}, or a period from now, such as 30d."

_PERIOD_LIKE = re.compile(r"(?:[0-9]+[a-zA-Z]+)+(?<![zZ])")
"""Numbers with letters after them, which are no instant in UTC."""


def text_of(file: str) -> str:
    """Returns the text of a file in UTF-8; `-` is stdin. Raises OSError and UnicodeDecodeError."""
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def parse_date(text: str) -> datetime:
    """Parses a date in ISO 8601: a day, which is its begin in UTC, or an instant with a zone.

    Raises InvalidInput `invalid_date` if it is not a date, has a time without a zone, or is outside
    the years 1 to 9999 in UTC.
    """
    return _date(text, f"write {DATE_FORMS}")


def parse_when(text: str, now: datetime, *, before: bool = False) -> datetime:
    """Parses a date as `parse_date` does, or a period from `now`: after it, or before it.

    Raises InvalidInput `invalid_date`, or `invalid_duration` for a period that could mean months or
    is too long.
    """
    if _PERIOD_LIKE.fullmatch(text.strip()):
        period = parse_period(text)
        # The longest period is a hundred years.
        return now - period if before else later(now, period)
    return _date(text, f"write {DATE_FORMS}, or a period such as {PERIOD_FORMS}")


def _date(text: str, how: str) -> datetime:
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


def later(now: datetime, period: timedelta) -> datetime:
    """Returns the instant a period after `now`, or the end of the year 9999 if that is earlier."""
    return LAST if LAST - now < period else now + period


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
