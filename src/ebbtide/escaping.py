"""Text from outside (names of files, keys, what other programs say), made safe to print.

Not for: HTML, JSON or a shell, each of which has an escaping of its own.
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines and paragraphs, what turns the direction of writing round, and
halves of characters, which stand for bytes that are no UTF-8."""
_UNSAFE_IN_LINES: Final = re.compile(r"(?![\n\t])" + _UNSAFE.pattern)
SHOWN_MAX: Final = 100
"""How many characters of a word from outside a message repeats."""


def shown(text: str, most: int = SHOWN_MAX) -> str:
    """`text` as messages quote it: cut where it is long."""
    return repr(text if len(text) <= most else text[:most] + "…")


def escaped(text: str) -> str:
    r"""`text` with what could move a cursor, end a line or not be written, as `\n` or `\x1b`."""
    return _UNSAFE.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """The same, but for line feeds and tabs, of a text that has lines of its own."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
