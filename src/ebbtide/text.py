"""Text for people: counts with their nouns, sizes, ages and dates, and text from outside made safe.

Text from outside is file names, keys, and messages of other programs. Not for: printing, or HTML,
JSON or a shell, which have their own escaping.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.model import EPOCH

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, characters that change the direction of text,
and surrogates, which stand for bytes that are not UTF-8."""
_UNSAFE_IN_LINES: Final = re.compile(r"(?![\n\t])" + _UNSAFE.pattern)
_LONG_WORD: Final = re.compile(r"\S{1100,}")
SHOWN_MAX: Final = 100
"""The most characters of a text from outside that a message repeats."""


def shown(text: str) -> str:
    """Returns `text` as messages quote it, cut if it is long."""
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…")


def readable(text: str) -> str:
    """Returns a message on one line: unsafe characters are escaped, and long words are cut. A name
    from outside may have thousands of characters, and S3 allows 1,024 bytes for a key."""
    return escaped(_LONG_WORD.sub(lambda word: word[0][:SHOWN_MAX] + "…", text))


def escaped(text: str) -> str:
    r"""Returns `text` on one line: unsafe characters are written as `\n`, `\x1b` and so on."""
    return _UNSAFE.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Returns `text` with unsafe characters escaped, except line feeds and tabs. For texts of
    several lines."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


ID_SHOWN: Final = 10
"""Digits of an id in tables. They are enough to distinguish ids, and to be typed in a command."""
_LONG_ID: Final = re.compile("[0-9a-f]{32,}")
"""An id of the store, or of a lakeFS commit."""

_IEC: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGES: Final = (
    ("year", timedelta(days=365)),
    ("month", timedelta(days=30)),
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
)
_MONTHS_FROM: Final = timedelta(days=60)
_YEARS_FROM: Final = timedelta(days=730)


def count_text(count: int, noun: str = "", plural: str = "") -> str:
    """Returns a count such as `1,234`, or with its noun, such as `1 file` or `1,234 files`.

    `plural` is for plurals that need more than an s: `1 file stays`, `2 files stay`.
    """
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def size_text(size_bytes: int) -> str:
    """Returns a size such as `512 B`, `1.5 KiB` or `12.0 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _IEC:
        value /= 1024
        # A value that would be rounded to 1024.0 is shown in the next unit.
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value:,.1f} {_IEC[-1]}"


def known_size_text(size_bytes: int | None) -> str:
    """Returns a size as `size_text` does, or `unknown` if the size was not read."""
    return "unknown" if size_bytes is None else size_text(size_bytes)


def age_text(age: timedelta) -> str:
    """Returns an age such as `12 days`, in one unit: in days up to two months, in months up to two
    years."""
    if age < timedelta(seconds=1):
        return "now" if age > timedelta(seconds=-1) else "in the future"
    for unit, length in _AGES:
        least = {"year": _YEARS_FROM, "month": _MONTHS_FROM}.get(unit, length)
        if age >= least:
            return count_text(age // length, unit)
    return "now"


def time_text(seconds: float) -> str:
    """Returns a time such as `0:05`, `12:40` or `3:02:01`: minutes and seconds, and hours if
    any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age_at(instant: datetime, now: datetime) -> str:
    """Returns an age, or "" for a repository's initial commit, which has the date 1970."""
    return "" if instant == EPOCH else age_text(now - instant)


def date_text(instant: datetime | None) -> str:
    """Returns a date such as `2026-03-01 12:30`, in UTC; "" for None."""
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}"


def short_id(full_id: str | None) -> str:
    """Returns the first digits of a long hexadecimal id. Other ids, such as `17:sales/orders`, stay
    whole: their first characters may be those of another one."""
    if full_id is None:
        return ""
    return full_id[:ID_SHOWN] if _LONG_ID.fullmatch(full_id) else escaped(full_id)


def one_line(text: str) -> str:
    """Returns the first line of `text`, with control characters escaped."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return escaped(first)
