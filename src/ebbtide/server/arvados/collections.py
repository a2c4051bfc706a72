"""Collections: made, read, changed, deleted and restored. Not for: lists of them (`listing`)."""

from __future__ import annotations

from typing import Any, Final

from ebbtide.errors import Gone, InvalidInput
from ebbtide.escaping import shown
from ebbtide.server.arvados.cluster import STORAGE_CLASS
from ebbtide.server.arvados.given import GivenFields, selected
from ebbtide.server.arvados.listing import SIGNED, listed_collection, manifests
from ebbtide.server.arvados.routing import ArvadosCall, ArvadosRoutes
from ebbtide.store.access.keys import Role
from ebbtide.store.arvados.collections import ArvadosCollection
from ebbtide.store.arvados.filters import parse_select
from ebbtide.store.collections.updates import KEEP, Keep, Omitted

routes = ArvadosRoutes()

UNNAMED: Final = "New collection"
"""The name of a collection that was made without one. A number follows if it is taken."""
_ONE: Final = "/collections/{uuid:segment}"


@routes.add("POST", "/collections", Role.WRITER)
def create_collection(call: ArvadosCall) -> dict[str, Any]:
    """Makes a collection from a signed manifest."""
    given = _given(call)
    name, properties = given.text("name"), given.properties()
    made = call.repository().arvados_collections.create(
        _project(call, given.text("owner_uuid") or call.user_uuid),
        name or UNNAMED,
        given.text(SIGNED) or "",
        holder=call.key.access_key_id,
        description=given.text("description") or "",
        properties={} if isinstance(properties, Omitted) else properties,
        timers=given.timers(),
        preserve_version=given.flag("preserve_version") is True,
        ensure_unique_name=call.flag("ensure_unique_name") or not name,
    )
    return _answer(call, made)


@routes.add("GET", _ONE, Role.READER)
def get_collection(call: ArvadosCall) -> dict[str, Any]:
    """Returns a collection by its id or its portable data hash, with a signed manifest."""
    found = call.repository().arvados_collections.get(
        call.name("uuid"), include_expired=call.flag("include_trash")
    )
    return _answer(call, found)


@routes.add("PUT", _ONE, Role.WRITER)
@routes.add("PATCH", _ONE, Role.WRITER)
def update_collection(call: ArvadosCall) -> dict[str, Any]:
    """Changes the fields of a collection that are given. A collection in the trash is found only
    with `include_trash`."""
    given = _given(call)
    collections = call.repository().arvados_collections
    collections.get(call.name("uuid"), include_expired=call.flag("include_trash"))
    owner_uuid = given.text("owner_uuid")
    is_manifest = given.values.get(SIGNED) is not None
    project_id: str | Keep = KEEP if owner_uuid is None else _project(call, owner_uuid)
    changed = collections.update(
        call.name("uuid"),
        holder=call.key.access_key_id,
        manifest_text=given.changed_text(SIGNED) if is_manifest else KEEP,
        name=given.text("name") or KEEP,
        description=given.changed_text("description"),
        properties=given.properties(),
        project_id=project_id,
        timers=given.timers(),
        preserve_version=given.flag("preserve_version"),
        ensure_unique_name=call.flag("ensure_unique_name"),
    )
    return _changed(call, changed)


@routes.add("DELETE", _ONE, Role.WRITER)
@routes.add("POST", _ONE + "/trash", Role.WRITER)
def trash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Moves a collection to the trash."""
    return _changed(call, call.repository().arvados_collections.delete(call.name("uuid")))


@routes.add("POST", _ONE + "/untrash", Role.WRITER)
def untrash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Restores a collection from the trash."""
    restored = call.repository().arvados_collections.restore(
        call.name("uuid"), ensure_unique_name=call.flag("ensure_unique_name")
    )
    return _changed(call, restored)


def _answer(call: ArvadosCall, found: ArvadosCollection) -> dict[str, Any]:
    """Returns the record of a collection with its manifest, or the fields that the request selects.

    A manifest in the trash has no signatures (the Arvados wiki, "Expiring collections").
    """
    names = parse_select(call.value("select"))
    wanted = {SIGNED} if names is None else {name.rpartition(".")[2] for name in names}
    return selected(call, listed_collection(call, found.listed) | manifests(call, found, wanted))


def _changed(call: ArvadosCall, found: ArvadosCollection) -> dict[str, Any]:
    """Returns the record of a collection that was changed. If its data was purged, the record has
    no manifest: the change was made all the same."""
    try:
        return _answer(call, found)
    except Gone:
        return selected(call, listed_collection(call, found.listed))


def _project(call: ArvadosCall, owner_uuid: str) -> str:
    """Returns the project of an owner. The user's own home is made if it does not exist.

    Raises InvalidInput `invalid_argument`, NotFound `project_not_found`.
    """
    is_made = owner_uuid == call.user_uuid
    project_id = call.repository().owners.project_id(owner_uuid, is_made=is_made)
    if project_id is None:
        raise InvalidInput("invalid_argument", f"{shown(owner_uuid)} cannot own collections")
    return project_id


def _given(call: ArvadosCall) -> GivenFields:
    """Returns the fields of a request. Raises InvalidInput `invalid_argument` for values that this
    server cannot store."""
    fields = call.fields("collection")
    if fields.get("storage_classes_desired") not in (None, [], [STORAGE_CLASS]):
        raise InvalidInput(
            "invalid_argument", f"the only storage class is {STORAGE_CLASS}: leave out the others"
        )
    if fields.get("replication_desired") == 0:
        raise InvalidInput(
            "invalid_argument",
            "replication_desired is at least 1 here: the manifest is data of the collection too",
        )
    return GivenFields(fields)
