"""Storage classes of objects, which obstore neither lists nor returns.

The headers of an object have its class, and say whether it is archived. Sources: Amazon S3 API
Reference, HeadObject; Azure Storage REST, the properties of an object. Minimum durations are those
of the vendors' pages that docs/storages.md names. Not for: what the classes cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DAYS_MIN: Final[Mapping[str, int]] = {
    "STANDARD_IA": 30,
    "ONEZONE_IA": 30,
    "GLACIER_IR": 90,
    "GLACIER": 90,
    "DEEP_ARCHIVE": 180,
    "Cool": 30,
    "Cold": 90,
    "Archive": 180,
    "NEARLINE": 30,
    "COLDLINE": 90,
    "ARCHIVE": 365,
}
"""The days for which an object of a class is paid, even if it is deleted earlier. Names are those
of S3, of Azure and of Google's S3 interface. Other classes have no minimum."""

_ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE", "Archive"})
"""The classes whose objects cannot be read until they are restored. Google's ARCHIVE can."""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """The storage class of an object, by the name that the storage uses. An object that is not
    `readable` is archived: it can neither be read nor copied until it is restored."""

    name: str
    readable: bool


def class_of(headers: Mapping[str, str], default: str | None) -> StorageClass | None:
    """Returns the class that the headers of an object name; else the `default`, or None."""
    names = ("x-amz-storage-class", "x-ms-access-tier", "x-goog-storage-class")
    name = next(filter(None, (headers.get(each) for each in names)), default)
    if name is None:
        return None
    is_archived = name in _ARCHIVED or "x-amz-archive-status" in headers
    is_restored = 'ongoing-request="false"' in headers.get("x-amz-restore", "")
    return StorageClass(name, readable=is_restored or not is_archived)
