"""The list of collections."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from ebbtide.errors import Gone
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.arvados.cluster import STORAGE_CLASS
from ebbtide.server.arvados.given import listing_of, selected, selection
from ebbtide.server.arvados.parameters import LISTING, TRASH, VERSIONS
from ebbtide.server.arvados.records import instant_text, item_list
from ebbtide.server.arvados.routing import ArvadosCall, ArvadosRoutes
from ebbtide.store.access.keys import Role
from ebbtide.store.arvados.collections import ArvadosCollection
from ebbtide.store.arvados.listed_collections import ListedCollection
from ebbtide.store.arvados.uuids import COLLECTION, KINDS, user_uuid

routes = ArvadosRoutes()

SIGNED: Final = "manifest_text"
UNSIGNED: Final = "unsigned_manifest_text"


@routes.add("GET", "/collections", Role.READER, {**LISTING, **TRASH, **VERSIONS})
def list_collections(call: ArvadosCall) -> dict[str, Any]:
    """Lists collections, without manifests unless the request selects them."""
    asked = listing_of(call)
    page = call.repository().arvados_lists.list(asked)
    names = selection(call) or ()
    wanted = {SIGNED, UNSIGNED} & set(names)
    collections = call.repository().arvados_collections
    items: list[dict[str, Any]] = []
    for each in page.items:
        record = listed_collection(call, each)
        if wanted:
            found = collections.get(each.uuid, include_expired=True)
            # A collection whose data was purged is listed without its manifest.
            with suppress(Gone):
                record |= manifests(call, found, wanted)
        items.append(selected(call, record))
    return item_list(
        "collection", items, offset=asked.offset, limit=asked.limit, available=page.available
    )


def manifests(call: ArvadosCall, found: ArvadosCollection, wanted: Iterable[str]) -> dict[str, str]:
    """Returns the manifests of a collection that are wanted, by the names of their fields.

    A manifest in the trash has no signatures (the Arvados wiki, "Expiring collections"). If the
    trash time is 0, a deleted collection is gone at once, and has no manifest.
    """
    names = set(wanted) & {SIGNED, UNSIGNED} if found.state is not LifecycleState.GONE else set()
    if found.state is LifecycleState.TRASHED and SIGNED in names:
        names = {UNSIGNED}
    collections = call.repository().arvados_collections
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
        "uuid": found.uuid,
        "owner_uuid": found.owner_uuid,
        "created_at": instant_text(found.created_at),
        "modified_at": instant_text(found.modified_at),
        "modified_by_user_uuid": user_uuid(call.cluster, found.modified_by),
        "name": found.name,
        "description": found.description or None,
        "properties": dict(found.properties),
        "portable_data_hash": found.portable_data_hash,
        "replication_desired": replication_shown(found.replication_desired),
        "replication_confirmed": None,
        "replication_confirmed_at": None,
        "storage_classes_desired": [STORAGE_CLASS],
        "storage_classes_confirmed": [],
        "storage_classes_confirmed_at": None,
        "trash_at": instant_text(found.trash_at),
        "delete_at": instant_text(found.delete_at),
        "is_trashed": found.is_trashed,
        "version": found.version,
        "current_version_uuid": found.current_version_uuid,
        "preserve_version": found.preserve_version,
        "file_count": found.file_count,
        "file_size_total": found.file_size_total,
    }


def replication_shown(desired: int) -> int | None:
    """Returns the number of copies that was asked for; None for one, which is the default."""
    return None if desired == 1 else desired
