"""Writes counts with their nouns in messages. Not for: sizes and dates, which only the command line
and the pages write."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """Returns a count with its noun: `1 file`, `1,234 files`. `several` is for plurals that need
    more than an s: `1 file stays`, `2 files stay`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
