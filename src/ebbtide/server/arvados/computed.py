"""Lists of records that are in no table, such as users: filtered, sorted and cut here.

Not for: collections, projects and links, whose lists the database makes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.server.arvados.discovery import FIELDS
from ebbtide.server.arvados.given import listing_of, selected
from ebbtide.server.arvados.records import item_list
from ebbtide.server.arvados.routing import ArvadosCall
from ebbtide.store.arvados.filters import Filter

_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def computed_list(
    call: ArvadosCall, kind: str, records: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the page of a list that a request asks for. Raises InvalidInput
    `invalid_argument`."""
    asked = listing_of(call)
    known = FIELDS[call.route.resource]
    for wanted in asked.filters:
        if wanted.key is not None or _name(wanted.field) not in known:
            raise wanted.refused("these records have no such field")
    found = [each for each in records if all(_matches(each, wanted) for wanted in asked.filters)]
    for order in reversed(asked.order):
        if _name(order.field) not in known:
            raise InvalidInput("invalid_argument", f"{shown(order.field)} gives no order")
        found.sort(key=partial(_key, order.field), reverse=order.is_descending)
    if asked.distinct_by is not None:
        found = list(
            {str([each.get(name) for name in asked.distinct_by]): each for each in found}.values()
        )
    items = [selected(call, each) for each in found[asked.offset :][: asked.limit]]
    available = len(found) if asked.is_counted else None
    return item_list(kind, items, offset=asked.offset, limit=asked.limit, available=available)


def _matches(record: Mapping[str, Any], asked: Filter) -> bool:
    """Whether a record has what a filter wants. Raises InvalidInput `invalid_argument`."""
    found = record.get(_name(asked.field))
    if asked.operator in ("=", "in"):
        return found in asked.operands
    if asked.operator in ("!=", "not in"):
        return found not in asked.operands
    if asked.operator in _COMPARED and isinstance(asked.operand, str):
        return isinstance(found, str) and _COMPARED[asked.operator](found, asked.operand)
    raise asked.refused("this list has =, !=, in and not in; and <, <=, > and >= for texts")


def _name(field: str) -> str:
    return field.rpartition(".")[2]


def _key(field: str, record: Mapping[str, Any]) -> tuple[bool, Any]:
    found = record.get(_name(field))
    return found is None, "" if found is None else found
