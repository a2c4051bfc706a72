"""Values as people read them, and as they write them on a command line. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import escaped, shown
from ebbtide.model import EPOCH
from ebbtide.retention.dates import to_utc
from ebbtide.wording import counted

ID_SHOWN: Final = 10
"""Digits of an id in tables: enough to be told apart, and to be typed back."""

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


def size_text(size_bytes: int) -> str:
    """`512 B`, `1.5 KiB`, `12.0 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _IEC:
        value /= 1024
        # What would be rounded to 1024.0 is shown in the next unit.
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value:,.1f} {_IEC[-1]}"


def known_size_text(size_bytes: int | None) -> str:
    """The same, and a word where nobody asked for sizes."""
    return "unknown" if size_bytes is None else size_text(size_bytes)


def count_text(count: int, noun: str = "", plural: str = "") -> str:
    """`1,234`, or with a noun as `counted` has it: `1 file`, `1,234 files`."""
    if not noun:
        return f"{count:,}"
    return counted(count, noun, plural)


def age_text(age: timedelta) -> str:
    """`12 days`: the largest unit that says enough; days up to two months, months up to two
    years."""
    if age < timedelta(seconds=1):
        return "now" if age > timedelta(seconds=-1) else "in the future"
    for unit, length in _AGES:
        least = {"year": _YEARS_FROM, "month": _MONTHS_FROM}.get(unit, length)
        if age >= least:
            return count_text(age // length, unit)
    return "now"


def time_text(seconds: float) -> str:
    """`0:05`, `12:40`, `3:02:01`: minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age_at(instant: datetime, now: datetime) -> str:
    """How old something is; nothing for a repository's initial commit, which is dated 1970."""
    return "" if instant == EPOCH else age_text(now - instant)


def date_text(instant: datetime | None) -> str:
    """`2026-03-01 12:30`, UTC; nothing for no date."""
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}"


def short_id(full_id: str | None) -> str:
    """The first digits of an id."""
    return "" if full_id is None else full_id[:ID_SHOWN]


def one_line(text: str) -> str:
    """The first line of `text`, with control characters escaped."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return escaped(first)


def parse_date(text: str) -> datetime:
    """An instant as ISO 8601 writes it. InvalidInput `invalid_date` without a zone, outside
    the years 1 to 9999 in UTC, or else."""
    how = "write it as 2026-03-01T12:30:00Z, with its zone"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("invalid_date", f"{text[:40]!r} is not a date: {how}") from None
    if instant.tzinfo is None:
        raise InvalidInput("invalid_date", f"{text[:40]!r} has no time zone: {how}")
    return to_utc(instant, what="the date")


def parse_pairs(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. InvalidInput `invalid_argument` on any other, or twice."""
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
