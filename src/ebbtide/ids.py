"""Makes ids: random ids, and ids that sort newest first. Not for names that people choose."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH

LATEST: Final = "latest"
"""Names the newest run in place of its id."""
ID_PATTERN: Final = "[0-9a-f]{32}"
"""A regular expression for every id, random or descending."""

CLOCKS_APART_MAX: Final = timedelta(minutes=5)
"""An id that is at most this far in the future was made now, by a host whose clock differs."""

_ID: Final = re.compile(ID_PATTERN)
_INSTANT_MAX: Final = 2**64 - 1
_MICROSECOND: Final = timedelta(microseconds=1)


def new_id() -> str:
    """Returns a random id: 128 bits as 32 lower-case hexadecimal digits."""
    return secrets.token_hex(16)


def numbered_id(number: int) -> str:
    """Returns an id that sorts by a number. The first eight digits are the number modulo 2^32, the
    other 96 bits are random."""
    return f"{number % 2**32:08x}{secrets.token_hex(12)}"


def descending_id(instant: datetime) -> str:
    """Returns an id of 32 hexadecimal digits that sorts before the ids of earlier instants.

    The first 16 digits count down the microseconds since 1970, the others are random. Ids of the
    same microsecond are unique and have no order. Raises InvalidInput (`invalid_date`) for an
    instant before 1970 or without a zone.
    """
    if instant.tzinfo is None:
        raise InvalidInput("invalid_date", f"{instant} has no time zone: give one")
    elapsed = (instant - EPOCH) // _MICROSECOND
    if elapsed < 0:
        raise InvalidInput("invalid_date", f"{instant} is before 1970: no id can be made for it")
    return f"{_INSTANT_MAX - elapsed:016x}{secrets.token_hex(8)}"


def latest_id(instant: datetime) -> str:
    """Returns an id that sorts after the ids of this and of later instants, and before the ids of
    earlier instants."""
    return descending_id(instant)[:16] + "f" * 16


def is_id(text: str) -> bool:
    """Whether a text has the exact form of an id. A run's id becomes a part of addresses, so that
    an id from outside is checked first."""
    return _ID.fullmatch(text) is not None


def is_ahead(text: str, now: datetime) -> bool:
    """Whether a descending id is dated in the future: a clock was ahead when the id was made."""
    instant = instant_of(text)
    return instant is not None and instant > now + CLOCKS_APART_MAX


def newest_first(ids: Iterable[str], now: datetime) -> list[str]:
    """Returns descending ids, the newest first. Ids that are dated in the future come last: nobody
    knows when they were made, and they must not count as the newest for as long as they say."""
    return sorted(ids, key=lambda each: (is_ahead(each, now), each))


def instant_of(text: str) -> datetime | None:
    """Returns the instant of a descending id, UTC to the microsecond; None if `text` is no such
    id."""
    if not is_id(text):
        return None
    try:
        instant = EPOCH + (_INSTANT_MAX - int(text[:16], 16)) * _MICROSECOND
    except OverflowError:
        return None
    return instant.astimezone(UTC)
