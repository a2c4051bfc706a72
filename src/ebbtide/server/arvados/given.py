"""The fields of a record, as a request for a change gives them, and the wishes for a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.server.arvados.routing import ArvadosCall
from ebbtide.store.arvados.filters import parse_filters, parse_order, parse_select
from ebbtide.store.arvados.listing import ListQuery
from ebbtide.store.arvados.trashing import Timers
from ebbtide.store.collections.updates import KEEP, Keep

LIMIT: Final = 100
"""Items of a page if the request does not say."""


@dataclass(frozen=True, slots=True)
class GivenFields:
    """Fields of a record by name. A field that is missing keeps its value."""

    values: Mapping[str, Any]

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
        found = self.values.get(name)
        if found is None:
            return KEEP
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
    names = parse_select(call.value("select")) if call.flag("distinct") else None
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


def selected(call: ArvadosCall, record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record with the fields that a request selects. Names that the record does not have
    are left out. Raises InvalidInput `invalid_argument`."""
    names = parse_select(call.value("select"))
    if names is None:
        return record
    wanted = {name.rpartition(".")[2] for name in names} | {"kind"}
    return {name: value for name, value in record.items() if name in wanted}
