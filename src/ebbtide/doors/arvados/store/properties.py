"""Filters on properties: JSON objects that users attach to collections, projects and links.

`[properties.NAME, OPERATOR, VALUE]` is about one property, `[properties, exists, NAME]` too.
Equality is that of JSON values, which must be text, numbers, truth values or null. `contains` is
true for a list with a text, and for the text itself. Other operators compare texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import (
    INTEGER_MAX,
    Condition,
    Field,
    TextField,
    opposite,
    require_text,
)
from ebbtide.doors.arvados.store.filters import Filter, check_key
from ebbtide.store.database.dialects import either


class PropertiesField(Field):
    """A column with a JSON object."""

    def __init__(self, column: sa.ColumnElement[Any]) -> None:
        self._column = column

    def key(self) -> sa.ColumnElement[Any]:
        """Returns the JSON as text."""
        return sa.cast(self._column, sa.Text)

    def condition(self, asked: Filter) -> Condition:
        """Returns a filter as a condition. Raises InvalidInput `invalid_argument`."""
        if asked.key is None:
            return self._of_all(asked)
        return super().condition(asked)

    def _of_all(self, asked: Filter) -> Condition:
        """Returns a filter on the whole object."""
        if asked.operator == "exists" and isinstance(asked.operand, str):
            check_key(asked.operand)
            return _Property(self._column, asked.operand).exists
        if asked.operator in ("=", "!=") and asked.operand == {}:
            is_empty = sa.cast(self._column, sa.Text) == "{}"
            return is_empty if asked.operator == "=" else opposite(is_empty)
        raise asked.refused("write properties.NAME, or [properties, exists, NAME]")

    def _equal(self, asked: Filter) -> Condition:
        for each in asked.operands:
            is_large = isinstance(each, int) and abs(each) > INTEGER_MAX
            if isinstance(each, (dict, list)) or is_large:
                raise asked.refused("compare with text, a number, true, false or null")
            if isinstance(each, str):
                require_text(each, asked)
        found = self._one(asked)
        return sa.or_(sa.false(), *(found.equals(each) for each in asked.operands))

    def _other(self, asked: Filter) -> Condition:
        found = self._one(asked)
        if asked.operator == "exists":
            if not isinstance(asked.operand, bool):
                raise asked.refused("write true or false")
            return found.exists if asked.operand else opposite(found.exists)
        if asked.operator == "contains":
            wanted = asked.operand if isinstance(asked.operand, list) else [asked.operand]
            if not wanted:
                raise asked.refused("give text, or a list of texts")
            return sa.and_(*(found.contains(require_text(each, asked)) for each in wanted))
        if asked.operator == "is_a":
            raise asked.refused("this field has no such operator")
        text = TextField(found.text)
        return sa.and_(found.is_text, text.condition(asked))

    def _one(self, asked: Filter) -> _Property:
        assert asked.key is not None
        return _Property(self._column, asked.key)


class _Property:
    """One property, as expressions for both databases."""

    def __init__(self, column: sa.ColumnElement[Any], key: str) -> None:
        self._on_sqlite = _OnSqlite(column, key)
        self._on_postgresql = _OnPostgresql(column, key)

    @property
    def text(self) -> sa.ColumnElement[Any]:
        return self._either(lambda each: each.text)

    @property
    def exists(self) -> Condition:
        return self._either(lambda each: each.kind.is_not(None))

    @property
    def is_text(self) -> Condition:
        return self._either(lambda each: each.kind == each.text_kind)

    def equals(self, value: Any) -> Condition:
        return self._either(lambda each: each.equals(value))

    def contains(self, text: str) -> Condition:
        return self._either(lambda each: sa.or_(each.equals(text), each.lists(text)))

    def _either(
        self, expression: Callable[[_OnSqlite | _OnPostgresql], sa.ColumnElement[Any]]
    ) -> sa.ColumnElement[Any]:
        return either(
            on_sqlite=expression(self._on_sqlite), on_postgresql=expression(self._on_postgresql)
        )


class _OnPostgresql:
    text_kind: Final = "string"

    def __init__(self, column: sa.ColumnElement[Any], key: str) -> None:
        self._value: sa.ColumnElement[Any] = column.op("->")(sa.cast(key, sa.Text))
        self.text: sa.ColumnElement[Any] = sa.type_coerce(
            column.op("->>")(sa.cast(key, sa.Text)), sa.Text
        )
        self.kind: sa.ColumnElement[Any] = sa.func.json_typeof(self._value)

    def equals(self, value: Any) -> Condition:
        return sa.cast(self._value, sa.Text) == json.dumps(value)

    def lists(self, text: str) -> Condition:
        # Without the CASE, PostgreSQL would refuse the elements of what is no list.
        listed = sa.case((self.kind == "array", self._value), else_=sa.literal([], sa.JSON))
        element = sa.func.json_array_elements(listed).table_valued("value", name="element")
        is_in = sa.select(sa.literal(1)).select_from(element)
        return sa.exists(is_in.where(sa.cast(element.c.value, sa.Text) == json.dumps(text)))


class _OnSqlite:
    """Paths of JSON are not used: old versions of SQLite do not find names that are written with
    escapes."""

    text_kind: Final = "text"

    def __init__(self, column: sa.ColumnElement[Any], key: str) -> None:
        self._pairs = sa.func.json_each(column).table_valued("key", "value", "type")
        self._mine = self._pairs.c.key == key
        self.text = self._selected(sa.type_coerce(self._pairs.c.value, sa.Text))
        self.kind = self._selected(sa.type_coerce(self._pairs.c.type, sa.Text))

    def equals(self, value: Any) -> Condition:
        if value is None or isinstance(value, bool):
            return self.kind == json.dumps(value)
        kind = {str: "text", int: "integer", float: "real"}[type(value)]
        found = self._selected(sa.type_coerce(self._pairs.c.value, sa.types.NullType()))
        return sa.and_(self.kind == kind, found == value)

    def lists(self, text: str) -> Condition:
        pair = self._pairs.c
        listed = sa.case((pair.type == "array", pair.value), else_="[]")
        element = sa.func.json_each(listed).table_valued("value", "type", name="element")
        is_in = sa.select(sa.literal(1)).select_from(self._pairs.join(element, sa.true()))
        return sa.exists(is_in.where(self._mine, element.c.type == "text", element.c.value == text))

    def _selected(self, value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.select(value).where(self._mine).scalar_subquery()
