"""Patterns of the operators `like` and `ilike`: `%` is any text, `_` is one character, and a
backslash makes the next character literal.

SQLite's LIKE ignores case. Its GLOB does not, and has other special characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from ebbtide.errors import InvalidInput

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER = _UPPER.lower()


class Wildcard(Enum):
    """The parts of a pattern that stand for other characters."""

    ANY = "%"
    ONE = "_"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, as literal characters and wildcards."""

    parts: tuple[str | Wildcard, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Returns the pattern of a text. Raises InvalidInput `invalid_argument`."""
        parts: list[str | Wildcard] = []
        characters = iter(text)
        for character in characters:
            if character == "\\":
                literal = next(characters, None)
                if literal is None:
                    raise InvalidInput(
                        "invalid_argument", "a pattern ends in a backslash: write two of them"
                    )
                parts.append(literal)
            elif character in "%_":
                parts.append(Wildcard(character))
            else:
                parts.append(character)
        return cls(tuple(parts))

    @property
    def lowered(self) -> Pattern:
        """The pattern with ASCII letters in lower case."""
        return Pattern(
            tuple(
                part if isinstance(part, Wildcard) or not part.isascii() else part.lower()
                for part in self.parts
            )
        )

    @property
    def prefix(self) -> str | None:
        """The text before a single `%` at the end; None for other patterns."""
        *begin, last = (*self.parts, None)[:-1] or (None,)
        if last is not Wildcard.ANY:
            return None
        return _literal(tuple(begin))

    @property
    def literal(self) -> str | None:
        """The only text that matches; None if there are wildcards."""
        return _literal(self.parts)

    def matches(self, column: sa.ColumnElement[str], dialect_name: str) -> sa.ColumnElement[bool]:
        """Returns the condition that a column matches, with regard to case."""
        if dialect_name == "sqlite":
            return column.op("GLOB", is_comparison=True)(self._glob())
        return column.like(self._like(), escape="\\")

    def matches_ascii(
        self, column: sa.ColumnElement[str], dialect_name: str
    ) -> sa.ColumnElement[bool]:
        """Returns the condition that a column matches if the case of ASCII letters is ignored."""
        if dialect_name == "sqlite":
            # Without an extension, SQLite's function changes ASCII letters only.
            lowered = sa.func.lower(column)
        else:
            lowered = sa.func.translate(column, _UPPER, _LOWER)
        return self.lowered.matches(lowered, dialect_name)

    def _glob(self) -> str:
        signs = {Wildcard.ANY: "*", Wildcard.ONE: "?"}
        return "".join(
            signs[part] if isinstance(part, Wildcard) else f"[{part}]" if part in "*?[" else part
            for part in self.parts
        )

    def _like(self) -> str:
        return "".join(
            part.value if isinstance(part, Wildcard) else f"\\{part}" if part in "%_\\" else part
            for part in self.parts
        )


def _literal(parts: tuple[str | Wildcard | None, ...]) -> str | None:
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None
