"""What runs must not leave behind.

Not for: what they must leave (`knowledge`).
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime, timedelta
from typing import Final

from tests.simulation.bucket import CONTENT, LAKE_PREFIX
from tests.simulation.knowledge import Checker
from tests.simulation.scheduler import Violation

REGISTERED: Final = (
    *("upload_tokens", "pending", "staged", "copies", "multipart_parts"),
    *("released", "leased_addresses"),
)
"""Tables that keep files, or have a date of their own for them."""

DATE_PRECISION: Final = timedelta(seconds=1)
"""Some storages date files in whole seconds."""


def require_none_left(checker: Checker, may_stay: Set[str]) -> None:
    """All times have run out: only what is needed is there. Raises Violation."""
    _require_none(
        checker, {key for key in checker.world.bucket.objects if not is_record(key)}, may_stay
    )


def require_gone(checker: Checker, began: datetime) -> None:
    """After a clean run that was alone: what was older than the grace at its beginning is gone.

    Except what is needed, promised or registered. What undos brought back is held for a while, so
    that nothing is checked behind one. Raises Violation.
    """
    world, known = checker.world, checker.known
    if any("/back/" in key for key in world.bucket.objects):
        return
    promised = {
        key
        for each in known.promises.values()
        if each.until is None or each.until > began
        for key in each.keys
    }
    registered = {
        f"{LAKE_PREFIX}{address}"
        for table in REGISTERED
        for (address,) in world.database.plain.execute(f"SELECT address FROM {table}").fetchall()
    }
    old = {
        key
        for key, stored in world.bucket.objects.items()
        if key.startswith(tuple(f"{LAKE_PREFIX}{each}" for each in CONTENT))
        and began - stored.written_at > world.settings.grace + DATE_PRECISION
    }
    _require_none(checker, old, promised | registered)


def _require_none(checker: Checker, keys: Set[str], may_stay: Set[str]) -> None:
    # Nobody can stop a writer that goes on after a purge. If it is not killed, it cleans up.
    late = checker.world.bucket.after_the_end
    killed = {key for key, writer in late.items() if writer.is_dead}
    left = keys - checker.needed() - checker.known.outside - may_stay - killed
    if left:
        raise Violation("left", f"nobody needs {', '.join(sorted(left))}")


def is_record(key: str) -> bool:
    """Whether it stays by the documents: OWNER, runs without quarantines, records of purges."""
    _, _, address = key.partition("/")
    if address.startswith("_ebbtide/gc/"):
        return "/quarantine/" not in address
    return (
        address == "_ebbtide/OWNER"
        or address.startswith(("_ebbtide/purges/",))
        or key.startswith("_ebbtide-purges/")
    )
