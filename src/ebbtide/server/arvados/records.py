"""Records and lists in Arvados's form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def instant_text(instant: datetime | None) -> str | None:
    """Returns an instant with nine digits of a second, as Arvados writes it."""
    if instant is None:
        return None
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z"


def item_list(
    kind: str,
    items: Sequence[dict[str, Any]],
    *,
    offset: int = 0,
    limit: int | None = None,
    available: int | None,
) -> dict[str, Any]:
    """Returns a page of a list. `available` is the number of items in the whole list; the answer
    leaves it out if it is None."""
    found: dict[str, Any] = {
        "kind": f"arvados#{kind}List",
        "etag": "",
        "self_link": "",
        "offset": offset,
        "limit": len(items) if limit is None else limit,
        "items": list(items),
    }
    if available is not None:
        found["items_available"] = available
    return found
