"""Makes text from outside (file names, keys, messages of other programs) safe to print.

Not for: HTML, JSON or a shell, which have their own escaping.
"""

from __future__ import annotations

import re
from typing import Final

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
