"""Collections: made, read, changed, deleted and restored. Not for: lists of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.arvados.cluster import STORAGE_CLASS
from ebbtide.server.arvados.records import instant_text
from ebbtide.server.arvados.routing import ArvadosCall, ArvadosRoutes
from ebbtide.store.access.keys import Role
from ebbtide.store.arvados.collections import ArvadosCollection
from ebbtide.store.arvados.uuids import COLLECTION, KINDS, user_uuid
from ebbtide.store.collections.updates import KEEP, Keep, Omitted

routes = ArvadosRoutes()

RECORD: Final = "collection"
UNNAMED: Final = "New collection"
"""The name of a collection that was made without one. A number follows if it is taken."""
_ONE: Final = "/collections/{uuid:segment}"


@routes.add("POST", "/collections", Role.WRITER)
def create_collection(call: ArvadosCall) -> dict[str, Any]:
    """Makes a collection from a signed manifest."""
    fields = call.fields(RECORD)
    _check_fixed(fields)
    owner_uuid = _text(fields, "owner_uuid") or call.user_uuid
    repository = call.repository()
    project_id = repository.owners.project_id(owner_uuid, is_made=owner_uuid == call.user_uuid)
    if project_id is None:
        raise InvalidInput("invalid_argument", f"{shown(owner_uuid)} owns no collections")
    name = _text(fields, "name")
    expires_at = _expiry(call, fields)
    made = repository.arvados_collections.create(
        project_id,
        name or UNNAMED,
        _text(fields, "manifest_text") or "",
        holder=call.key.access_key_id,
        description=_text(fields, "description") or "",
        properties=_properties(fields),
        expires_at=None if isinstance(expires_at, Omitted) else expires_at,
        preserve_version=_flag(fields, "preserve_version"),
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
    """Changes the fields of a collection that are given."""
    fields = call.fields(RECORD)
    _check_fixed(fields)
    repository = call.repository()
    project_id: str | Keep = KEEP
    owner_uuid = _text(fields, "owner_uuid")
    if owner_uuid is not None:
        found_id = repository.owners.project_id(owner_uuid, is_made=owner_uuid == call.user_uuid)
        if found_id is None:
            raise InvalidInput("invalid_argument", f"{shown(owner_uuid)} owns no collections")
        project_id = found_id
    manifest_text = fields.get("manifest_text")
    changed = repository.arvados_collections.update(
        call.name("uuid"),
        holder=call.key.access_key_id,
        manifest_text=KEEP if manifest_text is None else _text(fields, "manifest_text") or "",
        name=_text(fields, "name") or KEEP,
        description=(_text(fields, "description") or "") if "description" in fields else KEEP,
        properties=_properties(fields) if "properties" in fields else KEEP,
        project_id=project_id,
        expires_at=_expiry(call, fields),
        preserve_version=(
            _flag(fields, "preserve_version") if "preserve_version" in fields else KEEP
        ),
        ensure_unique_name=call.flag("ensure_unique_name"),
    )
    return _answer(call, changed)


@routes.add("DELETE", _ONE, Role.WRITER)
def delete_collection(call: ArvadosCall) -> dict[str, Any]:
    """Moves a collection to the trash."""
    return _answer(call, call.repository().arvados_collections.delete(call.name("uuid")))


@routes.add("POST", _ONE + "/trash", Role.WRITER)
def trash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Moves a collection to the trash."""
    return delete_collection(call)


@routes.add("POST", _ONE + "/untrash", Role.WRITER)
def untrash_collection(call: ArvadosCall) -> dict[str, Any]:
    """Restores a collection from the trash."""
    restored = call.repository().arvados_collections.restore(
        call.name("uuid"), ensure_unique_name=call.flag("ensure_unique_name")
    )
    return _answer(call, restored)


def collection_record(call: ArvadosCall, found: ArvadosCollection) -> dict[str, Any]:
    """Returns the record of a collection, without its manifest."""
    collection, row = found.collection, found.row
    trash_time = call.store.settings.trash_time
    expires_at = collection.expires_at
    is_trashed = collection.state is LifecycleState.TRASHED and expires_at == collection.ends_at
    return {
        "kind": KINDS[COLLECTION],
        "href": f"/collections/{row.uuid}",
        "etag": f"{collection.collection_id}-{collection.version}",
        "uuid": row.uuid,
        "owner_uuid": found.owner_uuid,
        "created_at": instant_text(collection.created_at),
        "modified_at": instant_text(collection.modified_at),
        "modified_by_user_uuid": user_uuid(call.cluster, row.modified_by),
        "name": collection.name,
        "description": collection.description or None,
        "properties": dict(collection.properties),
        "portable_data_hash": row.portable_data_hash,
        "replication_desired": None,
        "replication_confirmed": None,
        "replication_confirmed_at": None,
        "storage_classes_desired": [STORAGE_CLASS],
        "storage_classes_confirmed": [],
        "storage_classes_confirmed_at": None,
        "trash_at": instant_text(expires_at),
        "delete_at": None if expires_at is None else instant_text(expires_at + trash_time),
        "is_trashed": is_trashed,
        "version": collection.version,
        "current_version_uuid": row.uuid,
        "preserve_version": row.preserve_version,
        "file_count": row.file_count,
        "file_size_total": row.file_size_total,
    }


def _answer(call: ArvadosCall, found: ArvadosCollection) -> dict[str, Any]:
    """Returns the record with the manifest, or the fields of it that the request selects.

    In the trash, a collection has no signatures (the Arvados wiki, "Expiring collections").
    """
    record = collection_record(call, found)
    selected = call.value("select")
    if selected is not None and not isinstance(selected, list):
        raise InvalidInput("invalid_argument", "select must be a list of names")
    collections = call.repository().arvados_collections
    collection = found.collection
    if collection.state is LifecycleState.TRASHED:
        if selected is None or "unsigned_manifest_text" in selected:
            record["unsigned_manifest_text"] = collections.unsigned_manifest(
                collection.collection_id
            )
    elif selected is None or "manifest_text" in selected:
        record["manifest_text"] = collections.signed_manifest(
            collection.collection_id, holder=call.key.access_key_id
        )
    if selected is not None and "unsigned_manifest_text" in selected:
        record["unsigned_manifest_text"] = collections.unsigned_manifest(collection.collection_id)
    if selected is None:
        return record
    return {name: record[name] for name in ("kind", *selected) if name in record}


def _expiry(call: ArvadosCall, fields: Mapping[str, Any]) -> datetime | Keep | None:
    """Returns the date at which a collection goes to the trash, as the request gives it.

    `delete_at` follows from it. Raises InvalidInput `invalid_argument` for another `delete_at`, so
    that a client reads back what it sent; and `invalid_date`.
    """
    expires_at: datetime | Keep | None = KEEP
    if "trash_at" in fields:
        expires_at = _instant(fields, "trash_at")
    elif "is_trashed" in fields:
        expires_at = datetime.min.replace(tzinfo=UTC) if _flag(fields, "is_trashed") else None
    delete_at = _instant(fields, "delete_at")
    if delete_at is not None:
        trash_time = call.store.settings.trash_time
        starts_at = None if isinstance(expires_at, Omitted) else expires_at
        if starts_at is None or delete_at != starts_at + trash_time:
            raise InvalidInput(
                "invalid_argument",
                f"delete_at is trash_at and {trash_time}: leave it out, or give both",
            )
    return expires_at


def _instant(fields: Mapping[str, Any], name: str) -> datetime | None:
    """Returns an instant. Without a zone it is in UTC. Raises InvalidInput `invalid_date`."""
    text = _text(fields, name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("invalid_date", f"{name} is no date: {shown(text)}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _check_fixed(fields: Mapping[str, Any]) -> None:
    """Raises InvalidInput `invalid_argument` for values that this server cannot store."""
    classes = fields.get("storage_classes_desired")
    if classes not in (None, [], [STORAGE_CLASS]):
        raise InvalidInput(
            "invalid_argument", f"the only storage class is {STORAGE_CLASS}: leave out the others"
        )
    if fields.get("replication_desired") == 0:
        raise InvalidInput(
            "invalid_argument",
            "replication_desired is at least 1 here: a manifest is data of its collection",
        )


def _properties(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    found = fields.get("properties")
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidInput("invalid_argument", "properties must be an object")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    found = fields.get(name)
    if found is not None and not isinstance(found, str):
        raise InvalidInput("invalid_argument", f"{name} must be text")
    return found or None


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    found = fields.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidInput("invalid_argument", f"{name} must be true or false")
    return bool(found)
