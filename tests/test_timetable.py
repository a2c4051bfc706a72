"""Timetables: when a cron text is due, also where clocks change, and the delay of starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput
from ebbtide.timetable import JITTER_MAX, Timetable
from tests.support.randomized import examples, randomized

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
BERLIN = "Europe/Berlin"
ZONES = ("UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Africa/Cairo")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due_times(cron: str, zone: str, start: str, end: str) -> list[str]:
    timetable, due = Timetable.parse(cron, timezone=zone, now=NOW), at(start)
    found: list[str] = []
    while (due := timetable.due_after(due)) <= at(end):
        found.append(f"{due:%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "start", "end", "due"),
    [
        # Europe: from 02:00 to 03:00 on 2026-03-29, from 03:00 to 02:00 on 2026-10-25.
        ("30 2 * * *", BERLIN, "2026-03-28", "2026-03-31", "28 01:30, 29 01:00, 30 00:30"),
        ("0 3 * * *", BERLIN, "2026-03-28", "2026-03-31", "28 02:00, 29 01:00, 30 01:00"),
        ("30 2 * * *", BERLIN, "2026-10-24", "2026-10-27", "24 00:30, 25 00:30, 26 01:30"),
        ("30 * * * *", BERLIN, "2026-10-25", "2026-10-25T03", "25 00:30, 25 01:30, 25 02:30"),
        ("30 * * * *", BERLIN, "2026-03-29", "2026-03-29T02", "29 00:30, 29 01:30"),
        # New York: from 02:00 to 03:00 on 2026-03-08.
        ("15 2 * * *", "America/New_York", "2026-03-08", "2026-03-10", "08 07:00, 09 06:15"),
        # Lord Howe: half an hour, from 02:00 to 02:30 on 2026-10-04.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03", "2026-10-05", "03 15:30, 04 15:15"),
        ("0 0 * * sun", "UTC", "2026-03-01T12", "2026-03-15", "08 00:00, 15 00:00"),
        ("0 5 1,15 * *", "UTC", "2026-03-01T12", "2026-04-02", "15 05:00, 01 05:00"),
    ],
)
def test_due_times(cron: str, zone: str, start: str, end: str, due: str) -> None:
    """Hours that a change of clocks skips or repeats are among them."""
    assert ", ".join(due_times(cron, zone, start, end)) == due


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("@daily", "UTC"),
        ("61 * * * *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("0 3 * * *" + " " * 9 + "0" * 300, "UTC"),
        *(("0 3 * * *", zone) for zone in ("", "Europe", "../../etc/passwd", "a\0b", "Z" * 300)),
    ],
)
def test_refused(cron: str, zone: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Timetable.parse(cron, timezone=zone, now=NOW)
    assert caught.value.kind == "invalid_schedule"
    with pytest.raises(InvalidInput, match="longer than a day"):
        Timetable.parse("0 3 * * *", jitter=JITTER_MAX + MINUTE, now=NOW)


def debian_due(
    hours: str, minute: int, zone: ZoneInfo, first: datetime, last: datetime
) -> set[datetime]:
    """The due times of `minute` at `hours`, from the definition, minute by minute.

    Local minutes that a change skipped are due right after it, and those that it repeats are due at
    the first. With `*`, every minute of real time counts.
    """
    found: set[datetime] = set()
    seen: set[datetime] = set()
    instant = first
    previous = (first - MINUTE).astimezone(zone).replace(tzinfo=None)
    while instant <= last:
        local = instant.astimezone(zone).replace(tzinfo=None)
        if hours == "*":
            due = local.minute == minute
        else:
            between = [
                previous + n * MINUTE for n in range(1, max(0, (local - previous) // MINUTE))
            ]
            wanted = [
                each
                for each in (*between, local)
                if each.hour == int(hours) and each.minute == minute and each not in seen
            ]
            seen |= set(wanted)
            due = bool(wanted)
        if due:
            found.add(instant)
        previous = local
        instant += MINUTE
    return found


@randomized("properties of values")
@examples("properties of values")
@given(
    st.sampled_from(ZONES[1:]),
    st.sampled_from(["*", *map(str, range(5))]),
    st.integers(0, 59),
    st.sampled_from([at("2026-03-28"), at("2026-10-24"), at("2026-03-07"), at("2026-10-31"),
                     at("2026-04-04"), at("2026-10-03"), at("2026-04-23"), at("2026-10-29")]),
)  # fmt: skip
def test_changes_of_clocks(zone: str, hours: str, minute: int, day: datetime) -> None:
    """Two days around a change, against the definition."""
    last = day + timedelta(days=2)
    timetable = Timetable.parse(f"{minute} {hours} * * *", timezone=zone, now=day)
    found, due = set(), day - MINUTE
    while (due := timetable.due_after(due)) <= last:
        found.add(due)
    # If a clock is set by half an hour only, the library leaves out what is repeated or skipped.
    by_half = day in (at("2026-04-04"), at("2026-10-03"))
    assume(not (zone == "Australia/Lord_Howe" and hours == "*" and by_half))
    # A local minute before `day` can come a second time after it, which the definition cannot see.
    expected = debian_due(hours, minute, ZoneInfo(zone), day - timedelta(days=1), last)
    assert found == {each for each in expected if each >= day}


CRONS = st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "30 2 * * *", "0 */6 * * mon"])


@randomized("properties of values")
@examples("properties of values")
@given(
    CRONS,
    st.sampled_from(ZONES),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    st.integers(0, 24 * 3600),
    st.text(max_size=5),
)
def test_starts_keep_the_order(
    cron: str, zone: str, start: datetime, jitter: int, name: str
) -> None:
    """The next due time is after the instant, whatever its seconds, and is the same for each
    instant before it. A start is within the jitter, and before the next due time."""
    begun = start.replace(tzinfo=UTC)
    timetable = Timetable(cron, zone, timedelta(seconds=jitter))
    due = [timetable.due_after(begun)]
    due += [timetable.due_after(due[-1])]
    due += [timetable.due_after(due[-1])]
    assert begun < due[0]
    assert timetable.due_after(due[0] - timedelta(microseconds=1)) == due[0]
    for each, following in pairwise(due):
        delay = timetable.start_of(each, name) - each
        assert timedelta(0) <= delay <= timedelta(seconds=jitter)
        assert each + delay < following


def test_delays_differ() -> None:
    """Between repositories, and from one night to the next."""
    timetable = Timetable("0 3 * * *", "UTC", HOUR)
    assert timetable.describe() == "At 03:00 every day"
    starts = {timetable.start_of(at(f"2026-03-{day:02}T03:00"), name) - at(f"2026-03-{day:02}")
              for name in "abc" for day in range(1, 5)}  # fmt: skip
    assert len(starts) == 12
