"""Hours, days, weeks, months and years for counting rules. All in UTC.

A period is a whole number that grows with time, so that periods compare as numbers. Weeks are those
of ISO 8601: a week begins on Monday, and belongs to the year of its Thursday.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from ebbtide.retention.rules import Period


def _hour(instant: datetime) -> int:
    return instant.toordinal() * 24 + instant.hour


def _week(instant: datetime) -> int:
    return (instant.toordinal() - 1) // 7  # day 1 of the calendar was a Monday


def _month(instant: datetime) -> int:
    return instant.year * 12 + instant.month


def _year(instant: datetime) -> int:
    return instant.year


PERIOD_NUMBER: Final[Mapping[Period, Callable[[datetime], int]]] = {
    "hourly": _hour,
    "daily": datetime.toordinal,
    "weekly": _week,
    "monthly": _month,
    "yearly": _year,
}

_NAMES: Final[Mapping[Period, str]] = {
    "hourly": "hour %Y-%m-%dT%HZ",
    "daily": "day %Y-%m-%d",
    "weekly": "week %G-W%V",
    "monthly": "month %Y-%m",
    "yearly": "year %Y",
}


def period_name(period: Period, instant: datetime) -> str:
    """Returns the hour, day, week, month or year of a UTC instant, for people: `month 2026-03`."""
    return instant.strftime(_NAMES[period])
