"""Groups: projects made, read, changed, deleted, restored and listed with their contents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ebbtide.doors.arvados.server.cluster import all_users
from ebbtide.doors.arvados.server.collections import listed_collection
from ebbtide.doors.arvados.server.discovery import (
    CONTENTS,
    LISTING,
    SELECT,
    SHARED,
    TRASH,
    UNIQUE,
)
from ebbtide.doors.arvados.server.records import (
    GivenFields,
    item_list,
    listing_of,
    selected,
    shared_record,
)
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes
from ebbtide.doors.arvados.store.groups import PROJECT, ContentsPlace, Group
from ebbtide.doors.arvados.store.lists import ListPage, ListQuery
from ebbtide.doors.arvados.store.trashable import SHARED_SETTABLE
from ebbtide.doors.arvados.store.uuids import GROUP, KINDS, kind_of
from ebbtide.errors import InvalidInput
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.items import Omitted
from ebbtide.text import shown

routes = ArvadosRoutes()

RECORD: Final = "group"
_ONE: Final = "/groups/{uuid:segment}"
_WRITING: Final = {**SELECT, **UNIQUE}


@routes.add("POST", "/groups", Role.WRITER, _WRITING, record=RECORD)
def create_group(call: ArvadosCall) -> dict[str, Any]:
    """Makes a project, in the user's home unless the request names an owner."""
    given = _given(call, {})
    properties = given.properties()
    made = call.arvados().groups.create(
        given.text("owner_uuid") or call.user_uuid,
        given.text("name") or "",
        description=given.text("description") or "",
        properties={} if isinstance(properties, Omitted) else properties,
        timers=given.timers(),
        ensure_unique_name=call.flag("ensure_unique_name"),
    )
    return selected(call, group_record(call, made))


@routes.add("GET", "/groups", Role.READER, {**LISTING, **TRASH})
def list_groups(call: ArvadosCall) -> dict[str, Any]:
    """Lists the projects."""
    page = call.arvados().groups.list(asked := listing_of(call))
    items = [selected(call, group_record(call, each)) for each in page.items]
    return item_list("group", items, asked, available=page.available)


@routes.add("GET", "/groups/contents", Role.READER, CONTENTS)
def list_all_contents(call: ArvadosCall) -> dict[str, Any]:
    """Lists projects and collections: those of an owner, or all."""
    return _contents(call, call.text("uuid"))


@routes.add("GET", _ONE + "/contents", Role.READER, CONTENTS)
def list_contents(call: ArvadosCall) -> dict[str, Any]:
    """Lists the projects and collections of an owner."""
    return _contents(call, call.name("uuid"))


@routes.add("GET", "/groups/shared", Role.READER, SHARED)
def list_shared(call: ArvadosCall) -> dict[str, Any]:
    """Lists the projects in the homes of other users, and those at the top that are nobody's.

    With `include=owner_uuid`, the answer also has their owners.
    """
    asked = listing_of(call)
    page = call.arvados().contents.shared(asked, except_of=call.user_uuid)
    return _list(call, page, asked)


@routes.add("GET", _ONE, Role.READER, {**SELECT, **TRASH})
def get_group(call: ArvadosCall) -> dict[str, Any]:
    """Returns one project."""
    found = call.arvados().groups.get(call.name("uuid"), include_trash=call.flag("include_trash"))
    return selected(call, group_record(call, found))


@routes.add("PUT", _ONE, Role.WRITER, {**_WRITING, **TRASH}, record=RECORD)
@routes.add("PATCH", _ONE, Role.WRITER, {**_WRITING, **TRASH}, record=RECORD)
def update_group(call: ArvadosCall) -> dict[str, Any]:
    """Changes the fields of a project that are given. A project in the trash is found only with
    `include_trash`."""
    groups = call.arvados().groups
    present = groups.get(call.name("uuid"), include_trash=call.flag("include_trash"))
    given = _given(call, group_record(call, present))
    if given.values.get("owner_uuid", "") is None:
        raise InvalidInput("invalid_argument", "owner_uuid cannot be null: leave it out")
    owner_uuid = given.text("owner_uuid")
    changed = groups.update(
        present.uuid,
        owner_uuid=Omitted.KEEP if owner_uuid is None else owner_uuid,
        name=given.changed_text("name"),
        description=given.changed_text("description"),
        properties=given.properties(),
        timers=given.timers(),
        ensure_unique_name=call.flag("ensure_unique_name"),
    )
    return selected(call, group_record(call, changed))


@routes.add("DELETE", _ONE, Role.WRITER, SELECT)
@routes.add("POST", _ONE + "/trash", Role.WRITER, SELECT)
def trash_group(call: ArvadosCall) -> dict[str, Any]:
    """Moves a project to the trash, with everything in it."""
    trashed = call.arvados().groups.trash(call.name("uuid"))
    return selected(call, group_record(call, trashed))


@routes.add("POST", _ONE + "/untrash", Role.WRITER, _WRITING)
def untrash_group(call: ArvadosCall) -> dict[str, Any]:
    """Restores a project from the trash, with everything in it."""
    restored = call.arvados().groups.untrash(
        call.name("uuid"), ensure_unique_name=call.flag("ensure_unique_name")
    )
    return selected(call, group_record(call, restored))


def group_record(call: ArvadosCall, group: Group) -> dict[str, Any]:
    """Returns the record of a project."""
    can_write = call.role_of(call.key).allows(Role.WRITER)
    return {
        "kind": KINDS[GROUP],
        "href": f"/groups/{group.uuid}",
        "etag": f"{group.uuid}-{group.modified_at.timestamp()}",
        "modified_by_user_uuid": group.owner_uuid,
        **shared_record(group),
        "group_class": group.group_class,
        "frozen_by_uuid": None,
        "can_write": can_write,
        "can_manage": can_write,
        "writable_by": [call.user_uuid] if can_write else [],
    }


def _given(call: ArvadosCall, present: Mapping[str, Any]) -> GivenFields:
    """Returns the fields of a project. Raises InvalidInput `invalid_argument` for other fields, and
    for another class: the store has no roles and no filters as groups."""
    given = GivenFields(call.fields(RECORD))
    given.require_known(SHARED_SETTABLE | {"group_class"}, present)
    group_class = given.text("group_class")
    if group_class not in (None, PROJECT):
        raise InvalidInput(
            "invalid_argument",
            f"groups of class {shown(group_class)} do not exist here: write {PROJECT}",
        )
    return given


def _contents(call: ArvadosCall, owner_uuid: str | None) -> dict[str, Any]:
    asked = listing_of(call)
    place = ContentsPlace(
        owner_uuid=owner_uuid,
        is_recursive=call.flag("recursive"),
        except_of=call.user_uuid if call.flag("exclude_home_project") else None,
    )
    page = call.arvados().contents.list(asked, place)
    return _list(call, page, asked)


def _list(call: ArvadosCall, page: ListPage[Any], asked: ListQuery) -> dict[str, Any]:
    records = [
        group_record(call, each) if isinstance(each, Group) else listed_collection(call, each)
        for each in page.items
    ]
    items = [selected(call, record) for record in records]
    found = item_list("object", items, asked, available=page.available)
    if _includes_owners(call):
        owners = {each.owner_uuid for each in page.items}
        found["included"] = [*_users(call, owners), *_groups(call, owners)]
    return found


def _includes_owners(call: ArvadosCall) -> bool:
    """Whether the list has the owners of its items too: `include` is `owner_uuid`, as a text or in
    a list. Raises InvalidInput `invalid_argument` for other values."""
    wanted = call.arguments.get("include") or []
    if isinstance(wanted, str):
        is_list = wanted.lstrip().startswith("[")
        wanted = call.value("include") if is_list else wanted.split(",")
    if wanted not in ([], ["owner_uuid"]):
        raise InvalidInput("invalid_argument", "include can only be owner_uuid")
    return bool(wanted)


def _users(call: ArvadosCall, uuids: Collection[str]) -> list[dict[str, Any]]:
    return [user for user in all_users(call) if user["uuid"] in uuids]


def _groups(call: ArvadosCall, uuids: Collection[str]) -> list[dict[str, Any]]:
    groups = call.arvados().groups
    wanted = sorted(uuid for uuid in uuids if kind_of(uuid) == GROUP)
    return [group_record(call, groups.get(uuid, include_trash=True)) for uuid in wanted]
