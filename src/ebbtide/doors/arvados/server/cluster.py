"""What clients ask about the whole cluster: its configuration, its Keep services, and its users.

Each access key of the store is a user. The root user owns what no key's user owns.
"""

from __future__ import annotations

from typing import Any, Final

from ebbtide.doors.arvados.server.discovery import LISTING, SELECT
from ebbtide.doors.arvados.server.records import computed_list, instant_text, selected
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes
from ebbtide.doors.arvados.store.uuids import (
    KEEP_SERVICE,
    KINDS,
    USER,
    derived_uuid,
    root_uuid,
    user_uuid,
)
from ebbtide.errors import NotFound
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.text import shown

routes = ArvadosRoutes()

STORAGE_CLASS: Final = "default"
ROOT_NAME: Final = "root"


@routes.add("GET", "/config", Role.READER)
def get_config(call: ArvadosCall) -> dict[str, Any]:
    """Returns the configuration, as far as clients read it."""
    settings = call.store.settings
    return {
        "ClusterID": call.cluster,
        "API": {
            "MaxRequestSize": settings.server_body_max,
            "MaxItemsPerResponse": settings.server_list_max,
        },
        "Collections": {
            "BlobSigning": True,
            "BlobSigningTTL": f"{int(settings.lease_ttl.total_seconds())}s",
            "CollectionVersioning": True,
            "DefaultReplication": 1,
            "DefaultTrashLifetime": f"{int(settings.trash_time.total_seconds())}s",
            "ForwardSlashNameSubstitution": "",
        },
        "Services": {"Controller": {"ExternalURL": call.root_url}},
        "StorageClasses": {STORAGE_CLASS: {"Default": True, "Priority": 0}},
        "Users": {"AnonymousUserToken": ""},
    }


@routes.add("GET", "/vocabulary", Role.READER)
def get_vocabulary(_call: ArvadosCall) -> dict[str, Any]:
    """Returns an empty vocabulary: all properties are allowed."""
    return {"strict_tags": False, "tags": {}}


@routes.add("GET", "/keep_services/accessible", Role.READER, LISTING)
def accessible_services(call: ArvadosCall) -> dict[str, Any]:
    """Lists the only service of blocks: this server."""
    return computed_list(call, "keepService", [_service(call)])


@routes.add("GET", "/keep_services", Role.READER, LISTING)
def list_services(call: ArvadosCall) -> dict[str, Any]:
    """Lists the only service of blocks: this server."""
    return computed_list(call, "keepService", [_service(call)])


@routes.add("GET", "/virtual_machines", Role.READER, LISTING)
def list_machines(call: ArvadosCall) -> dict[str, Any]:
    """Lists no machines: the store has none."""
    return computed_list(call, "virtualMachine", [])


def _service(call: ArvadosCall) -> dict[str, Any]:
    """Returns this server as a Keep service, at the address that the client wrote. As a `proxy`
    it is expected to keep any number of copies."""
    url = call.request.url
    is_tls = url.scheme == "https"
    uuid = derived_uuid(call.cluster, KEEP_SERVICE, "server")
    created_at = instant_text(call.repository().info.created_at)
    return {
        "kind": KINDS[KEEP_SERVICE],
        "href": f"/keep_services/{uuid}",
        "uuid": uuid,
        "owner_uuid": root_uuid(call.cluster),
        "created_at": created_at,
        "modified_at": created_at,
        "service_host": url.hostname,
        "service_port": url.port or (443 if is_tls else 80),
        "service_ssl_flag": is_tls,
        "service_type": "proxy",
        "read_only": False,
    }


@routes.add("GET", "/users/current", Role.READER, SELECT)
def current_user(call: ArvadosCall) -> dict[str, Any]:
    """Returns the user of the request's token."""
    return selected(call, user_record(call.cluster, call.key, call.role_of(call.key)))


@routes.add("GET", "/users", Role.READER, LISTING)
def list_users(call: ArvadosCall) -> dict[str, Any]:
    """Lists the users."""
    return computed_list(call, "user", all_users(call))


@routes.add("GET", "/users/{uuid:segment}", Role.READER, SELECT)
def get_user(call: ArvadosCall) -> dict[str, Any]:
    """Returns one user."""
    uuid = call.name("uuid")
    for user in all_users(call):
        if user["uuid"] == uuid:
            return selected(call, user)
    raise NotFound("key_not_found", f"there is no user {shown(uuid)}")


def all_users(call: ArvadosCall) -> list[dict[str, Any]]:
    """Returns the records of all users, the root user first."""
    cluster = call.cluster
    keys = [user_record(cluster, key, call.role_of(key)) for key in call.store.keys.list()]
    return [root_record(cluster), *keys]


def user_record(cluster: str, key: AccessKey, role: Role) -> dict[str, Any]:
    """Returns an access key, which has this role in the repository, as a user."""
    uuid = user_uuid(cluster, key.access_key_id)
    name = key.name or key.access_key_id
    is_active = key.revoked_at is None
    return _record(
        uuid,
        root_uuid(cluster),
        name,
        instant_text(key.created_at),
        username=key.access_key_id.lower(),
        is_active=is_active,
        is_admin=role is Role.ADMIN,
        can_write=is_active and role.allows(Role.WRITER),
    )


def root_record(cluster: str) -> dict[str, Any]:
    """Returns the root user."""
    uuid = root_uuid(cluster)
    return _record(
        uuid,
        uuid,
        ROOT_NAME,
        None,
        username=ROOT_NAME,
        is_active=True,
        is_admin=True,
        can_write=True,
    )


def _record(
    uuid: str,
    owner_uuid: str,
    name: str,
    created_at: str | None,
    *,
    username: str,
    is_active: bool,
    is_admin: bool,
    can_write: bool,
) -> dict[str, Any]:
    return {
        "kind": KINDS[USER],
        "href": f"/users/{uuid}",
        "uuid": uuid,
        "owner_uuid": owner_uuid,
        "created_at": created_at,
        "modified_at": created_at,
        "modified_by_user_uuid": owner_uuid,
        "email": f"{username}@localhost",
        "username": username,
        "full_name": name,
        "first_name": name,
        "last_name": "",
        "prefs": {},
        "is_active": is_active,
        "is_invited": is_active,
        "is_admin": is_admin,
        "can_write": can_write,
        "can_manage": is_admin,
        "writable_by": [uuid],
    }
