"""Fields of Arvados's records as columns, and a filter on a field as an SQL condition.

A field that is null is equal to null only, and neither less nor greater than a value. `!=` and `not
in` are the opposites of `=` and `in`. So they also find fields that are null. `like` and `ilike`
find texts; `ilike` ignores the case of ASCII letters.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.filters import Filter
from ebbtide.doors.arvados.store.uuids import (
    GROUP,
    KINDS,
    USER,
    UUID_LENGTH,
    first_id,
    home_prefix,
    kind_of,
    root_uuid,
)
from ebbtide.errors import InvalidInput
from ebbtide.store.database.dialects import by_code_points, either
from ebbtide.store.database.rows import begins_with, behind
from ebbtide.store.database.schema import projects

Condition = sa.ColumnElement[bool]
_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITES: Final = {"!=": "=", "not in": "in"}
INTEGER_MAX: Final = 2**63 - 1


class Field(ABC):
    """A field that filters can name."""

    def condition(self, asked: Filter) -> Condition:
        """Returns a filter as a condition. Raises InvalidInput `invalid_argument`."""
        if asked.operator in _OPPOSITES:
            return opposite(self._equal(asked))
        if asked.operator in ("=", "in"):
            return self._equal(asked)
        return self._other(asked)

    def order(self) -> sa.ColumnElement[Any] | None:
        """Returns what lists are sorted by; None if the field gives no order."""
        return None

    @abstractmethod
    def key(self) -> sa.ColumnElement[Any]:
        """Returns an expression that is equal for records with equal values of the field."""

    @abstractmethod
    def _equal(self, asked: Filter) -> Condition:
        """Returns the condition that the field has one of the operands. Raises InvalidInput."""

    def _other(self, asked: Filter) -> Condition:
        raise asked.refused("this field has no such operator")


class ColumnField(Field):
    """A field that is a column."""

    def __init__(self, column: sa.ColumnElement[Any]) -> None:
        self.column = column

    def order(self) -> sa.ColumnElement[Any] | None:
        """Returns the column."""
        return self.column

    def key(self) -> sa.ColumnElement[Any]:
        """Returns the column."""
        return self.column

    def _equal(self, asked: Filter) -> Condition:
        values = [self._value(each, asked) for each in asked.operands if each is not None]
        found: list[Condition] = [self.column.in_(values)] if values else [sa.false()]
        if len(values) < len(asked.operands):
            found.append(self.column.is_(None))
        return sa.or_(*found)

    def _other(self, asked: Filter) -> Condition:
        compare = _COMPARED.get(asked.operator)
        column = self.order()
        if compare is None or column is None or asked.operand is None:
            return super()._other(asked)
        return _condition(compare(column, self._value(asked.operand, asked)))

    def _value(self, operand: Any, asked: Filter) -> Any:
        """Returns an operand as the column's type. Raises InvalidInput."""
        raise NotImplementedError


class TextField(ColumnField):
    """A text. Texts sort by their code points."""

    def order(self) -> sa.ColumnElement[Any] | None:
        """Returns the column, with an order that does not depend on the database's language."""
        return by_code_points(self.column)

    def _other(self, asked: Filter) -> Condition:
        if asked.operator not in ("like", "ilike"):
            return super()._other(asked)
        pattern = Pattern.parse(self._value(asked.operand, asked))
        matches = pattern.matches if asked.operator == "like" else pattern.matches_ascii
        return matches(self.column)

    def _value(self, operand: Any, asked: Filter) -> str:
        return require_text(operand, asked)


class NumberField(ColumnField):
    """A whole number."""

    def _value(self, operand: Any, asked: Filter) -> int:
        # Clients of the command line write numbers as text.
        text = str(operand).removeprefix("-")
        is_number = text.isascii() and text.isdigit() and len(text) < 20
        if isinstance(operand, bool) or not is_number or abs(int(operand)) > INTEGER_MAX:
            raise asked.refused("compare with a whole number")
        return int(operand)


class InstantField(ColumnField):
    """An instant: a column and a period after it."""

    def __init__(self, column: sa.ColumnElement[Any], *, after: timedelta = timedelta()) -> None:
        super().__init__(column)
        self._after = after

    def _value(self, operand: Any, asked: Filter) -> datetime:
        try:
            instant = datetime.fromisoformat(require_text(operand, asked))
            # Arvados writes nine digits of a second, of which the store has six.
            return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - self._after
        except (ValueError, OverflowError):
            raise asked.refused("compare with an instant such as 2026-03-01T12:30:00Z") from None


class DerivedField(Field):
    """A field that is no column. Each operand is a condition of its own."""

    def _equal(self, asked: Filter) -> Condition:
        return sa.or_(sa.false(), *(self._is(each, asked) for each in asked.operands))

    @abstractmethod
    def _is(self, operand: Any, asked: Filter) -> Condition:
        """Returns the condition that the field has a value. Raises InvalidInput."""


class FlagField(DerivedField):
    """True or false, as a condition."""

    def __init__(self, holds: Condition) -> None:
        self._holds = holds

    def key(self) -> sa.ColumnElement[Any]:
        """Returns 1 or 0."""
        return sa.case((self._holds, 1), else_=0)

    def _is(self, operand: Any, asked: Filter) -> Condition:
        if isinstance(operand, str) and operand.lower() in ("true", "false"):
            operand = operand.lower() == "true"
        if not isinstance(operand, bool):
            raise asked.refused("compare with true or false")
        return self._holds if operand else opposite(self._holds)


class ConstantField(Field):
    """A value that all records of a resource have."""

    def __init__(self, value: str | int | None) -> None:
        self._value = value

    def key(self) -> sa.ColumnElement[Any]:
        """Returns a constant."""
        return sa.literal(0)

    def _equal(self, asked: Filter) -> Condition:
        return sa.true() if self._value in asked.operands else sa.false()


class UuidField(TextField):
    """The id of a record, as a column."""

    def __init__(self, column: sa.ColumnElement[Any], kind: str) -> None:
        super().__init__(column)
        self._kind = kind

    def _other(self, asked: Filter) -> Condition:
        if asked.operator == "is_a":
            return is_a(asked, self._kind)
        return super()._other(asked)


class StoreIdField(DerivedField):
    """The id of a record that follows from the store's id."""

    def __init__(self, column: sa.ColumnElement[str], cluster: str, kind: str) -> None:
        self._column = column
        self._cluster = cluster
        self._kind = kind

    def order(self) -> sa.ColumnElement[Any] | None:
        """Returns the store's id, which sorts alike."""
        return self._column

    def key(self) -> sa.ColumnElement[Any]:
        """Returns the store's id."""
        return self._column

    def _is(self, operand: Any, asked: Filter) -> Condition:
        return sa.false() if operand is None else self.equals(require_text(operand, asked))

    def equals(self, uuid: str) -> Condition:
        """Returns the condition that the record has an id."""
        if kind_of(uuid) != self._kind or not uuid.startswith(f"{self._cluster}-"):
            return sa.false()
        return self._between(uuid, lambda each: each <= uuid)

    def _other(self, asked: Filter) -> Condition:
        if asked.operator == "is_a":
            return is_a(asked, self._kind)
        text = require_text(asked.operand, asked)
        if asked.operator in _COMPARED:
            is_strict = asked.operator in ("<", ">=")
            bound = self._from(lambda each: each < text if is_strict else each <= text)
            is_less = asked.operator in ("<", "<=")
            return self._column < bound if is_less else self._column >= bound
        if asked.operator not in ("like", "ilike"):
            return super()._other(asked)
        pattern = Pattern.parse(text)
        pattern = pattern.lowered if asked.operator == "ilike" else pattern
        if pattern.literal is not None:
            return self.equals(pattern.literal)
        prefix = pattern.prefix
        if prefix is None:
            raise asked.refused("a pattern for ids has a single % at its end")
        end = behind(prefix)
        return self._between(prefix, lambda each: end is None or each < end)

    def _between(self, begin: str, is_before_end: Callable[[str], bool]) -> Condition:
        return sa.and_(
            self._column >= self._from(lambda each: each < begin),
            self._column < self._from(is_before_end),
        )

    def _from(self, is_before: Callable[[str], bool]) -> str:
        return first_id(self._cluster, self._kind, is_before)


class OwnerField(DerivedField):
    """The owner of what is in the project of a column: a project, a user, or the root user."""

    def __init__(self, column: sa.ColumnElement[Any], cluster: str, repository_id: str) -> None:
        self._column = column
        self._cluster = cluster
        self._repository_id = repository_id
        self._group = StoreIdField(column, cluster, GROUP)

    def key(self) -> sa.ColumnElement[Any]:
        """Returns the id of the user of a home, and the store's id of another project. A user can
        have several homes, of which one is not in the trash."""
        home = projects.alias("home")
        name = sa.select(home.c.name).where(
            home.c.project_id == self._column,
            home.c.parent_id.is_(None),
            is_home_name(self._cluster, home.c.name),
        )
        return sa.func.coalesce(name.scalar_subquery(), self._column, "")

    def _is(self, operand: Any, asked: Filter) -> Condition:
        return sa.false() if operand is None else self.equals(require_text(operand, asked))

    def equals(self, uuid: str) -> Condition:
        """Returns the condition that the owner has an id."""
        if uuid == root_uuid(self._cluster):
            return self._column.is_(None)
        if kind_of(uuid) == USER:
            return self._column.in_(homes(self._repository_id).where(projects.c.name == uuid))
        return sa.and_(self._group.equals(uuid), sa.not_(self._is_home))

    @property
    def _is_home(self) -> Condition:
        """The condition that the owner is a user other than the root user."""
        return self._column.in_(homes(self._repository_id).where(is_home_name(self._cluster)))

    def _other(self, asked: Filter) -> Condition:
        if asked.operator != "is_a":
            return super()._other(asked)
        is_user = sa.or_(self._column.is_(None), self._is_home)
        return sa.or_(
            sa.and_(is_a(asked, USER), is_user), sa.and_(is_a(asked, GROUP), opposite(is_user))
        )


def is_home_name(cluster: str, name: sa.ColumnElement[Any] = projects.c.name) -> Condition:
    """Returns the condition that a project at the top, of this name, is the home of a user."""
    return sa.and_(sa.func.length(name) == UUID_LENGTH, *begins_with(name, home_prefix(cluster)))


def homes(repository_id: str) -> sa.Select[Any]:
    """Returns the query for the ids of the projects at the top, to which a condition on the name
    is added."""
    return sa.select(projects.c.project_id).where(
        projects.c.repository_id == repository_id, projects.c.parent_id.is_(None)
    )


def opposite(condition: Condition) -> Condition:
    """Returns the condition that holds where another one is false or null."""
    return sa.not_(sa.func.coalesce(condition, sa.false()))


def is_a(asked: Filter, kind: str) -> Condition:
    """Returns the condition that a record is of a kind that a filter names: true or false for
    all records. Raises InvalidInput."""
    kinds = asked.operand if isinstance(asked.operand, list) else [asked.operand]
    if not all(isinstance(each, str) for each in kinds):
        raise asked.refused("give a kind such as arvados#collection, or a list of kinds")
    return sa.true() if KINDS[kind] in kinds else sa.false()


def require_text(operand: Any, asked: Filter) -> str:
    """Returns an operand that the databases can compare. Raises InvalidInput."""
    if not isinstance(operand, str) or "\0" in operand or not _is_unicode(operand):
        raise asked.refused("compare with text")
    return operand


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _condition(found: Any) -> Condition:  # what a comparison of columns gives
    assert isinstance(found, sa.ColumnElement)
    return found


_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER = _UPPER.lower()


class Wildcard(Enum):
    """The parts of a pattern that stand for other characters."""

    ANY = "%"
    ONE = "_"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of the operators `like` and `ilike`, as literal characters and wildcards.

    In its text, `%` is any text, `_` is one character, and a backslash makes the next character
    literal. SQLite's LIKE ignores case. Its GLOB does not, and has other special characters.
    """

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

    def matches(self, column: sa.ColumnElement[str]) -> Condition:
        """Returns the condition that a column matches, with regard to case."""
        return either(
            on_sqlite=column.op("GLOB", is_comparison=True)(self._glob()),
            on_postgresql=column.like(self._like(), escape="\\"),
        )

    def matches_ascii(self, column: sa.ColumnElement[str]) -> Condition:
        """Returns the condition that a column matches if the case of ASCII letters is ignored."""
        lowered = either(
            # Without an extension, SQLite's function changes ASCII letters only.
            on_sqlite=sa.func.lower(column),
            on_postgresql=sa.func.translate(column, _UPPER, _LOWER),
        )
        return self.lowered.matches(lowered)

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
