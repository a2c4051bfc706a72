"""Ids: shape, order, uniqueness, and the way back to the instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput
from ebbtide.ids import ID_PATTERN, descending_id, instant_of, new_id, numbered_id
from tests.support.randomized import examples, randomized

INSTANTS = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
)


def test_random_ids_have_their_shape_and_differ() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for make in (new_id, lambda: descending_id(now)):
        made = {make() for _ in range(10_000)}
        assert len(made) == 10_000
        assert all(re.fullmatch(ID_PATTERN, each) for each in made)


@randomized("properties of values")
@examples("properties of values")
@given(INSTANTS, INSTANTS)
def test_the_newer_id_sorts_first(one: datetime, other: datetime) -> None:
    first, second = descending_id(one), descending_id(other)
    if one != other:
        assert (first < second) == (one > other)
    assert first != second


@randomized("properties of values")
@examples("properties of values")
@given(INSTANTS)
def test_the_instant_comes_back(instant: datetime) -> None:
    """In whatever zone it is given."""
    made = descending_id(instant.astimezone(timezone(timedelta(hours=5))))
    assert re.fullmatch(ID_PATTERN, made)
    assert instant_of(made) == instant


@pytest.mark.parametrize("text", ["", "x" * 32, "f" * 31, "F" * 32, "0" * 32, "f" * 32 + "\n"])
def test_other_text_has_no_instant(text: str) -> None:
    assert instant_of(text) is None


@pytest.mark.parametrize("instant", [datetime(2026, 1, 1), datetime(1969, 12, 31, tzinfo=UTC)])
def test_instants_without_an_id(instant: datetime) -> None:
    with pytest.raises(InvalidInput) as caught:
        descending_id(instant)
    assert caught.value.kind == "invalid_date"


def test_numbered_ids_sort_by_their_numbers_and_are_random_besides() -> None:
    made = [numbered_id(number) for number in range(1000)]
    assert made == sorted(made)
    assert len({each[8:] for each in made}) == 1000
    assert all(re.fullmatch(ID_PATTERN, each) for each in (*made, numbered_id(2**32)))
