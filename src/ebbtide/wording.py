"""Numbers of things in messages. Not for: sizes and dates, which only the command line and the
pages write out."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """`1 file`, `1,234 files`. `several` is for words that an s is not enough for: `1 file stays`,
    `2 files stay`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
