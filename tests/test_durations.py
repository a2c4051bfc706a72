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
        ("30min", timedelta(minutes=30)),
        ("1h30min", timedelta(hours=1, minutes=30)),
        ("1d12h", timedelta(days=1, hours=12)),
        (" 7D ", timedelta(days=7)),
        ("0s", timedelta()),
        ("36500d", DURATION_MAX),
    ],
)
def test_parse(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d",
        "-7d",
        "7.5d",
        "7y",
        "d7",
        "\N{ARABIC-INDIC DIGIT SEVEN}d",
        "7d\n8",
        "36501d",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert caught.value.kind == "invalid_duration"


@pytest.mark.parametrize("value", [None, 7, True, 7.0, timedelta(days=7), ["7d"], b"7d"])
def test_only_text_is_a_duration(value: object) -> None:
    with pytest.raises(InvalidInput, match="20d, 12h, 2w"):
        parse_duration(value)


def test_a_bare_number_is_told_how_to_be_written() -> None:
    with pytest.raises(InvalidInput, match="'7' has no unit: write a number with a unit"):
        parse_duration("7")


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration("x" * 10_000)
    assert len(caught.value.message) < 220


@pytest.mark.parametrize(
    ("text", "instead"),
    [("1y", "365d"), ("2years", "730d"), ("3mo", "90d"), ("6months", "180d"), ("1Y", "365d")],
)
def test_months_and_years_are_told_as_days(text: str, instead: str) -> None:
    with pytest.raises(InvalidInput, match=f"such as {instead}") as caught:
        parse_duration(text)
    assert caught.value.kind == "invalid_duration"


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
