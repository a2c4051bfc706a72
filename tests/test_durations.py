"""Durations: what can be written, and that what is formatted reads back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.durations import DURATION_MAX, format_duration, parse_duration, parse_period
from ebbtide.errors import InvalidInput
from tests.support.randomized import examples, randomized


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("20d", timedelta(days=20)),
        ("2w", timedelta(weeks=2)),
        ("30m", timedelta(minutes=30)),
        ("1h30min", timedelta(hours=1, minutes=30)),
        ("1d12h", timedelta(days=1, hours=12)),
        (" 7D ", timedelta(days=7)),
        ("0s", timedelta()),
        ("36500d", DURATION_MAX),
    ],
)
def test_parse(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


WRONG = (
    "",
    "d",
    "-7d",
    "7.5d",
    "d7",
    "\N{ARABIC-INDIC DIGIT SEVEN}d",
    "7d\n8",
    "36501d",
    "x" * 10_000,
)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        *((text, "") for text in WRONG),
        *((value, "20d, 12h, 2w") for value in (None, 7, timedelta(days=7), ["7d"], b"7d")),
        ("7", "'7' has no unit: write a number with a unit"),
        *(("2years", "such as 730d"), ("3mo", "such as 90d"), ("1Y", "such as 365d")),
    ],
)
def test_refused(value: object, says: str) -> None:
    """A long text is cut in the message."""
    with pytest.raises(InvalidInput) as caught:
        parse_duration(value)
    assert caught.value.kind == "invalid_duration"
    assert says in caught.value.message
    assert len(caught.value.message) < 220


@pytest.mark.parametrize("text", ["1m", " 12M ", "0m"])
def test_a_bare_m_is_no_period(text: str) -> None:
    """It could be minutes or months. Where data goes, the user must say which."""
    number = int(text.strip()[:-1])
    with pytest.raises(InvalidInput, match=f"write {number}min for minutes, or .*{30 * number}d"):
        parse_period(text)
    assert parse_duration(text) == timedelta(minutes=number)


@pytest.mark.parametrize("text", ["30min", "1h30m", "5m30s", "30d"])
def test_other_texts_are_periods(text: str) -> None:
    assert parse_period(text) == parse_duration(text)


@randomized("properties of values")
@examples("properties of values")
@given(st.integers(0, int(DURATION_MAX.total_seconds())))
def test_round_trip(seconds: int) -> None:
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration
