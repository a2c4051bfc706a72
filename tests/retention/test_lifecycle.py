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
WEST, EAST = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def test_state_at() -> None:
    for expires_at, trash_time, state in (
        (None, WEEK, PERSISTENT),
        (NOW + MICROSECOND, WEEK, EXPIRING),
        (NOW, WEEK, TRASHED),
        (NOW - WEEK + MICROSECOND, WEEK, TRASHED),
        (NOW - WEEK, WEEK, GONE),
        (NOW + MICROSECOND, timedelta(), EXPIRING),
        (NOW, timedelta(), GONE),
        (LAST, WEEK, EXPIRING),
        (FIRST, WEEK, GONE),
    ):
        assert state_at(expires_at, trash_time=trash_time, now=NOW) is state, expires_at


def test_columns() -> None:
    """Visible, visible with expired ones, a root, signed, any field, its end."""
    for state, *expected in (
        (PERSISTENT, True, True, True, True, True, True),
        (EXPIRING, True, True, True, True, True, True),
        (TRASHED, False, True, True, False, False, True),
        (GONE, False, False, False, False, False, False),
    ):
        assert expected == [
            state.is_visible(),
            state.is_visible(include_expired=True),
            state.is_root,
            state.gives_signatures,
            state.can_change("description"),
            state.can_change("expires_at"),
        ], state


def test_refusals() -> None:
    naive = NOW.replace(tzinfo=None)
    for expires_at, now in ((None, naive), (naive, NOW)):
        with pytest.raises(InvalidInput, match="has no zone"):
            state_at(expires_at, trash_time=WEEK, now=now)
    with pytest.raises(InvalidInput, match="negative"):
        state_at(None, trash_time=-WEEK, now=NOW)


def test_expiry_asked() -> None:
    for asked, stored in (
        (None, None),
        (NOW - WEEK, NOW),
        (NOW - MICROSECOND, NOW),
        (NOW + MICROSECOND, NOW + MICROSECOND),
        (LAST, LAST),
        (FIRST, NOW),
        ((NOW + WEEK).astimezone(WEST), NOW + WEEK),
    ):
        found = expiry_asked(asked, now=NOW)
        assert found == stored
        if found is not None:
            assert found.tzinfo is UTC
            state_at(found, trash_time=WEEK, now=NOW)


def test_expiry_refused() -> None:
    for asked, says in (
        (NOW.replace(tzinfo=None), "has no zone"),
        (datetime.max.replace(tzinfo=WEST), "outside the years"),
        (datetime.min.replace(tzinfo=EAST), "outside the years"),
    ):
        with pytest.raises(InvalidInput, match=says) as caught:
            expiry_asked(asked, now=NOW)
        assert caught.value.kind == "invalid_date"


def test_earliest() -> None:
    assert earliest() is None
    assert earliest(None, NOW + WEEK, NOW, None) == NOW
