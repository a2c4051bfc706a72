"""Users: each access key of the store is one. The root user owns what no key's user owns."""

from __future__ import annotations

from typing import Any, Final

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.server.arvados.computed import computed_list
from ebbtide.server.arvados.given import selected
from ebbtide.server.arvados.parameters import LISTING, SELECT
from ebbtide.server.arvados.records import instant_text
from ebbtide.server.arvados.routing import ArvadosCall, ArvadosRoutes
from ebbtide.store.access.keys import AccessKey, Role
from ebbtide.store.arvados.uuids import KINDS, USER, root_uuid, user_uuid

routes = ArvadosRoutes()

ROOT_NAME: Final = "root"


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
