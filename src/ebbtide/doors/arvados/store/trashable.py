"""The fields that groups and collections share, each declared once: its type, column and value.

Arvados's timers are the store's `expires_at`: `trash_at` is this date, `delete_at` is one trash
time later, and `is_trashed` tells whether the date is over. All dates are an item's own, not those
of the projects above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import Field, FlagField, InstantField, TextField
from ebbtide.doors.arvados.store.properties import PropertiesField
from ebbtide.errors import InvalidInput
from ebbtide.retention.lifecycle import delete_at
from ebbtide.store.collections.items import KEEP, Keep, Omitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashable:
    """A group or a collection. All its fields but the ids are `SHARED_FIELDS`."""

    uuid: str
    owner_uuid: str
    name: str
    description: str
    properties: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
    trash_at: datetime | None
    delete_at: datetime | None
    is_trashed: bool


@dataclass(frozen=True, slots=True)
class Present:
    """The instant at which items are read, and the store's trash time."""

    now: datetime
    trash_time: timedelta


@dataclass(frozen=True, slots=True)
class SharedField:
    """A field: its type of JSON, what filters name, and its value.

    `column` gets the columns of `projects` or `collections`. `value` gets an item of the store, or
    its row.
    """

    json_type: str
    column: Callable[[Any, Present], Field]
    value: Callable[[Any, Present], Any]


def _same(name: str, json_type: str, kind: Callable[[sa.ColumnElement[Any]], Field]) -> SharedField:
    """Returns a field that is a column of the same name."""
    return SharedField(
        json_type,
        lambda columns, _present: kind(columns[name]),
        lambda item, _present: getattr(item, name),
    )


SHARED_FIELDS: Final[Mapping[str, SharedField]] = {
    "name": _same("name", "string", TextField),
    "description": _same("description", "text", TextField),
    "properties": _same("properties", "Hash", PropertiesField),
    "created_at": _same("created_at", "datetime", InstantField),
    "modified_at": _same("modified_at", "datetime", InstantField),
    "trash_at": SharedField(
        "datetime",
        lambda columns, _present: InstantField(columns.expires_at),
        lambda item, _present: item.expires_at,
    ),
    "delete_at": SharedField(
        "datetime",
        lambda columns, present: InstantField(columns.expires_at, after=present.trash_time),
        lambda item, present: delete_at(item.expires_at, present.trash_time),
    ),
    "is_trashed": SharedField(
        "boolean",
        lambda columns, present: FlagField(columns.expires_at <= present.now),
        lambda item, present: item.expires_at is not None and item.expires_at <= present.now,
    ),
}
SHARED_SETTABLE: Final = frozenset(("owner_uuid", *SHARED_FIELDS)) - {"created_at", "modified_at"}
"""The fields of both that requests can set."""


def shared_columns(columns: Any, present: Present) -> dict[str, Field]:  # the columns of a table
    """Returns what filters name, by the names of the shared fields."""
    return {name: each.column(columns, present) for name, each in SHARED_FIELDS.items()}


def shared_values(item: Any, present: Present) -> dict[str, Any]:  # an item of the store, or a row
    """Returns the values of the shared fields."""
    return {name: each.value(item, present) for name, each in SHARED_FIELDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """The timers that a client asks for. Each may be left out."""

    trash_at: datetime | Keep | None = KEEP
    delete_at: datetime | Keep | None = KEEP
    is_trashed: bool | Keep = KEEP

    def expires_at(
        self, *, present: datetime | None, now: datetime, trash_time: timedelta
    ) -> datetime | Keep | None:
        """Returns the `expires_at` to store, or KEEP.

        `present` is the item's own date. `is_trashed` decides only if there is no `trash_at`. A
        `delete_at` must be the one that the server computes, so that what a client sends and what
        it reads back agree. Raises InvalidInput `invalid_date`.
        """
        asked = self.trash_at
        is_over = present is not None and present <= now
        is_asked = isinstance(asked, Omitted) and not isinstance(self.is_trashed, Omitted)
        if is_asked and self.is_trashed != is_over:
            asked = now if self.is_trashed else None
        if isinstance(self.delete_at, Omitted):
            return asked
        date = present if isinstance(asked, Omitted) else asked
        # A date in the past becomes the present when it is stored.
        if date is not None and date is not present:
            date = max(date, now)
        computed = delete_at(date, trash_time)
        if self.delete_at != computed:
            text = "null" if computed is None else computed.isoformat()
            raise InvalidInput(
                "invalid_date",
                f"delete_at follows from trash_at: leave it out, or write {text}",
            )
        return asked
