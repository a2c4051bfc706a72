"""Helpers for everything with a lifecycle: filters of lists, free names, and errors.

Not for: the states (`retention.lifecycle`), or their conditions in SQL (`database.expiries`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ebbtide.errors import Conflict
from ebbtide.escaping import shown
from ebbtide.retention.dates import to_utc
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.database.expiries import StateFilter
from ebbtide.store.names import unique_name

IDS_SHOWN: Final = 20
SUFFIX_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """A filter of a list. With `include_expired`, the list includes the trash.

    `state`, `expires_after` (this instant or later) and `expires_before` restrict the list.
    """

    include_expired: bool = False
    state: LifecycleState | None = None
    expires_after: datetime | None = None
    expires_before: datetime | None = None

    def at(self, now: datetime, trash_time: timedelta) -> StateFilter:
        """Returns the filter at an instant. Raises InvalidInput `invalid_date` for a date without a
        zone."""
        dates = (self.expires_after, self.expires_before)
        from_date, to_date = (None if d is None else to_utc(d, what="expires_at") for d in dates)
        return StateFilter(
            now=now,
            trash_time=trash_time,
            include_expired=self.include_expired,
            state=self.state,
            from_date=from_date,
            to_date=to_date,
        )


def ambiguous(kind: str, name: str, ids: Sequence[str]) -> Conflict:
    """Returns the error for a name that several things in the trash have."""
    more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
    return Conflict(
        "ref_ambiguous",
        f"more than one deleted {kind} has the name {shown(name)}: name it by its id, one of (the "
        f"last deleted first) {', '.join(ids[:IDS_SHOWN])}{more}",
        ids=list(ids),
    )


def taken(kind: str, name: str) -> Conflict:
    """Returns the error for a name that is taken."""
    return Conflict(f"{kind}_exists", f"there is a {kind} {shown(name)} already")


def free_name(name: str, is_taken: Callable[[str], bool], *, length_max: int) -> str:
    """Returns the name if it is free, else the first free one of `NAME-2`, `NAME-3` and so on.

    For names that may contain neither blanks nor parentheses.
    """
    if not is_taken(name):
        return name
    return unique_name(name[: length_max - SUFFIX_MAX], is_taken, form="{}-{}")


def not_trashed(kind: str, path: str, named: Iterable[tuple[str, LifecycleState]]) -> Conflict:
    """Returns the error for a restore of a project or collection that is not in the trash.

    `named` are all projects or collections with its name at its place, each with its state.
    """
    ids = [item_id for item_id, state in named if state is LifecycleState.TRASHED]
    hint = ""
    if ids:
        hint = (
            f". The trash holds {kind} {' and '.join(ids)} of that name: restore it by its id, and "
            "ask for a unique name (--ensure-unique-name)"
        )
    return Conflict(
        f"{kind}_exists",
        f"{kind} {shown(path)} is not in the trash: nothing was restored{hint}",
        ids=ids,
    )
