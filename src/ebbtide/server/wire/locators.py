"""Locators of committed objects, and of uploads that no commit or collection refers to yet."""

from __future__ import annotations

from datetime import datetime

from ebbtide.server.wire.base import Wire
from ebbtide.server.wire.objects import OCTETS
from ebbtide.store.objects.locators import Signed


class LocatorAnswer(Wire):
    """A locator and its object. Until `expires_at` the bytes can be read at `url` without an access
    key, and new content of collections can be made with the locator."""

    locator: str
    url: str
    expires_at: datetime
    size_bytes: int
    checksum: str
    content_type: str

    @classmethod
    def of(cls, found: Signed, locators_url: str) -> LocatorAnswer:
        """Makes the answer for a locator. `locators_url` is where the server reads locators."""
        return cls(
            locator=found.locator,
            url=found.url or f"{locators_url}/{found.locator}",
            expires_at=found.expires_at,
            size_bytes=found.entry.size_bytes,
            checksum=found.entry.checksum,
            content_type=found.entry.content_type or OCTETS,
        )
