"""Links: made, read, changed, deleted and listed."""

from __future__ import annotations

from typing import Any, Final

from ebbtide.doors.arvados.server.discovery import LISTING, SELECT
from ebbtide.doors.arvados.server.records import (
    GivenFields,
    instant_text,
    item_list,
    listing_of,
    selected,
)
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes
from ebbtide.doors.arvados.store.links import Link
from ebbtide.doors.arvados.store.uuids import KINDS, LINK, kind_of
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.items import Omitted

routes = ArvadosRoutes()

RECORD: Final = "link"
SETTABLE: Final = frozenset(("link_class", "name", "tail_uuid", "head_uuid", "properties"))
"""The fields that requests can set. Only the name and the properties can change later."""
_ONE: Final = "/links/{uuid:segment}"


@routes.add("POST", "/links", Role.WRITER, SELECT, record=RECORD)
def create_link(call: ArvadosCall) -> dict[str, Any]:
    """Makes a link, which belongs to the request's user."""
    given = GivenFields(call.fields(RECORD))
    given.require_known(SETTABLE, {"owner_uuid": call.user_uuid})
    properties = given.properties()
    made = call.arvados().links.create(
        call.user_uuid,
        given.text("link_class") or "",
        name=given.text("name") or "",
        tail_uuid=given.text("tail_uuid"),
        head_uuid=given.text("head_uuid"),
        properties={} if isinstance(properties, Omitted) else properties,
    )
    return selected(call, link_record(made))


@routes.add("GET", "/links", Role.READER, LISTING)
def list_links(call: ArvadosCall) -> dict[str, Any]:
    """Lists links."""
    page = call.arvados().links.list(asked := listing_of(call))
    items = [selected(call, link_record(each)) for each in page.items]
    return item_list("link", items, asked, available=page.available)


@routes.add("GET", _ONE, Role.READER, SELECT)
def get_link(call: ArvadosCall) -> dict[str, Any]:
    """Returns one link."""
    return selected(call, link_record(call.arvados().links.get(call.name("uuid"))))


@routes.add("PUT", _ONE, Role.WRITER, SELECT, record=RECORD)
@routes.add("PATCH", _ONE, Role.WRITER, SELECT, record=RECORD)
def update_link(call: ArvadosCall) -> dict[str, Any]:
    """Changes the name and the properties of a link, if they are given."""
    links = call.arvados().links
    given = GivenFields(call.fields(RECORD))
    present = link_record(links.get(call.name("uuid")))
    given.require_known(frozenset(("name", "properties")), present)
    changed = links.update(
        call.name("uuid"), name=given.changed_text("name"), properties=given.properties()
    )
    return selected(call, link_record(changed))


@routes.add("DELETE", _ONE, Role.WRITER, SELECT)
def delete_link(call: ArvadosCall) -> dict[str, Any]:
    """Deletes a link."""
    deleted = call.arvados().links.delete(call.name("uuid"))
    return selected(call, link_record(deleted))


def link_record(link: Link) -> dict[str, Any]:
    """Returns the record of a link."""
    return {
        "kind": KINDS[LINK],
        "href": f"/links/{link.uuid}",
        "etag": f"{link.uuid}-{link.modified_at.timestamp()}",
        "uuid": link.uuid,
        "owner_uuid": link.owner_uuid,
        "created_at": instant_text(link.created_at),
        "modified_at": instant_text(link.modified_at),
        "modified_by_user_uuid": link.owner_uuid,
        "link_class": link.link_class,
        "name": link.name,
        "tail_uuid": link.tail_uuid,
        "tail_kind": _kind(link.tail_uuid),
        "head_uuid": link.head_uuid,
        "head_kind": _kind(link.head_uuid),
        "properties": dict(link.properties),
    }


def _kind(uuid: str | None) -> str | None:
    """Returns the name of the kind of an end."""
    return None if uuid is None else KINDS.get(kind_of(uuid) or "")
