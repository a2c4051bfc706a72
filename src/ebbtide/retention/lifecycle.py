"""The lifecycle of refs, projects and repositories, as a function of the time.

Not for: changing a ref, or reading the clock. Source: Arvados wiki, "Expiring collections", whose
table of states applies to every kind of ref here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.retention.dates import to_utc


class LifecycleState(Enum):
    """The lifecycle state of a ref."""

    PERSISTENT = "persistent"
    EXPIRING = "expiring"
    TRASHED = "trashed"
    GONE = "gone"

    @property
    def is_root(self) -> bool:
        """Whether the ref keeps its data. Only a gone ref does not."""
        return STATES[self].keeps_data

    @property
    def gives_signatures(self) -> bool:
        """Whether locators are given. Those of an expiring ref end at its `expires_at` at the
        latest."""
        return STATES[self].gives_signatures

    def is_visible(self, *, include_expired: bool = False) -> bool:
        """Whether the ref is found by its id and shown in lists."""
        row = STATES[self]
        return row.is_listed or (include_expired and row.is_in_trash)

    def can_change(self, field: str) -> bool:
        """Whether a field of the ref can be changed: of a trashed ref only `expires_at`."""
        row = STATES[self]
        return row.is_listed or (row.is_in_trash and field == "expires_at")


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of the table of states. An item in the trash is found and listed only on request, and
    only its `expires_at` can be changed."""

    keeps_data: bool
    gives_signatures: bool
    is_listed: bool
    is_in_trash: bool


STATES: Final = {
    #                        keeps data, gives signatures, is listed, is in the trash
    LifecycleState.PERSISTENT: StateRow(True, True, True, False),
    LifecycleState.EXPIRING: StateRow(True, True, True, False),
    LifecycleState.TRASHED: StateRow(True, False, False, True),
    LifecycleState.GONE: StateRow(False, False, False, False),
}
"""The table of states of the source. `state_at` is its first column, the dates; in SQL,
`store.lifecycle`."""


def state_at(
    expires_at: datetime | None, *, trash_time: timedelta, now: datetime
) -> LifecycleState:
    """Returns the state at `now` of a ref that expires at `expires_at` (None: never).

    At `expires_at` the ref becomes trashed, and `trash_time` later it is gone, to the microsecond.
    With a `trash_time` of zero it is gone at once. Raises InvalidInput (`invalid_date` for a date
    without a zone, `invalid_argument` for a negative `trash_time`).
    """
    now = to_utc(now, what="now")
    if trash_time < timedelta():
        raise InvalidInput("invalid_argument", "trash_time is negative: give zero or more")
    if expires_at is None:
        return LifecycleState.PERSISTENT
    # The difference is used, not the sum: `expires_at + trash_time` may be no valid date.
    expired_since = now - to_utc(expires_at, what="expires_at")
    if expired_since < timedelta():
        return LifecycleState.EXPIRING
    return LifecycleState.TRASHED if expired_since < trash_time else LifecycleState.GONE


def delete_at(expires_at: datetime | None, trash_time: timedelta) -> datetime | None:
    """Returns the end of an item's time in the trash, at most the last date that there is."""
    if expires_at is None:
        return None
    try:
        return expires_at + trash_time
    except OverflowError:
        return datetime.max.replace(tzinfo=expires_at.tzinfo)


def expiry_asked(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """Returns the `expires_at` to store for a requested one, in UTC. None stays None (never). A
    past date becomes `now`.

    Raises InvalidInput `invalid_date` for a date without a zone, or outside the years 1 to 9999 in
    UTC.
    """
    if expires_at is None:
        return None
    return max(to_utc(expires_at, what="expires_at"), to_utc(now, what="now"))


def earliest(*dates: datetime | None) -> datetime | None:
    """Returns the earliest of the dates. None is never."""
    return min((date for date in dates if date is not None), default=None)
