"""Durations as people write them: `20d`, `12h`, `1d12h`. A unit is always required.

Source: the second comment on lakeFS issue 1932 ("all time durations should have a unit").
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.text import shown

UNITS: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "s": 1}
"""Seconds in each unit. Months and years are no units, because they have no fixed length."""

DURATION_MAX: Final = timedelta(days=36_500)
CHARACTERS_MAX: Final = 64

_WHOLE = re.compile(r"(?:[0-9]+(?:min|[wdhms]))+")
_PART = re.compile(r"([0-9]+)(min|[wdhms])")
_BARE_M = re.compile(r"([0-9]+)m")
_CALENDAR = re.compile(r"([0-9]+)(y|yr|years?|mo|mon|months?)")
_DAYS: Final = {"y": 365, "m": 30}
PERIOD_FORMS: Final = "20d, 12h, 2w, 30min or 1d12h"
_HOW = f"write a number with a unit: s, min, h, d or w, such as {PERIOD_FORMS}"


def parse_duration(text: object) -> timedelta:
    """Returns the duration of a text. Zero is allowed. A negative number, or one without a unit, is
    not. `m` is read as minutes, as `min` is.

    Raises InvalidInput (`invalid_duration`), which says how to write a duration.
    """
    if not isinstance(text, str):
        raise InvalidInput("invalid_duration", f"{text!r} is not a duration: {_HOW}")
    compact = text.strip().lower()
    if len(compact) > CHARACTERS_MAX or not _WHOLE.fullmatch(compact):
        calendar = _CALENDAR.fullmatch(compact)
        if calendar is not None:
            raise InvalidInput(
                "invalid_duration",
                f"{shown(text)} has no fixed length, because months and years differ: write days, "
                f"such as {_in_days(calendar[1], calendar[2])}",
            )
        problem = "has no unit" if re.fullmatch(r"[0-9]+", compact) else "is not a duration"
        raise InvalidInput("invalid_duration", f"{shown(text)} {problem}: {_HOW}")
    parts = _PART.findall(compact)
    seconds = sum(int(number) * UNITS["min" if unit == "m" else unit] for number, unit in parts)
    if seconds > DURATION_MAX.total_seconds():
        raise InvalidInput(
            "invalid_duration",
            f"{shown(text)} is longer than {DURATION_MAX.days} days: use a shorter period, or "
            "leave out the rule to keep everything",
        )
    return timedelta(seconds=seconds)


def require_clear(text: object) -> None:
    """Raises InvalidInput `invalid_duration` for a text such as `1m`, which people write for a
    minute and for a month. Other texts are not checked.

    For the periods after which data goes: retention, expiry and quarantine.
    """
    found = _BARE_M.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if found is not None:
        number = found[1][:CHARACTERS_MAX]
        raise InvalidInput(
            "invalid_duration",
            f"{shown(str(text))} could be minutes or months: write {number}min for minutes, or "
            f"days, such as {_in_days(number, 'm')}",
        )


def parse_period(text: str) -> timedelta:
    """Returns the duration of a text, and refuses texts that could mean months.

    Raises InvalidInput `invalid_duration`, as `parse_duration` and `require_clear` do.
    """
    require_clear(text)
    return parse_duration(text)


def _in_days(number: str, unit: str) -> str:
    """Returns about as many days as a number of months or years has."""
    return f"{int(number) * _DAYS[unit[0]]}d"


def format_duration(duration: timedelta) -> str:
    """Returns a text that `parse_duration` reads back to `duration` (whole seconds). The text has
    no weeks, because people compare periods in days."""
    seconds = int(duration.total_seconds())
    if seconds == 0:
        return "0s"
    parts = []
    for unit, size in UNITS.items():
        if unit == "w":
            continue
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
