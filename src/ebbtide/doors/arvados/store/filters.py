"""Filters, order and selection of Arvados's lists, as clients write them.

A filter is `[FIELD, OPERATOR, OPERAND]`. Not for: what a field is in the database (`fields`).
Source: Arvados's documentation, "Common resource methods".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.store.names import check_text
from ebbtide.text import shown

OPERATORS: Final = (
    "=",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "in",
    "not in",
    "like",
    "ilike",
    "exists",
    "contains",
    "is_a",
)
FILTERS_MAX: Final = 100
OPERANDS_MAX: Final = 5000
KEY_BYTES_MAX: Final = 1024
SUBPROPERTY: Final = "properties."
KIND_FIELD: Final = "uuid"


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition. `key` names a property, if the field is `properties`."""

    field: str
    operator: str
    operand: Any  # a JSON value
    key: str | None = None

    @property
    def label(self) -> str:
        """The condition's field and operator, for messages."""
        name = self.field if self.key is None else f"{SUBPROPERTY}{self.key}"
        return f"{shown(name)} {self.operator}"

    def refused(self, why: str) -> InvalidInput:
        """Returns the error for this filter."""
        return InvalidInput("invalid_argument", f"the filter {self.label}: {why}")

    @property
    def operands(self) -> tuple[Any, ...]:
        """The values to compare with: those of the list of `in` and `not in`, or the only one.
        Raises InvalidInput."""
        if self.operator not in ("in", "not in"):
            return (self.operand,)
        if not isinstance(self.operand, list):
            raise self.refused("give a list")
        if len(self.operand) > OPERANDS_MAX:
            raise self.refused(f"give at most {OPERANDS_MAX} values")
        return tuple(self.operand)


@dataclass(frozen=True, slots=True)
class Ordering:
    """One field to sort by."""

    field: str
    is_descending: bool = False


def parse_filters(value: Any) -> tuple[Filter, ...]:
    """Returns the filters of a JSON value, which is a list or None.

    Raises InvalidInput `invalid_argument`.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > FILTERS_MAX:
        raise InvalidInput(
            "invalid_argument", f"filters must be a list of at most {FILTERS_MAX} filters"
        )
    return tuple(_filter(each) for each in value)


def _filter(value: Any) -> Filter:
    is_filter = isinstance(value, list) and len(value) == 3
    if not is_filter or not all(isinstance(part, str) for part in value[:2]):
        raise InvalidInput(
            "invalid_argument", "a filter is a list of a field, an operator and a value"
        )
    field, operator, operand = value
    name = {"<>": "!="}.get(operator.lower(), operator.lower())
    if name not in OPERATORS:
        raise InvalidInput("invalid_argument", f"filters have no operator {shown(operator)}")
    key = None
    begin, dot, rest = field.partition(SUBPROPERTY)
    if dot and begin in ("", "collections.", "groups."):
        field, key = f"{begin}properties", rest
        check_key(key)
    return Filter(field, name, operand, key)


def check_key(key: str) -> None:
    """Checks the name of a property. Raises InvalidInput `invalid_argument`."""
    check_text("the name of a property", key, bytes_max=KEY_BYTES_MAX)


def parse_order(value: Any) -> tuple[Ordering, ...]:
    """Returns the order of a list of texts such as `name desc`, or of one text with commas.

    Raises InvalidInput `invalid_argument`.
    """
    if value is None:
        return ()
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > FILTERS_MAX:
        raise InvalidInput("invalid_argument", "order must be a list of texts")
    return tuple(_ordering(text) for text in texts)


def _ordering(text: Any) -> Ordering:
    words = text.split() if isinstance(text, str) else []
    direction = words[1].lower() if len(words) == 2 else "asc"
    if len(words) not in (1, 2) or direction not in ("asc", "desc"):
        raise InvalidInput("invalid_argument", "an order is a field, or a field and asc or desc")
    return Ordering(words[0], is_descending=direction == "desc")


def parse_select(value: Any) -> tuple[str, ...] | None:
    """Returns the selected fields; None if all are selected. Raises InvalidInput
    `invalid_argument`."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInput("invalid_argument", "select must be a list of fields")
    return tuple(value)


def of_resource(
    filters: Sequence[Filter], resource: str, resources: Sequence[str]
) -> tuple[Filter, ...]:
    """Returns the filters that concern a resource, such as `groups`, in a list of `resources`.

    `groups.name` is the name of a group: other resources have no such filter.
    """
    found: list[Filter] = []
    for each in filters:
        prefix, dot, field = each.field.partition(".")
        if dot and prefix == resource:
            found.append(replace(each, field=field))
        elif not dot or prefix not in resources:
            found.append(each)
    return tuple(found)
