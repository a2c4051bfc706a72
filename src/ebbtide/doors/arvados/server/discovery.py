"""The parameters of the routes, and the document that tells clients which resources there are.

Clients offer only what it lists. Source of its form: "Discovery document" of Google's APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ebbtide.doors.arvados.server.routes import PREFIX as API
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes
from ebbtide.doors.arvados.store.trashable import SHARED_FIELDS
from ebbtide.doors.arvados.store.uuids import COLLECTION, GROUP, KEEP_SERVICE, LINK, USER

PREFIX: Final = "/discovery/v1"

Parameters = Mapping[str, str]
"""Types of JSON by the names of parameters."""

LISTING: Final[Parameters] = {
    "filters": "array",
    "order": "array",
    "select": "array",
    "limit": "integer",
    "offset": "integer",
    "count": "string",
    "distinct": "boolean",
}
TRASH: Final[Parameters] = {"include_trash": "boolean"}
VERSIONS: Final[Parameters] = {"include_old_versions": "boolean"}
UNIQUE: Final[Parameters] = {"ensure_unique_name": "boolean"}
SELECT: Final[Parameters] = {"select": "array"}
REPLACE: Final[Parameters] = {"replace_files": "object", "replace_segments": "object"}
CONTENTS: Final[Parameters] = {
    **LISTING,
    **TRASH,
    **VERSIONS,
    "uuid": "string",
    "recursive": "boolean",
    "exclude_home_project": "boolean",
    "include": "array",
}
SHARED: Final[Parameters] = {**LISTING, **TRASH, "include": "array"}

routes = ArvadosRoutes()


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a resource. In its path, parts in braces are required parameters."""

    name: str
    http_method: str
    path: str
    parameters: Parameters
    has_body: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: the name of its record, the middle part of its ids, its fields with their types
    of JSON, and its methods."""

    name: str
    record: str
    kind: str
    fields: Parameters
    methods: tuple[Method, ...]


_COMMON: Final[Parameters] = {
    "uuid": "string",
    "etag": "string",
    "owner_uuid": "string",
    "created_at": "datetime",
    "modified_at": "datetime",
    "modified_by_user_uuid": "string",
}
_TRASHABLE: Final[Parameters] = {name: each.json_type for name, each in SHARED_FIELDS.items()}


def _records(
    resource: str, listing: Parameters, changing: Parameters | None = None
) -> tuple[Method, ...]:
    """Returns the methods that resources with trash have."""
    one = f"{resource}/{{uuid}}"
    writing = {**SELECT, **UNIQUE, **(changing or {})}
    return (
        Method("list", "GET", resource, {**LISTING, **TRASH, **listing}),
        Method("get", "GET", one, {**SELECT, **TRASH}),
        Method("create", "POST", resource, writing, has_body=True),
        Method("update", "PUT", one, {**writing, **TRASH}, has_body=True),
        Method("delete", "DELETE", one, SELECT),
        Method("trash", "POST", f"{one}/trash", SELECT),
        Method("untrash", "POST", f"{one}/untrash", {**SELECT, **UNIQUE}),
    )


_COLLECTIONS: Final = Resource(
    "collections",
    "Collection",
    COLLECTION,
    {
        **_COMMON,
        **_TRASHABLE,
        "portable_data_hash": "string",
        "manifest_text": "text",
        "unsigned_manifest_text": "text",
        "replication_desired": "integer",
        "replication_confirmed": "integer",
        "replication_confirmed_at": "datetime",
        "storage_classes_desired": "Array",
        "storage_classes_confirmed": "Array",
        "storage_classes_confirmed_at": "datetime",
        "current_version_uuid": "string",
        "version": "integer",
        "preserve_version": "boolean",
        "file_count": "integer",
        "file_size_total": "integer",
    },
    _records("collections", VERSIONS, REPLACE),
)
_GROUPS: Final = Resource(
    "groups",
    "Group",
    GROUP,
    {
        **_COMMON,
        **_TRASHABLE,
        "group_class": "string",
        "can_write": "boolean",
        "can_manage": "boolean",
        "writable_by": "Array",
    },
    (
        *_records("groups", {}),
        Method("contents", "GET", "groups/contents", CONTENTS),
        Method("shared", "GET", "groups/shared", SHARED),
    ),
)
_LINKS: Final = Resource(
    "links",
    "Link",
    LINK,
    {
        **_COMMON,
        "link_class": "string",
        "name": "string",
        "head_uuid": "string",
        "tail_uuid": "string",
        "head_kind": "string",
        "tail_kind": "string",
        "properties": "Hash",
    },
    (
        Method("list", "GET", "links", LISTING),
        Method("get", "GET", "links/{uuid}", SELECT),
        Method("create", "POST", "links", SELECT, has_body=True),
        Method("update", "PUT", "links/{uuid}", SELECT, has_body=True),
        Method("delete", "DELETE", "links/{uuid}", SELECT),
    ),
)
_USERS: Final = Resource(
    "users",
    "User",
    USER,
    {
        **_COMMON,
        "email": "string",
        "username": "string",
        "full_name": "string",
        "first_name": "string",
        "last_name": "string",
        "prefs": "Hash",
        "is_active": "boolean",
        "is_admin": "boolean",
        "can_write": "boolean",
    },
    (
        Method("current", "GET", "users/current", SELECT),
        Method("list", "GET", "users", LISTING),
        Method("get", "GET", "users/{uuid}", SELECT),
    ),
)
_SERVICES: Final = Resource(
    "keep_services",
    "KeepService",
    KEEP_SERVICE,
    {
        **_COMMON,
        "service_host": "string",
        "service_port": "integer",
        "service_ssl_flag": "boolean",
        "service_type": "string",
        "read_only": "boolean",
    },
    (
        Method("accessible", "GET", "keep_services/accessible", LISTING),
        Method("list", "GET", "keep_services", LISTING),
    ),
)
_MACHINES: Final = Resource(
    "virtual_machines",
    "VirtualMachine",
    "2x53u",
    {**_COMMON, "hostname": "string"},
    (Method("list", "GET", "virtual_machines", LISTING),),
)
RESOURCES: Final = (_COLLECTIONS, _GROUPS, _LINKS, _USERS, _SERVICES, _MACHINES)
_SHOWN: Final = frozenset(("kind", "href", "frozen_by_uuid", "is_invited", "file_names"))
"""Fields that can be selected beside those of the document."""
FIELDS: Final = {
    each.name: _SHOWN | set(each.fields) | (set(_COLLECTIONS.fields) if each is _GROUPS else set())
    for each in RESOURCES
}
"""The fields that can be selected, by resource. Lists of a project's contents have both kinds."""
_OTHERS: Final = (
    Method("get", "GET", "config", {}),
    Method("get", "GET", "vocabulary", {}),
)


@routes.add("GET", "/apis/arvados/v1/rest", None, prefix=PREFIX)
def get_discovery(call: ArvadosCall) -> dict[str, Any]:
    """Returns the discovery document."""
    settings = call.store.settings
    root = call.root_url
    configs, vocabularies = _OTHERS
    resources = {each.name: {"methods": _methods(each.name, each)} for each in RESOURCES}
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "arvados:v1",
        "name": "arvados",
        "version": "v1",
        "revision": "20260101",
        "title": "Ebbtide",
        "description": "Collections and projects of Ebbtide, for clients of Arvados.",
        "protocol": "rest",
        "rootUrl": root,
        "baseUrl": f"{root.rstrip('/')}{API}/",
        "basePath": f"{API}/",
        "servicePath": f"{API.lstrip('/')}/",
        "batchPath": "batch",
        "uuidPrefix": call.cluster,
        "defaultTrashLifetime": int(settings.trash_time.total_seconds()),
        "blobSignatureTtl": int(settings.lease_ttl.total_seconds()),
        "defaultCollectionReplication": 1,
        "maxRequestSize": settings.server_body_max,
        "maxItemsPerResponse": settings.server_list_max,
        "parameters": {},
        "auth": {},
        "schemas": {name: schema for each in RESOURCES for name, schema in _schemas(each)},
        "resources": {
            **resources,
            "configs": {"methods": {"get": _method("configs", configs, None)}},
            "vocabularies": {"methods": {"get": _method("vocabularies", vocabularies, None)}},
        },
    }


def _schemas(resource: Resource) -> tuple[tuple[str, dict[str, Any]], ...]:
    name = resource.record
    record = {
        "id": name,
        "description": name,
        "type": "object",
        "uuidPrefix": resource.kind,
        "properties": {field: {"type": kind} for field, kind in resource.fields.items()},
    }
    listed = {
        "id": f"{name}List",
        "description": f"{name}List",
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": name}},
            "items_available": {"type": "integer"},
            "offset": {"type": "integer"},
            "limit": {"type": "integer"},
        },
    }
    return (name, record), (f"{name}List", listed)


def _methods(name: str, resource: Resource) -> dict[str, Any]:
    return {method.name: _method(name, method, resource) for method in resource.methods}


def _method(name: str, method: Method, resource: Resource | None) -> dict[str, Any]:
    """Returns the description of a method. Only `configs` and `vocabularies` have no record."""
    is_one = "{uuid}" in method.path
    path = {"uuid": {"type": "string", "required": True, "location": "path"}} if is_one else {}
    found: dict[str, Any] = {
        "id": f"arvados.{name}.{method.name}",
        "path": method.path,
        "httpMethod": method.http_method,
        "description": f"{method.http_method} {API}/{method.path}",
        "parameters": path
        | {
            parameter: {"type": kind, "required": False, "location": "query"}
            for parameter, kind in method.parameters.items()
        },
        "parameterOrder": ["uuid"] if is_one else [],
        "response": {},
        "scopes": [],
    }
    if resource is not None:
        is_list = method.name in ("list", "accessible", "contents", "shared")
        found["response"] = {"$ref": resource.record + ("List" if is_list else "")}
        if method.has_body:
            field = resource.record.lower()
            body = {field: {"$ref": resource.record}}
            found["request"] = {"required": True, "properties": body}
    return found
