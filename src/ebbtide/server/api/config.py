"""The server itself: its configuration for clients, its state for monitoring, and its routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import Field

from ebbtide.server.api.base import Text, Wire
from ebbtide.server.api.routes import Routes
from ebbtide.server.metrics import CONTENT_TYPE, Metrics
from ebbtide.server.serving import Served, ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import Reclaimer


class VersionConfig(Wire):
    """`version` is the version of the wire format, which clients compare. The server asks nobody
    for newer versions: so the latest version is its own, and no upgrade is recommended. There is no
    `version_context`: lakeFS's command line warns at each command if that is not `lakeFS`.
    `ebbtide_version` is a field of Ebbtide's own."""

    version: str
    ebbtide_version: str
    latest_version: str
    upgrade_recommended: bool = False


class StorageConfig(Wire):
    """The storage namespaces that repositories may have, and how clients can transfer objects."""

    blockstore_type: str
    blockstore_namespace_example: str
    blockstore_namespace_ValidityRegex: str  # noqa: N815 - as clients spell it
    default_namespace_prefix: str | None = None
    pre_sign_support: bool = False
    pre_sign_support_ui: bool = False
    pre_sign_multipart_upload: bool = False
    import_support: bool = False
    import_validity_regex: str
    blockstore_id: str = ""
    blockstore_description: str


class UserInterfaceConfig(Wire):
    """The viewers of files that web tools add. Ebbtide has none."""

    custom_viewers: tuple[str, ...] = ()


class ConfigAnswer(Wire):
    """The version and the storage configuration together. `storage_config_list` is empty, because
    there is a single storage, which needs no id."""

    version_config: VersionConfig
    storage_config: StorageConfig
    storage_config_list: tuple[StorageConfig, ...] = ()
    ui_config: UserInterfaceConfig = UserInterfaceConfig()
    capabilities_config: dict[str, str] = Field(default_factory=dict)


class CollectionConfig(Wire):
    """`grace_period` is the grace in seconds: no younger file is collected."""

    grace_period: int


class SetupState(Wire):
    """The state of the set-up. It is always `initialized`: `ebbtide init` makes the first access
    key."""

    state: str = "initialized"
    comm_prefs_missing: bool = False


class UsageEvent(Wire):
    """How often a client did something."""

    event_class: Annotated[Text, Field(alias="class", min_length=1)]
    name: Annotated[Text, Field(min_length=1)]
    count: Annotated[int, Field(ge=0)]


class UsageEvents(Wire):
    """The usage statistics of a client."""

    events: list[UsageEvent]


routes = Routes("config")

DEFAULT_NAMESPACE_PREFIX: Final = "local://repositories"
"""Clients add a slash and the repository's name, for a repository that was given no namespace."""
WIRE_VERSION: Final = "1.88.0"
"""The lakeFS version whose wire format the routes follow. Clients compare it with the version that
they need."""


@routes.add("GET", "/setup_lakefs", None)
def get_setup_state() -> SetupState:
    """Returns the state of the set-up. The route is public, because clients call it without a
    key."""
    return SetupState()


@routes.add("GET", "/config", Role.NONE)
def get_config(served: ServedDep) -> ConfigAnswer:
    """Returns the configuration that clients read before they upload."""
    return ConfigAnswer(version_config=_version(), storage_config=_storage(served))


@routes.add("GET", "/config/version", Role.NONE)
def get_version() -> VersionConfig:
    """Returns the version of the wire format."""
    return _version()


@routes.add("GET", "/config/storage", Role.NONE)
def get_storage_config(served: ServedDep) -> StorageConfig:
    """Returns which storage namespaces repositories may have."""
    return _storage(served)


@routes.add("GET", "/config/garbage-collection", Role.NONE)
def get_collection_config(served: ServedDep) -> CollectionConfig:
    """Returns the grace."""
    return CollectionConfig(grace_period=int(served.settings.grace.total_seconds()))


@routes.add("POST", "/statistics", Role.NONE, status=204)
def post_statistics(asked: UsageEvents) -> Response:
    """Accepts usage statistics, which web tools send, and drops them. Ebbtide collects none."""
    del asked  # only its form is checked
    return Response(status_code=204)


@routes.add("GET", "/healthcheck", None, status=204)
def health_check(served: ServedDep) -> Response:
    """Answers 204 while the server and its database work. The route is public, and tells nothing
    else."""
    served.store.catalog.page(amount=1)
    return Response(status_code=204)


@routes.add("GET", "/metrics", Role.READER, response_class=Response)
def get_metrics(request: Request) -> Response:
    """Returns the metrics in the format of Prometheus. Prometheus needs an access key to read
    them."""
    metrics: Metrics = request.app.state.metrics
    store: Store = request.app.state.store
    metrics.show_backlog(*Reclaimer(store).backlog())
    metrics.show_schedules(store.schedules.all()[0])
    return Response(metrics.render(), media_type=CONTENT_TYPE)


@routes.add("GET", "/openapi.json", Role.NONE)
def get_openapi_document(request: Request) -> dict[str, Any]:
    """Returns the OpenAPI document of the routes. `x-role` is the role that a route needs."""
    app = request.app
    return get_openapi(title=app.title, version=app.version, routes=app.routes)


def _version() -> VersionConfig:
    return VersionConfig(
        version=WIRE_VERSION,
        ebbtide_version=version("ebbtide"),
        latest_version=WIRE_VERSION,
    )


def _storage(served: Served) -> StorageConfig:
    url = served.settings.storage_url or ""
    scheme = url.partition("://")[0] if "://" in url else "file"
    can_sign = served.store.can_sign()
    return StorageConfig(
        pre_sign_support=can_sign,
        pre_sign_multipart_upload=can_sign,
        blockstore_type="local" if scheme == "file" else scheme,
        blockstore_description="a directory" if scheme == "file" else f"a bucket ({scheme})",
        blockstore_namespace_example="local://my-repository/",
        default_namespace_prefix=DEFAULT_NAMESPACE_PREFIX,
        blockstore_namespace_ValidityRegex=r"^(local|file|s3|s3a|gs|az)://.+$",
        import_validity_regex=r"^(file|s3|s3a|gs|az)://.+$",
    )
