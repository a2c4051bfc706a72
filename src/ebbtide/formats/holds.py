"""Holds on the commits of a repository without a database: until when each commit stays, whatever
the policy says. An undo holds the commits that it restores.

One file under `_ebbtide/gc/` has all holds. Not for: holds that users set, which are in the policy.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Final

from ebbtide.errors import Conflict, NotFound, Refused
from ebbtide.storage import Storage

HOLDS_ADDRESS: Final = "_ebbtide/gc/reopened.json"
WRITES_MAX: Final = 20
"""The most attempts to write the file, while other writers are faster."""


def read_holds(storage: Storage, now: datetime) -> dict[str, datetime]:
    """Returns until when each commit is held, without holds that have ended.

    Raises Refused `plan_corrupt` if the file is not as it was written: then the holds are unknown.
    """
    return _read_holds(storage, now)[0]


def _read_holds(storage: Storage, now: datetime) -> tuple[dict[str, datetime], str | None]:
    """Returns the holds, and the version of their file; None if there is no file."""
    try:
        data, version = storage.get_versioned(HOLDS_ADDRESS)
        found = json.loads(data)
        holds = {name: datetime.fromisoformat(until) for name, until in found.items()}
    except NotFound:
        return {}, None
    except (ValueError, AttributeError, TypeError) as error:
        raise Refused(
            "plan_corrupt",
            f"{storage.url}/{HOLDS_ADDRESS} is not as it was written ({error}): restore it from a "
            "backup, or delete it if no commit that an undo restored is needed",
        ) from error
    return {name: until for name, until in holds.items() if until > now}, version


def write_holds(
    storage: Storage, commit_ids: Collection[str], *, until: datetime, now: datetime
) -> None:
    """Holds commits until `until`, and keeps the holds of others that are added meanwhile.

    Raises Refused `plan_corrupt`, and Conflict `object_changed` or `object_exists` if other writers
    were faster each time.
    """
    for attempt in range(1, WRITES_MAX + 1):
        held, version = _read_holds(storage, now)
        held |= dict.fromkeys(commit_ids, until)
        content = {name: end.isoformat() for name, end in sorted(held.items())}
        data = json.dumps(content, indent=1).encode()
        try:
            if version is None:
                storage.put(HOLDS_ADDRESS, data, create_only=True)
            else:
                storage.replace(HOLDS_ADDRESS, data, version=version)
            return
        except Conflict:
            if attempt == WRITES_MAX:
                raise
