"""What everything with a lifecycle has in common: what lists show, and names that are taken.

Not for: the states (`retention.lifecycle`), or what they mean in SQL (`metadata.expiries`).
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
from ebbtide.store.metadata.expiries import StateFilter
from ebbtide.store.names import unique_name

IDS_SHOWN: Final = 20
SUFFIX_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a list shows: with `include_expired` the trash too; of that only what is in one `state`,
    or expires at `expires_after` or later, or before `expires_before`."""

    include_expired: bool = False
    state: LifecycleState | None = None
    expires_after: datetime | None = None
    expires_before: datetime | None = None

    def at(self, now: datetime, trash_time: timedelta) -> StateFilter:
        """The same at an instant. InvalidInput `invalid_date` for a date without a zone."""
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
    """The error for a name that several things in the trash bear."""
    more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
    return Conflict(
        "ref_ambiguous",
        f"several that were deleted bear the name {shown(name)}, the last first: name the {kind} "
        f"by its id, one of {', '.join(ids[:IDS_SHOWN])}{more}",
        ids=list(ids),
    )


def taken(kind: str, name: str) -> Conflict:
    """The error for a name that is not free."""
    return Conflict(f"{kind}_exists", f"there is a {kind} {shown(name)} already")


def free_name(name: str, is_taken: Callable[[str], bool], *, length_max: int) -> str:
    """The name, or where it is taken the first of `dev-2`, `dev-3`, … that is not; for names that
    may hold neither blanks nor parentheses."""
    if not is_taken(name):
        return name
    return unique_name(name[: length_max - SUFFIX_MAX], is_taken, form="{}-{}")


def not_trashed(kind: str, path: str, named: Iterable[tuple[str, LifecycleState]]) -> Conflict:
    """The error for a project or collection that is to be restored and is not in the trash. `named`
    are all that have its name at its place."""
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
