"""Collections: made, read, changed, deleted, restored and listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from ebbtide.doors.arvados.server.cluster import STORAGE_CLASS
from ebbtide.doors.arvados.server.discovery import LISTING, REPLACE, SELECT, TRASH, UNIQUE, VERSIONS
from ebbtide.doors.arvados.server.records import (
    GivenFields,
    item_list,
    listing_of,
    selected,
    selection,
    shared_record,
)
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes
from ebbtide.doors.arvados.store.collections import ArvadosCollection
from ebbtide.doors.arvados.store.listed_collections import ListedCollection
from ebbtide.doors.arvados.store.manifests import parse_manifest
from ebbtide.doors.arvados.store.replacements import Replacements
from ebbtide.doors.arvados.store.trashable import SHARED_SETTABLE
from ebbtide.doors.arvados.store.uuids import COLLECTION, KINDS, user_uuid
from ebbtide.errors import Gone, InvalidInput
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.items import KEEP, Keep, Omitted
from ebbtide.text import shown

routes = ArvadosRoutes()

SIGNED: Final = "manifest_text"
UNSIGNED: Final = "unsigned_manifest_text"
UNNAMED: Final = "New collection"
"""The name of a collection that was made without one. A number follows if it is taken."""
RECORD: Final = "collection"
HASH: Final = "portable_data_hash"
SETTABLE: Final = SHARED_SETTABLE | {
    SIGNED,
    HASH,
    "replication_desired",
    "storage_classes_desired",
    "preserve_version",
}
"""The fields that requests can set. The hash is compared with the manifest."""
_ONE: Final = "/collections/{uuid:segment}"
_WRITING: Final = {**SELECT, **UNIQUE, **REPLACE}


@routes.add("POST", "/collections", Role.WRITER, _WRITING, record=RECORD)
def create_collection(call: ArvadosCall) -> dict[str, Any]:
    """Makes a collection from a signed manifest, and from files of other collections."""
    given = _given(call, {"version": call.fields(RECORD).get("version")})
    name, properties = given.text("name"), given.properties()
    made = call.arvados().collections.create(
        _project(call, given.text("owner_uuid") or call.user_uuid),
        name or UNNAMED,
        given.text(SIGNED) or "",
        holder=call.key.access_key_id,
        replacements=_replacements(call),
        description=given.text("description") or "",
        properties={} if isinstance(properties, Omitted) else properties,
        replication_desired=_replication(given),
        timers=given.timers(),
        preserve_version=given.flag("preserve_version") is True,
        ensure_unique_name=call.flag("ensure_unique_name") or not name,
    )
    return _answer(call, made)


@routes.add("GET", _ONE, Role.READER, {**SELECT, **TRASH})
def get_collection(call: ArvadosCall) -> dict[str, Any]:
    """Returns a collection by its id or its portable data hash, with a signed manifest."""
    found = call.arvados().collections.get(
        call.name("uuid"), include_expired=call.flag("include_trash")
    )
    return _answer(call, found)


@routes.add("PUT", _ONE, Role.WRITER, {**_WRITING, **TRASH}, record=RECORD)
@routes.add("PATCH", _ONE, Role.WRITER, {**_WRITING, **TRASH}, record=RECORD)
def update_collection(call: ArvadosCall) -> dict[str, Any]:
    """Changes the fields of a collection that are given. A collection in the trash is found only
    with `include_trash`."""
    collections = call.arvados().collections
    present = collections.get(call.name("uuid"), include_expired=call.flag("include_trash"))
    given = _given(call, listed_collection(call, present.listed))
    _require_no_null(given, "owner_uuid", SIGNED)
    owner_uuid = given.text("owner_uuid")
    project_id: str | Keep = KEEP if owner_uuid is None else _project(call, owner_uuid)
    name = given.changed_text("name")
    changed = collections.update(
        call.name("uuid"),
        holder=call.key.access_key_id,
        manifest_text=given.changed_text(SIGNED),
        replacements=_replacements(call),
        name=name or UNNAMED,
        description=given.changed_text("description"),
        properties=given.properties(),
        project_id=project_id,
        replication_desired=_replication(given) if "replication_desired" in given.values else KEEP,
        timers=given.timers(),
        preserve_version=given.flag("preserve_version"),
        ensure_unique_name=call.flag("ensure_unique_name") or not name,
    )
    return _changed(call, changed)


@routes.add("DELETE", _ONE, Role.WRITER, SELECT)
@routes.add("POST", _ONE + "/trash", Role.WRITER, SELECT)
def trash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Moves a collection to the trash."""
    return _changed(call, call.arvados().collections.delete(call.name("uuid")))


@routes.add("POST", _ONE + "/untrash", Role.WRITER, {**SELECT, **UNIQUE})
def untrash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Restores a collection from the trash."""
    restored = call.arvados().collections.restore(
        call.name("uuid"), ensure_unique_name=call.flag("ensure_unique_name")
    )
    return _changed(call, restored)


def _answer(call: ArvadosCall, found: ArvadosCollection) -> dict[str, Any]:
    """Returns the record of a collection with its manifest, or the fields that the request selects.

    A manifest in the trash has no signatures (the Arvados wiki, "Expiring collections").
    """
    names = selection(call)
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
    project_id = call.arvados().owners.project_id(owner_uuid, is_made=is_made)
    if project_id is None:
        raise InvalidInput("invalid_argument", f"{shown(owner_uuid)} cannot own collections")
    return project_id


def _given(call: ArvadosCall, present: Mapping[str, Any]) -> GivenFields:
    """Returns the fields of a request. Raises InvalidInput `invalid_argument` for fields and values
    that this server cannot store."""
    given = GivenFields(call.fields(RECORD))
    given.require_known(SETTABLE, present)
    if given.values.get("storage_classes_desired") not in (None, [], [STORAGE_CLASS]):
        raise InvalidInput(
            "invalid_argument", f"the only storage class is {STORAGE_CLASS}: leave out the others"
        )
    portable = given.text(HASH)
    if portable is not None and portable != present.get(HASH):
        _require_hash(given, portable)
    return given


def _require_hash(given: GivenFields, portable: str) -> None:
    """Raises InvalidInput `checksum_mismatch` if a hash is not that of the request's manifest."""
    found = parse_manifest(given.text(SIGNED) or "").portable_data_hash
    if portable.partition("+")[0] != found.partition("+")[0]:
        raise InvalidInput(
            "checksum_mismatch",
            f"{HASH} is {shown(portable)}, and the manifest has {found}: leave it out, or send the "
            "manifest that it is of",
        )


def _require_no_null(given: GivenFields, *names: str) -> None:
    for name in names:
        if given.values.get(name, "") is None:
            raise InvalidInput(
                "invalid_argument", f"{name} cannot be null: leave it out, or write a text"
            )


def _replication(given: GivenFields) -> int:
    """Returns the number of copies that a request wants; null is the default. Raises InvalidInput
    `invalid_argument`."""
    found = given.values.get("replication_desired")
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
        raise InvalidInput(
            "invalid_argument",
            "replication_desired is a number from 1 on: with 0, the manifest would be released too",
        )
    return 1 if found is None else found


def _replacements(call: ArvadosCall) -> Replacements:
    """Returns the files and segments that a request replaces. Raises InvalidInput
    `invalid_argument`."""
    return Replacements(*(_texts(call, name) for name in ("replace_files", "replace_segments")))


def _texts(call: ArvadosCall, name: str) -> dict[str, str]:
    found = call.value(name)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise InvalidInput("invalid_argument", f"{name} must be an object of texts")
    return found


@routes.add("GET", "/collections", Role.READER, {**LISTING, **TRASH, **VERSIONS})
def list_collections(call: ArvadosCall) -> dict[str, Any]:
    """Lists collections, without manifests unless the request selects them."""
    asked = listing_of(call)
    page = call.arvados().lists.list(asked)
    names = selection(call) or ()
    wanted = {SIGNED, UNSIGNED} & set(names)
    collections = call.arvados().collections
    items: list[dict[str, Any]] = []
    for each in page.items:
        record = listed_collection(call, each)
        if wanted:
            found = collections.get(each.uuid, include_expired=True)
            # A collection whose data was purged is listed without its manifest.
            with suppress(Gone):
                record |= manifests(call, found, wanted)
        items.append(selected(call, record))
    return item_list("collection", items, asked, available=page.available)


def manifests(call: ArvadosCall, found: ArvadosCollection, wanted: Iterable[str]) -> dict[str, str]:
    """Returns the manifests of a collection that are wanted, by the names of their fields.

    A manifest in the trash has no signatures (the Arvados wiki, "Expiring collections"). If the
    trash time is 0, a deleted collection is gone at once, and has no manifest.
    """
    names = set(wanted) & {SIGNED, UNSIGNED} if found.state is not LifecycleState.GONE else set()
    if found.state is LifecycleState.TRASHED and SIGNED in names:
        names = {UNSIGNED}
    collections = call.arvados().collections
    collection_id = found.listed.collection_id
    texts: dict[str, str] = {}
    if SIGNED in names:
        holder = call.key.access_key_id
        texts[SIGNED] = collections.signed_manifest(collection_id, holder=holder)
    if UNSIGNED in names:
        texts[UNSIGNED] = collections.unsigned_manifest(collection_id)
    return texts


def listed_collection(call: ArvadosCall, found: ListedCollection) -> dict[str, Any]:
    """Returns the record of a collection in a list."""
    return {
        "kind": KINDS[COLLECTION],
        "href": f"/collections/{found.uuid}",
        "etag": f"{found.collection_id}-{found.version}",
        "modified_by_user_uuid": user_uuid(call.cluster, found.modified_by),
        **shared_record(found),
        "portable_data_hash": found.portable_data_hash,
        "replication_desired": replication_shown(found.replication_desired),
        "replication_confirmed": None,
        "replication_confirmed_at": None,
        "storage_classes_desired": [STORAGE_CLASS],
        "storage_classes_confirmed": [],
        "storage_classes_confirmed_at": None,
        "version": found.version,
        "current_version_uuid": found.current_version_uuid,
        "preserve_version": found.preserve_version,
        "file_count": found.file_count,
        "file_size_total": found.file_size_total,
    }


def replication_shown(desired: int) -> int | None:
    """Returns the number of copies that was asked for; None for one, which is the default."""
    return None if desired == 1 else desired
