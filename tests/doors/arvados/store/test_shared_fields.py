"""The fields that groups and collections share are declared once, and both have all of them."""

from __future__ import annotations

import dataclasses

from ebbtide.doors.arvados.server.collections import SETTABLE
from ebbtide.doors.arvados.server.discovery import RESOURCES
from ebbtide.doors.arvados.store.groups import Group
from ebbtide.doors.arvados.store.listed_collections import ListedCollection
from ebbtide.doors.arvados.store.trashable import (
    SHARED_FIELDS,
    SHARED_SETTABLE,
    Timers,
    Trashable,
)


def names(record: type) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def test_both_records_have_the_shared_fields() -> None:
    assert names(Trashable) == {"uuid", "owner_uuid", *SHARED_FIELDS}
    assert names(Trashable) <= names(Group)
    assert names(Trashable) <= names(ListedCollection)


def test_clients_are_told_of_the_shared_fields_with_one_type() -> None:
    told = {each.name: each.fields for each in RESOURCES}
    for name, field in SHARED_FIELDS.items():
        assert told["groups"][name] == told["collections"][name] == field.json_type


def test_requests_can_set_the_shared_fields_except_dates_of_the_server() -> None:
    assert names(Timers) < SHARED_SETTABLE < SETTABLE
    assert names(Trashable) - SHARED_SETTABLE == {"uuid", "created_at", "modified_at"}
