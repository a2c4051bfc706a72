"""Durations as people write them: `20d`, `12h`, `1d12h`. A unit is always required.

Source: the second comment on lakeFS issue 1932 ("all time durations should have a unit").
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown

UNITS: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Seconds in each unit; `m` is minutes, since months and years have no fixed length."""

DURATION_MAX: Final = timedelta(days=36_500)
CHARACTERS_MAX: Final = 64

_WHOLE = re.compile(r"(?:[0-9]+[wdhms])+")
_PART = re.compile(r"([0-9]+)([wdhms])")
_HOW = "write a number with a unit: s, m, h, d or w, such as 20d, 12h, 2w or 1d12h"


def parse_duration(text: object) -> timedelta:
    """Returns the duration of a text. Zero is allowed. A negative number, or one without a unit, is
    not.

    Raises InvalidInput (`invalid_duration`), which says how to write a duration.
    """
    if not isinstance(text, str):
        raise InvalidInput("invalid_duration", f"{text!r} is not a duration: {_HOW}")
    compact = text.strip().lower()
    if len(compact) > CHARACTERS_MAX or not _WHOLE.fullmatch(compact):
        problem = "has no unit" if re.fullmatch(r"[0-9]+", compact) else "is not a duration"
        raise InvalidInput("invalid_duration", f"{shown(text)} {problem}: {_HOW}")
    seconds = sum(int(number) * UNITS[unit] for number, unit in _PART.findall(compact))
    if seconds > DURATION_MAX.total_seconds():
        raise InvalidInput(
            "invalid_duration",
            f"{shown(text)} is longer than {DURATION_MAX.days} days: use a shorter period, or "
            "leave out the rule to keep everything",
        )
    return timedelta(seconds=seconds)


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
