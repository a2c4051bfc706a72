"""The pages' own files: style, script, icon. Each is served under the hash of what is in it, so
that browsers keep it for good, and never an old one."""

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
    """One file."""

    name: str
    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """What its content comes to."""
        return hashlib.sha256(self.content).hexdigest()[:HASH_LENGTH]

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"{ROOT}/static/{self.digest}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """All files, by name."""
    folder = files("ebbtide.server.pages") / "static"
    return {
        name: Asset(name, (folder / name).read_bytes(), media_type)
        for name, media_type in MEDIA_TYPES.items()
    }
