"""The server's description of itself for clients."""

from __future__ import annotations

from ebbtide.server.wire.base import Wire


class VersionConfig(Wire):
    """`version` is the version of the wire format, which clients compare; `version_context` names
    Ebbtide."""

    version: str
    version_context: str


class StorageConfig(Wire):
    """Which storage namespaces repositories may have, and how clients can transfer objects."""

    blockstore_type: str
    blockstore_namespace_example: str
    blockstore_namespace_ValidityRegex: str  # noqa: N815 - as clients spell it
    default_namespace_prefix: str | None = None
    pre_sign_support: bool = False
    pre_sign_support_ui: bool = False
    pre_sign_multipart_upload: bool = False
    import_support: bool = False
    import_validity_regex: str
    blockstore_id: str | None = None


class ConfigAnswer(Wire):
    """The version and the storage configuration together."""

    version_config: VersionConfig
    storage_config: StorageConfig


class CollectionConfig(Wire):
    """`grace_period` is the grace in seconds: no younger file is collected."""

    grace_period: int


class SetupState(Wire):
    """The state of the set-up. It is always `initialized`: `ebbtide init` makes the first access
    key."""

    state: str = "initialized"
    comm_prefs_missing: bool = False


class UserAnswer(Wire):
    """The access key of the request, in the place of a user."""

    id: str
    creation_date: int
    friendly_name: str


class CurrentUser(Wire):
    """The sender of the request."""

    user: UserAnswer
