"""Values of the command line: their completion in a shell, and how their texts are read.

Completions are fast and silent. Not for: anything that opens or changes a store; durations
(`ebbtide.durations`), dates (`ebbtide.retention.dates`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import typer

from ebbtide.durations import PERIOD_FORMS, parse_period
from ebbtide.errors import InvalidInput
from ebbtide.retention.dates import DATE_FORMS, parse_date
from ebbtide.text import shown

VARIABLE: Final = "_EBBTIDE_COMPLETE"
"""The variable that a shell sets to ask for completions. The name is Typer's."""

Complete = Callable[[typer.Context, str], list[str]]
"""A function of the command line and the beginning of a word. Returns all completions."""

_SQLITE: Final = "sqlite:///"

LAST: Final = datetime.max.replace(tzinfo=UTC)
WHEN_FORMS: Final = f"A date, {DATE_FORMS}, or a period from now, such as 30d."
_PERIOD_LIKE = re.compile(r"(?:[0-9]+[a-zA-Z]+)+(?<![zZ])")
"""Numbers with letters after them, which are no instant in UTC."""


def _completing(*kinds: str) -> Complete:
    """Returns a completion by the known names of these kinds."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from ebbtide.store.completions import known_names

        database = _database(context)
        if database is None:
            return []
        repository = str(context.params.get("repository") or "")
        now = datetime.now(UTC)
        return [
            name
            for kind in kinds
            for name in known_names(database, kind, incomplete, now=now, repository=repository)
        ]

    return complete


repositories: Final = _completing("repositories")
branches: Final = _completing("branches")
tags: Final = _completing("tags")
refs: Final = _completing("branches", "tags")
runs: Final = _completing("runs")
purges: Final = _completing("purges")
keys: Final = _completing("keys")


def one_of(*words: str) -> Complete:
    """Returns a completion by a few fixed words."""

    def complete(_context: typer.Context, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _database(context: typer.Context) -> Path | None:
    """Returns the SQLite file of the store that the command line or the environment names."""
    given = context.params.get("store") or context.find_root().params.get("store")
    url = os.environ.get("EBBTIDE_DATABASE_URL")
    if url is not None:
        return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None
    directory = given or os.environ.get("EBBTIDE_STORE")
    from ebbtide.store.completions import DATABASE_FILE

    return None if not directory else Path(directory) / DATABASE_FILE


def text_of(file: str) -> str:
    """Returns the text of a file in UTF-8; `-` is stdin. Raises OSError and UnicodeDecodeError."""
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def parse_when(text: str, now: datetime, *, before: bool = False) -> datetime:
    """Parses a date as `parse_date` does, or a period from `now`: after it, or before it.

    Raises InvalidInput `invalid_date`, or `invalid_duration` for a period that could mean months or
    is too long.
    """
    if _PERIOD_LIKE.fullmatch(text.strip()):
        period = parse_period(text)
        # The longest period is a hundred years.
        return now - period if before else later(now, period)
    return parse_date(text, f"write {DATE_FORMS}, or a period such as {PERIOD_FORMS}")


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
