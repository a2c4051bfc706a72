"""The table of states, at the exact instants at which they change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.retention import LifecycleState, state_at
from ebbtide.retention.lifecycle import earliest, expiry_asked

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
MICROSECOND = timedelta(microseconds=1)
PERSISTENT, EXPIRING, TRASHED, GONE = LifecycleState


@pytest.mark.parametrize(
    ("expires_at", "trash_time", "state"),
    [
        (None, WEEK, PERSISTENT),
        (None, timedelta(), PERSISTENT),
        (NOW + MICROSECOND, WEEK, EXPIRING),
        (NOW, WEEK, TRASHED),
        (NOW - WEEK + MICROSECOND, WEEK, TRASHED),
        (NOW - WEEK, WEEK, GONE),
        (NOW + MICROSECOND, timedelta(), EXPIRING),
        (NOW, timedelta(), GONE),
        (datetime.max.replace(tzinfo=UTC), WEEK, EXPIRING),
        (datetime.min.replace(tzinfo=UTC), WEEK, GONE),
    ],
)
def test_state_at(
    expires_at: datetime | None, trash_time: timedelta, state: LifecycleState
) -> None:
    assert state_at(expires_at, trash_time=trash_time, now=NOW) is state


@pytest.mark.parametrize(
    ("state", "visible", "visible_expired", "root", "signed", "any_field", "expires_at"),
    [
        (PERSISTENT, True, True, True, True, True, True),
        (EXPIRING, True, True, True, True, True, True),
        (TRASHED, False, True, True, False, False, True),
        (GONE, False, False, False, False, False, False),
    ],
)
def test_columns(
    state: LifecycleState,
    visible: bool,
    visible_expired: bool,
    root: bool,
    signed: bool,
    any_field: bool,
    expires_at: bool,
) -> None:
    assert state.is_visible() is visible
    assert state.is_visible(include_expired=True) is visible_expired
    assert state.is_root is root
    assert state.gives_signatures is signed
    assert state.can_change("description") is any_field
    assert state.can_change("expires_at") is expires_at


def test_refusals() -> None:
    naive = NOW.replace(tzinfo=None)
    for expires_at, now in ((None, naive), (naive, NOW)):
        with pytest.raises(InvalidInput, match="has no zone"):
            state_at(expires_at, trash_time=WEEK, now=now)
    with pytest.raises(InvalidInput, match="negative"):
        state_at(None, trash_time=-WEEK, now=NOW)


WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))
LAST = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        (None, None),
        (NOW - WEEK, NOW),
        (NOW - MICROSECOND, NOW),
        (NOW, NOW),
        (NOW + MICROSECOND, NOW + MICROSECOND),
        (LAST, LAST),
        (datetime.min.replace(tzinfo=UTC), NOW),
        ((NOW + WEEK).astimezone(WEST), NOW + WEEK),
        ((NOW - WEEK).astimezone(WEST), NOW),
    ],
)
def test_expiry_asked(asked: datetime | None, stored: datetime | None) -> None:
    found = expiry_asked(asked, now=NOW)
    assert found == stored
    assert found is None or found.tzinfo is UTC
    if found is not None:
        state_at(found, trash_time=WEEK, now=NOW)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (NOW.replace(tzinfo=None), "has no zone"),
        ((NOW - WEEK).replace(tzinfo=None), "has no zone"),
        (datetime.max.replace(tzinfo=WEST), "outside the years"),
        (datetime.min.replace(tzinfo=EAST), "outside the years"),
    ],
)
def test_expiry_refused(asked: datetime, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        expiry_asked(asked, now=NOW)
    assert caught.value.kind == "invalid_date"


def test_earliest() -> None:
    assert earliest() is None
    assert earliest(None, None) is None
    assert earliest(None, NOW + WEEK, NOW, None) == NOW
