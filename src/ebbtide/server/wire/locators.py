"""Locators: of committed objects, and of uploads that nothing refers to yet."""

from __future__ import annotations

from datetime import datetime

from ebbtide.server.wire.base import Wire
from ebbtide.server.wire.objects import OCTETS
from ebbtide.store.locators import Signed


class LocatorAnswer(Wire):
    """What a locator is of. Until `expires_at` its bytes are at `url`, without a key, and it can be
    made a file of a collection."""

    locator: str
    url: str
    expires_at: datetime
    size_bytes: int
    checksum: str
    content_type: str

    @classmethod
    def of(cls, found: Signed, locators_url: str) -> LocatorAnswer:
        """One locator; `locators_url` is where the server reads locators."""
        return cls(
            locator=found.locator,
            url=found.url or f"{locators_url}/{found.locator}",
            expires_at=found.expires_at,
            size_bytes=found.entry.size_bytes,
            checksum=found.entry.checksum,
            content_type=found.entry.content_type or OCTETS,
        )
