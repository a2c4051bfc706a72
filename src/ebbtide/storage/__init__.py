"""One object storage: list, get, put, delete. Not for: the meaning of the objects."""

from ebbtide.storage.base import (
    LISTING_SCHEMA,
    Content,
    DeleteOutcome,
    ObjectInfo,
    Outcome,
    Storage,
)
from ebbtide.storage.local import LocalStorage
from ebbtide.storage.remote import RemoteStorage
from ebbtide.storage.urls import (
    contains,
    normalize_url,
    object_url,
    open_storage,
    stream_external,
)

__all__ = [
    "LISTING_SCHEMA",
    "Content",
    "DeleteOutcome",
    "LocalStorage",
    "ObjectInfo",
    "Outcome",
    "RemoteStorage",
    "Storage",
    "contains",
    "normalize_url",
    "object_url",
    "open_storage",
    "stream_external",
]
