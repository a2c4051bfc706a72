"""What version 1 has to remember beside the repository: what nothing reaches, and since when.

Expiries write down what they released, and plans what they see unreachable. Version 2 remembers by
itself, but goes by this for a grace after an upgrade.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide.errors import Conflict, NotFound
from ebbtide.storage import Storage

UNREACHABLE_ADDRESS: Final = "_ebbtide/gc/unreachable.json"


@dataclass(frozen=True, slots=True)
class Seen:
    """Since when each snapshot was seen unreachable, as a version of the file says; None where
    there is no file."""

    since: Mapping[str, datetime]
    version: str | None


def read_seen(storage: Storage) -> Seen:
    """What the file says now. A damaged one says nothing: waiting begins anew."""
    version: str | None = None
    since: dict[str, datetime] = {}
    with suppress(NotFound, ValueError, AttributeError, TypeError):
        data, version = storage.get_versioned(UNREACHABLE_ADDRESS)
        found = json.loads(data)
        since = {name: datetime.fromisoformat(date) for name, date in found.items()}
    return Seen(since, version)


def remember(
    storage: Storage,
    seen: Seen,
    names: Iterable[str],
    *,
    kept: Mapping[str, datetime],
    now: datetime,
) -> None:
    """Write down that these are unreachable, each since it was seen so first, beside what is
    `kept`.

    Only if nobody has written the file since it was read as `seen`, which is to be before the names
    were: whoever slept would bring back dates of what was reachable since. What is not written down
    counts from the next plan.
    """
    dates = {**kept, **{name: seen.since.get(name, now) for name in sorted(names)}}
    data = json.dumps({name: date.isoformat() for name, date in dates.items()}).encode()
    with suppress(Conflict):
        if seen.version is None:
            storage.put(UNREACHABLE_ADDRESS, data, create_only=True)
        else:
            storage.replace(UNREACHABLE_ADDRESS, data, version=seen.version)
