"""The lifecycle that branches, tags, collections and projects share, as a function of the time.

Not for: changing a ref, or reading the clock. Source: Arvados wiki, "Expiring collections", whose
table of states is carried over to every kind of ref.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.retention.dates import to_utc


class LifecycleState(Enum):
    """Where a ref stands between being made and being gone."""

    PERSISTENT = "persistent"
    EXPIRING = "expiring"
    TRASHED = "trashed"
    GONE = "gone"

    @property
    def is_root(self) -> bool:
        """Whether the ref still keeps data: only what is gone releases."""
        return self is not LifecycleState.GONE

    @property
    def gives_signatures(self) -> bool:
        """Whether signed addresses are given; an expiring ref's end before its `expires_at`."""
        return self in (LifecycleState.PERSISTENT, LifecycleState.EXPIRING)

    def is_visible(self, *, include_expired: bool = False) -> bool:
        """Whether the ref is found by its id and shown in lists."""
        if self is LifecycleState.TRASHED:
            return include_expired
        return self is not LifecycleState.GONE

    def can_change(self, field: str) -> bool:
        """Whether a field of the ref can be changed: of a trashed one, `expires_at` alone."""
        if self is LifecycleState.TRASHED:
            return field == "expires_at"
        return self is not LifecycleState.GONE


_ORDER: Final = tuple(LifecycleState)
"""From being there for good to being gone."""


def state_at(
    expires_at: datetime | None, *, trash_time: timedelta, now: datetime
) -> LifecycleState:
    """The state at `now` of a ref that expires at `expires_at` (None: never).

    At `expires_at` itself it is trashed, and `trash_time` later, to the microsecond, gone. With
    a `trash_time` of zero it is gone at once. Raises InvalidInput (`invalid_date` for a date
    without a zone, `invalid_argument` for a negative `trash_time`).
    """
    now = to_utc(now, what="now")
    if trash_time < timedelta():
        raise InvalidInput("invalid_argument", "trash_time is negative: give zero or more")
    if expires_at is None:
        return LifecycleState.PERSISTENT
    # The difference, not the sum: `expires_at + trash_time` may lie past the last date there is.
    expired_since = now - to_utc(expires_at, what="expires_at")
    if expired_since < timedelta():
        return LifecycleState.EXPIRING
    return LifecycleState.TRASHED if expired_since < trash_time else LifecycleState.GONE


def expiry_asked(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """The `expires_at` to store for one that is asked for at `now`, in UTC: None stays None
    (never), the past becomes now.

    Raises InvalidInput (`invalid_date`) for a date without a zone, or outside the years 1 to
    9999 in UTC.
    """
    if expires_at is None:
        return None
    return max(to_utc(expires_at, what="expires_at"), to_utc(now, what="now"))


def earliest(*dates: datetime | None) -> datetime | None:
    """The first of the dates; None is never."""
    return min((date for date in dates if date is not None), default=None)


def worst(*states: LifecycleState) -> LifecycleState:
    """The state of what lies in other things, of its own state and theirs: in the trash with any
    of them, gone with any of them. At least one state is given."""
    return max(states, key=_ORDER.index)
