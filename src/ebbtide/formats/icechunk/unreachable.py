"""The record of version 1 beside the repository: since when snapshots are unreachable.

Expiries record the snapshots that they release. Plans record those that they see unreachable.
Version 2 has its own records, but uses this one for a grace after an upgrade.
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
class FirstSeen:
    """Since when each snapshot was seen unreachable, and the version of the file that says so.
    `version` is None if there is no file."""

    since: Mapping[str, datetime]
    version: str | None


def read_seen(storage: Storage) -> FirstSeen:
    """Reads the present file. A damaged file counts as empty: the grace then begins anew."""
    version: str | None = None
    since: dict[str, datetime] = {}
    with suppress(NotFound, ValueError, AttributeError, TypeError):
        data, version = storage.get_versioned(UNREACHABLE_ADDRESS)
        found = json.loads(data)
        since = {name: datetime.fromisoformat(date) for name, date in found.items()}
    return FirstSeen(since, version)


def remember(
    storage: Storage,
    seen: FirstSeen,
    names: Iterable[str],
    *,
    kept: Mapping[str, datetime],
    now: datetime,
) -> None:
    """Records since when the snapshots `names` are unreachable, besides the dates in `kept`.

    Writes only if nobody has written the file since it was read as `seen`. Read the file before you
    determine `names`. Otherwise a suspended process could restore old dates of snapshots that were
    reachable meanwhile. If a snapshot is not recorded, the next plan records it.
    """
    dates = {**kept, **{name: seen.since.get(name, now) for name in sorted(names)}}
    data = json.dumps({name: date.isoformat() for name, date in dates.items()}).encode()
    with suppress(Conflict):
        if seen.version is None:
            storage.put(UNREACHABLE_ADDRESS, data, create_only=True)
        else:
            storage.replace(UNREACHABLE_ADDRESS, data, version=seen.version)
