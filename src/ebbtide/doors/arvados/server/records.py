"""Records and lists in Arvados's form, and the fields of requests for changes and for lists."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from ebbtide.doors.arvados.server.discovery import FIELDS
from ebbtide.doors.arvados.server.routes import ArvadosCall
from ebbtide.doors.arvados.store.filters import Filter, parse_filters, parse_order, parse_select
from ebbtide.doors.arvados.store.lists import ListQuery
from ebbtide.doors.arvados.store.trashable import SHARED_FIELDS, Timers, Trashable
from ebbtide.errors import InvalidInput
from ebbtide.store.collections.items import KEEP, Keep
from ebbtide.text import shown

LIMIT: Final = 100
"""Items of a page if the request does not say."""

_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

DERIVED: Final = frozenset(
    (
        "kind",
        "etag",
        "href",
        "created_at",
        "modified_at",
        "modified_by_user_uuid",
        "modified_by_client_uuid",
    )
)
"""Fields that the server alone sets. Requests may have them, as in Arvados, so that a record that
was read can be sent back."""


def instant_text(instant: datetime | None) -> str | None:
    """Returns an instant with nine digits of a second, as Arvados writes it."""
    if instant is None:
        return None
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z"


def shared_record(item: Trashable) -> dict[str, Any]:
    """Returns the ids and the shared fields of a group or a collection, as in its record."""
    shown_as: Mapping[str, Callable[[Any], Any]] = {
        "datetime": instant_text,
        "text": lambda text: text or None,
        "Hash": dict,
    }
    record: dict[str, Any] = {"uuid": item.uuid, "owner_uuid": item.owner_uuid}
    for name, field in SHARED_FIELDS.items():
        value = getattr(item, name)
        record[name] = shown_as[field.json_type](value) if field.json_type in shown_as else value
    return record


def item_list(
    kind: str, items: Sequence[dict[str, Any]], asked: ListQuery, *, available: int | None
) -> dict[str, Any]:
    """Returns the page of a list that a request `asked` for. `available` is the number of items in
    the whole list; the answer leaves it out if it is None."""
    found: dict[str, Any] = {
        "kind": f"arvados#{kind}List",
        "etag": "",
        "self_link": "",
        "offset": asked.offset,
        "limit": asked.limit,
        "items": list(items),
    }
    if available is not None:
        found["items_available"] = available
    return found


@dataclass(frozen=True, slots=True)
class GivenFields:
    """Fields of a record by name. A field that is missing keeps its value."""

    values: Mapping[str, Any]

    def require_known(self, known: frozenset[str], present: Mapping[str, Any]) -> None:
        """Checks that each field can be set, or has the value of the `present` record. Raises
        InvalidInput `invalid_argument`."""
        for name, value in self.values.items():
            if name in known or name in DERIVED:
                continue
            if name not in present or present[name] != value:
                why = "only the server sets it" if name in present else "there is no such field"
                raise InvalidInput(
                    "invalid_argument",
                    f"{shown(name)} cannot be set: {why}. Leave it out. The fields of a request: "
                    + ", ".join(sorted(known)),
                )

    def text(self, name: str) -> str | None:
        """Returns a text; None if it is missing, null or empty. Raises InvalidInput
        `invalid_argument`."""
        found = self.values.get(name)
        if found is not None and not isinstance(found, str):
            raise InvalidInput("invalid_argument", f"{name} must be text")
        return found or None

    def changed_text(self, name: str) -> str | Keep:
        """Returns a text, empty if it is null; KEEP if it is missing. Raises InvalidInput
        `invalid_argument`."""
        return self.text(name) or "" if name in self.values else KEEP

    def properties(self) -> Mapping[str, Any] | Keep:
        """Returns the properties, or KEEP. Raises InvalidInput `invalid_argument`."""
        if "properties" not in self.values:
            return KEEP
        found = self.values["properties"]
        if found is not None and not isinstance(found, Mapping):
            raise InvalidInput("invalid_argument", "properties must be an object")
        return found or {}

    def flag(self, name: str) -> bool | Keep:
        """Returns true or false, or KEEP. Raises InvalidInput `invalid_argument`."""
        if name not in self.values:
            return KEEP
        found = self.values[name]
        if not isinstance(found, bool):
            raise InvalidInput("invalid_argument", f"{name} must be true or false")
        return found

    def instant(self, name: str) -> datetime | Keep | None:
        """Returns an instant, in UTC if it has no zone; or KEEP. Raises InvalidInput
        `invalid_date`, `invalid_argument`."""
        if name not in self.values:
            return KEEP
        text = self.text(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput("invalid_date", f"{name} is no date: {shown(text)}") from None
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def timers(self) -> Timers:
        """Returns the timers. Raises InvalidInput as `instant` and `flag` do."""
        return Timers(
            trash_at=self.instant("trash_at"),
            delete_at=self.instant("delete_at"),
            is_trashed=self.flag("is_trashed"),
        )


def listing_of(call: ArvadosCall) -> ListQuery:
    """Returns what a request for a list asks for. Raises InvalidInput `invalid_argument`."""
    count = call.text("count") or "exact"
    if count not in ("exact", "none"):
        raise InvalidInput("invalid_argument", f"count is exact or none, not {shown(count)}")
    if call.flag("include_old_versions"):
        raise InvalidInput(
            "invalid_argument",
            "old versions have no records here: 'ebbtide collection versions' lists them",
        )
    names = selection(call)
    if not call.flag("distinct"):
        names = None
    # Items have their kind always, and items of different kinds are never equal.
    distinct_by = names and {name.rpartition(".")[2] for name in names} - {"kind"}
    order = call.arguments.get("order")
    is_list = isinstance(order, str) and order.lstrip().startswith("[")
    return ListQuery(
        filters=parse_filters(call.value("filters")),
        order=parse_order(call.value("order") if is_list else order or None),
        limit=call.number("limit", LIMIT, most=call.store.settings.server_list_max),
        offset=call.number("offset", 0),
        is_counted=count == "exact",
        include_trash=call.flag("include_trash"),
        distinct_by=None if distinct_by is None else tuple(sorted(distinct_by)),
    )


def selection(call: ArvadosCall) -> tuple[str, ...] | None:
    """Returns the names of the fields that a request selects; None if it selects none.

    Lists of several kinds have the fields of all their kinds. Raises InvalidInput
    `invalid_argument` for a field that no record of the route has.
    """
    names = parse_select(call.value("select"))
    known = FIELDS[call.route.resource]
    unknown = [name for name in names or () if name.rpartition(".")[2] not in known]
    if unknown:
        raise InvalidInput("invalid_argument", f"there is no field {shown(unknown[0])} to select")
    return names


def selected(call: ArvadosCall, record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record with the fields that a request selects. Raises InvalidInput
    `invalid_argument`."""
    names = selection(call)
    if names is None:
        return record
    wanted = {name.rpartition(".")[2] for name in names} | {"kind"}
    return {name: value for name, value in record.items() if name in wanted}


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
    return item_list(kind, items, asked, available=available)


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
