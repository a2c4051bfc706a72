"""What the server says of itself."""

from __future__ import annotations

from ebbtide.server.wire.base import Wire


class VersionConfig(Wire):
    """`version` is that of the wire format, which clients compare; `version_context` names us."""

    version: str
    version_context: str


class StorageConfig(Wire):
    """Where repositories may be, and how objects travel."""

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
    """All of it."""

    version_config: VersionConfig
    storage_config: StorageConfig


class CollectionConfig(Wire):
    """`grace_period`: seconds; nothing younger is collected."""

    grace_period: int


class SetupState(Wire):
    """There is always a first key: `init` made it."""

    state: str = "initialized"
    comm_prefs_missing: bool = False


class UserAnswer(Wire):
    """Whose key it is."""

    id: str
    creation_date: int
    friendly_name: str


class CurrentUser(Wire):
    """Who asks."""

    user: UserAnswer
