"""Randomized tests draw, repeat and tell of their cases as `tests/support/randomized.py` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, is_hypothesis_test
from hypothesis import strategies as st

from tests.support import randomized as subject
from tests.support import volumes as volumes_table
from tests.support.randomized import RUN, Outcome, examples, randomized
from tests.support.volumes import VOLUMES, Volume

SEEDED: Final = Volume(cases=4, long=40, share=1.0)
DRAWN: Final = Volume(examples=20, long=200, share=3.0)
TIMED: Final = Volume(seconds=5.0, long=50, share=2.0)


@pytest.fixture(autouse=True)
def volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, volume in (("seeded", SEEDED), ("drawn", DRAWN), ("timed", TIMED)):
        monkeypatch.setitem(VOLUMES, name, volume)
    monkeypatch.setitem(volumes_table.DRAWN, "alike", 2)
    for name, value in (("base_seed", 1), ("case", None), ("ends_at", None), ("worker", "")):
        monkeypatch.setattr(RUN, name, value)
    monkeypatch.setattr(RUN, "outcomes", {})
    monkeypatch.setattr(RUN, "shares", 0.0)


def seeds_of() -> list[int]:
    seen: list[int] = []

    @randomized("seeded")
    def test(seed: int) -> None:
        seen.append(seed)

    test()
    return seen


def test_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case has its own, which the base seed repeats. Runs with another one, processes of a
    long run, and other tests have others; a group of pytest-xdist changes none."""
    seeds = seeds_of()
    assert len(set(seeds)) == SEEDED.cases
    assert seeds_of() == seeds
    with monkeypatch.context() as patched:
        patched.setattr(RUN, "case", seeds[2])
        assert seeds_of() == [seeds[2]]
    for name, value in (("base_seed", 2), ("worker", "gw1")):
        with monkeypatch.context() as patched:
            patched.setattr(RUN, name, value)
            assert not set(seeds_of()) & set(seeds)
    for name in ("tests/other.py::test[a@b]", "tests/other.py::test"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{name} (call)")
        others = seeds_of()
        assert not set(others) & set(seeds)
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{name}@spark (call)")
        assert seeds_of() == others


@pytest.mark.parametrize("options", [{}, {"backend": subject.INDEPENDENT}])
def test_hypothesis_draws_by_the_seed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    def drawn() -> list[list[int]]:
        seen: list[list[int]] = []

        @randomized("drawn")
        @examples("drawn", **options)
        @given(st.lists(st.integers(), min_size=3))
        def test(numbers: list[int]) -> None:
            seen.append(numbers)

        test()
        return seen

    first = drawn()
    assert len(first) >= DRAWN.examples
    assert drawn() == first
    monkeypatch.setattr(RUN, "base_seed", 2)
    assert drawn() != first


def test_a_failure_names_its_case_and_leaves_its_files(tmp_path: Path) -> None:
    """Each case has a directory of its own, of which nothing is left when it has passed."""
    wanted = seeds_of()[1]

    @randomized("seeded")
    def test(tmp_path: Path, seed: int) -> None:
        assert not any(tmp_path.iterdir())
        (tmp_path / "file").touch()
        assert seed != wanted

    with pytest.raises(AssertionError) as caught:
        test(tmp_path=tmp_path)
    assert f"--case={wanted}" in caught.value.__notes__[0]
    (outcome,) = RUN.outcomes.values()
    assert outcome == Outcome("seeded", cases=1, seconds=outcome.seconds, failed=wanted)
    assert [path.name for path in tmp_path.rglob("file")] == ["file"]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class TestLongRuns:
    @pytest.fixture
    def time(self, monkeypatch: pytest.MonkeyPatch) -> Time:
        """A run of a minute that begins now."""
        time = Time()
        monkeypatch.setattr(subject, "time", time)
        monkeypatch.setattr(RUN, "ends_at", 60.0)
        monkeypatch.setattr(RUN, "sets_end_at", None)
        return time

    def lasting(self, time: Time, name: str, seconds: float) -> Callable[[], None]:
        @randomized(name)
        def test() -> None:
            time.now += seconds

        return test

    def test_each_test_has_its_share(self, time: Time) -> None:
        subject.share_out(["seeded", "drawn", "timed"])
        self.lasting(time, "seeded", 0.5)()
        assert time.now == pytest.approx(10, abs=0.5)
        self.lasting(time, "drawn", 0.5)()
        assert time.now == pytest.approx(40, abs=1)
        assert [outcome.cases for outcome in RUN.outcomes.values()] == [pytest.approx(60, abs=2)]

    def test_all_that_follow_pay_for_a_case_that_takes_long(self, time: Time) -> None:
        """Behind the end there is one case alone."""
        subject.share_out(["seeded", "seeded", "seeded", "timed"])
        for name, seconds, ends_at in (
            ("seeded", 30.0, 30.0),
            ("seeded", 0.5, 37.5),
            ("seeded", 0.5, 45.0),
            ("timed", 0.5, 60.0),
            ("seeded", 1.5, 61.5),
        ):
            self.lasting(time, name, seconds)()
            assert time.now == pytest.approx(ends_at)

    def test_sets_leave_most_of_the_time(self, time: Time) -> None:
        time.now = 10.0
        subject.share_out(["seeded"])
        for time.now, is_late in ((17.4, False), (17.6, True)):
            assert subject.is_too_late() == is_late

    def test_a_test_in_seconds_gets_what_is_left(self, time: Time) -> None:
        subject.share_out(["timed", "drawn", "seeded", "drawn", "drawn"])
        got: list[float] = []

        @randomized("timed")
        def test(seconds: float) -> None:
            got.append(seconds)
            time.now += seconds

        test()
        assert got == [5.0, 5.0]


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Of sets of alike tests a commit draws some; a long run tries what it has time for."""
    names = [f"test_{function}[{number}]" for function in "ab" for number in range(6)]
    return [
        pytest.Function.from_parent(request.node.parent, name=name, callobj=seeds_of)
        for name in names
    ]


def test_seeds_draw_others_of_a_set_until_all_had_their_turn(
    items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the table says. Tests of no set stay, and small sets are whole."""
    sets = dict.fromkeys(items, "alike")
    tried = set[pytest.Item]()
    for seed in range(60):
        monkeypatch.setattr(RUN, "base_seed", seed)
        left = set(items) - subject.not_drawn(sets)
        assert len(left) == 2
        assert left == set(items) - subject.not_drawn(sets)
        tried |= left
    assert tried == set(items)
    assert subject.not_drawn(dict.fromkeys(items) | dict.fromkeys(items[:1], "alike")) == set()


def test_a_long_run_tries_one_of_each_in_turn(
    items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {item: "large" if number else "small" for number, item in enumerate(items)}
    orders = []
    for seed in range(20):
        monkeypatch.setattr(RUN, "base_seed", seed)
        orders.append(subject.in_turn(sets))
        assert {sets[item] for item in orders[-1][:2]} == {"large", "small"}
        assert sorted(orders[-1], key=items.index) == items
    assert len({order[-1].name for order in orders}) > 5


def test_processes_of_a_long_run_share_them(
    items: list[pytest.Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert subject.dealt(items) == set(items)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    taken = list[pytest.Item]()
    for number in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        taken += subject.dealt(items)
    assert sorted(taken, key=items.index) == items


def test_every_test_with_chances_is_randomized(request: pytest.FixtureRequest) -> None:
    """Among all that this run collected: without the decorator its seed would never change."""
    plain = [
        item.nodeid
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and is_hypothesis_test(item.obj)
        and item.get_closest_marker("randomized") is None
    ]
    assert not plain
