"""What clients ask about the whole cluster: its configuration, its Keep services, and others."""

from __future__ import annotations

from typing import Any, Final

from ebbtide.server.arvados.computed import computed_list
from ebbtide.server.arvados.parameters import LISTING
from ebbtide.server.arvados.records import instant_text
from ebbtide.server.arvados.routing import ArvadosCall, ArvadosRoutes
from ebbtide.store.access.keys import Role
from ebbtide.store.arvados.uuids import KEEP_SERVICE, KINDS, derived_uuid, root_uuid

routes = ArvadosRoutes()

STORAGE_CLASS: Final = "default"


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
