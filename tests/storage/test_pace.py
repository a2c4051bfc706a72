"""Deletes at the pace of a storage that gives so much and no more."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from ebbtide.storage.deletes import DECREASE, RATE_MIN, RATE_UNKNOWN, Pace


@dataclass
class Server:
    """Answers so many requests a second, and refuses others; a bucket of one second's worth."""

    rate: float
    left: float = field(init=False)
    at: float = 0.0
    answered: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.left = self.rate

    def ask(self, amount: int, now: float) -> bool:
        self.left = min(self.rate, self.left + (now - self.at) * self.rate)
        self.at = now
        if amount > self.left:
            self.refused += amount
            return False
        self.left -= amount
        self.answered += amount
        return True


@dataclass
class Simulation:
    """Clients of several processes, in simulated time. Each asks for a thousand at a time, one call
    after the other, which take `latency` seconds."""

    server: Server
    processes: int = 2
    threads: int = 4
    latency: float = 0.2
    now: float = 0.0
    amount: int = 1_000

    def __post_init__(self) -> None:
        self.paces = [Pace(lambda: self.now) for _ in range(self.processes)]
        self._calls = [(0.0, number) for number in range(self.processes * self.threads)]
        self._under_way: dict[int, tuple[float, bool]] = {}  # when it began, and the answer

    def run(self, seconds: float) -> float:
        """Let time pass; how much was answered in a second of it."""
        end, before = self.now + seconds, self.server.answered
        while self._calls[0][0] < end:
            self.now, number = heapq.heappop(self._calls)
            heapq.heappush(self._calls, (self.now + self._step(number), number))
        self.now = end
        return (self.server.answered - before) / seconds

    def _step(self, number: int) -> float:
        pace = self.paces[number % self.processes]
        if number in self._under_way:
            began, was_answered = self._under_way.pop(number)
            if was_answered:
                pace.answered(self.amount)
            else:
                pace.slow_down(began)
        if delay := pace.delay(self.amount):
            return delay
        self._under_way[number] = (self.now, self.server.ask(self.amount, self.now))
        return self.latency


def test_nothing_is_limited_before_it_is_refused() -> None:
    simulation = Simulation(Server(1e9))
    most = 8 * 1_000 / 0.2
    assert simulation.run(30) == pytest.approx(most, rel=0.02)
    assert all(pace.rate is None for pace in simulation.paces)


@pytest.mark.parametrize("rate", [3_500, 30_000])
def test_most_of_what_a_storage_gives_is_used(rate: float) -> None:
    simulation = Simulation(Server(rate))
    simulation.run(30)
    refused = simulation.server.refused
    assert simulation.run(120) > 0.7 * rate
    # Few are refused: a refused call costs the storage something too.
    assert simulation.server.refused - refused < 0.15 * 120 * rate


def test_pace_recovers_when_the_storage_does() -> None:
    simulation = Simulation(Server(30_000))
    simulation.run(20)
    simulation.server.rate = 2_000
    assert simulation.run(60) > 0.5 * 2_000
    simulation.server.rate = 30_000
    simulation.run(120)
    assert simulation.run(60) > 0.6 * 30_000


def test_those_who_share_a_storage_get_about_the_same() -> None:
    simulation = Simulation(Server(20_000), processes=4, threads=2)
    simulation.run(200)
    rates = [pace.rate or 0 for pace in simulation.paces]
    assert min(rates) > max(rates) / 4


class TestOne:
    def setup_method(self) -> None:
        self.now = 100.0
        self.pace = Pace(lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def test_one_decrease_for_all_that_were_under_way(self) -> None:
        for _ in range(10):
            self.pace.answered(1_000)
            self.now += 0.5
        began = [self.pace.wait(1_000) for _ in range(5)]
        self.now += 0.1
        for each in began:
            self.pace.slow_down(each)
        assert self.pace.rate == pytest.approx(2_000 * DECREASE, rel=0.1)

    @pytest.mark.parametrize(("seconds", "rate"), [(1, RATE_UNKNOWN), (4, 250), (10, 250)])
    def test_what_was_not_seen_for_long_is_not_taken_to_be_slow(
        self, seconds: int, rate: float
    ) -> None:
        """The first answers come before those to what is under way."""
        for _ in range(4 * seconds):
            self.now += 0.25
            self.pace.answered(60)
        self.now += 0.1
        self.pace.slow_down(self.pace.wait(60))
        assert self.pace.rate == pytest.approx(rate * DECREASE, rel=0.1)

    def test_it_never_stands_still(self) -> None:
        for _ in range(100):
            self.pace.slow_down(self.pace.wait(1))
            self.now += 1
        assert self.pace.rate == RATE_MIN
