"""Parts of statements: values in batches, and conditions for a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import sqlalchemy as sa

VALUES_PER_STATEMENT: Final = 500


def in_batches(values: Iterable[str]) -> Iterator[list[str]]:
    """Yields the values in their order, in batches of at most VALUES_PER_STATEMENT."""
    remaining = iter(values)
    while batch := list(islice(remaining, VALUES_PER_STATEMENT)):
        yield batch


def begins_with(column: sa.ColumnElement[str], prefix: str) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for a prefix, as a range. LIKE ignores case on SQLite, and uses no
    index there."""
    if not prefix:
        return []
    conditions: list[sa.ColumnElement[bool]] = [column >= prefix]
    end = behind(prefix)
    return conditions if end is None else [*conditions, column < end]


def behind(prefix: str) -> str | None:
    """Returns the first text that sorts after all texts with the prefix, or None if there is
    none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    code = ord(kept[-1]) + 1
    # Surrogates are no characters: a database does not accept them.
    return kept[:-1] + chr(0xE000 if code == 0xD800 else code)
