"""The static files of the pages: style, script, icon.

The URL of a file contains the hash of its content. Browsers can therefore cache it for ever, and
never use an old version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from ebbtide.server.pages.guarding import ROOT

MEDIA_TYPES: Final = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HASH_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    name: str
    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """The hash of the content: the first HASH_LENGTH hexadecimal digits of its SHA-256."""
        return hashlib.sha256(self.content).hexdigest()[:HASH_LENGTH]

    @property
    def url(self) -> str:
        """The URL path of the file."""
        return f"{ROOT}/static/{self.digest}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """Returns all static files, by name."""
    folder = files("ebbtide.server.pages") / "static"
    return {
        name: Asset(name, (folder / name).read_bytes(), media_type)
        for name, media_type in MEDIA_TYPES.items()
    }
