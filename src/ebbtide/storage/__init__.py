"""One object storage: list, get, put, delete, on a directory or an object store.

`base` has the protocol, `local` and `remote` implement it, and `urls` opens a URL. Executors use
this package without a database. Not for: the meaning of the objects.
"""

from ebbtide.storage.base import (
    LISTING_SCHEMA,
    BucketLock,
    Content,
    DeleteOutcome,
    ObjectInfo,
    Outcome,
    Retained,
    Storage,
)
from ebbtide.storage.local import LocalStorage
from ebbtide.storage.profiles import options_of
from ebbtide.storage.remote import RemoteStorage
from ebbtide.storage.urls import (
    contains,
    exist_external,
    normalize_url,
    object_url,
    open_storage,
    sign_external,
    stream_external,
)

__all__ = [
    "LISTING_SCHEMA",
    "BucketLock",
    "Content",
    "DeleteOutcome",
    "LocalStorage",
    "ObjectInfo",
    "Outcome",
    "RemoteStorage",
    "Retained",
    "Storage",
    "contains",
    "exist_external",
    "normalize_url",
    "object_url",
    "open_storage",
    "options_of",
    "sign_external",
    "stream_external",
]
