"""The storage roots of new repositories: converts a place that a client names to a URL."""

from __future__ import annotations

import re
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.store.embedded import Store

_LOCAL: Final = re.compile(r"local://([A-Za-z0-9_][A-Za-z0-9_.-]{0,254})/?")


def storage_url_of(place: str, store: Store) -> str:
    """Returns the URL of a storage root. `local://NAME` is a place below the store's own storage.

    Raises InvalidInput `invalid_argument`.
    """
    match = _LOCAL.fullmatch(place)
    if match is not None:
        return store.default_root(match[1])
    if not re.match(r"(file|s3|s3a|gs|az)://", place):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(place)} is not a storage location for a repository: write local://NAME, or "
            "a URL such as s3://bucket/prefix or file:///directory",
        )
    return place
