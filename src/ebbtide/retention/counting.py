"""Counting rules: the last N commits, or the newest commit of each of the last N periods.

The last N: how many are still to go flows down the main ancestry, and where branches meet, the
larger number goes on.

The newest of each period: for every commit, its *ladder* is what a head placed there would see,
namely the newest commit of each period of its main ancestry, most recent period first. Ladders
share their lower rungs, as branches share history: a commit usually adds one rung on top of its
first parent's ladder. Only a commit that is older than some of its ancestors goes in further
down, and then what is above its place is copied. So that this stays cheap where dates are in no
order, a copied rung holds many commits, and the copies of it share them. All ladders together
are then one forest of rungs, down which the numbers still to go flow just the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ebbtide.retention.forest import NO_PARENT, Forest

NO_RUNG: Final = -1
RUNG_COMMITS_MAX: Final = 32

Headcount = tuple[int, int]
"""A head's position, and how many commits its rule keeps; 0 where it has no such rule."""


def kept_last(forest: Forest, heads: Sequence[Headcount]) -> Iterator[tuple[int, int]]:
    """Yields (commit, which head) for the first N intact commits of each head's main ancestry.

    Of several heads, the one with most still to go is named, then the first.
    """
    if not any(count for _, count in heads):
        return
    size = len(heads)
    claims = _claims(heads, (position for position, _ in heads), size=len(forest.parent))
    parent, tombstoned = forest.parent, forest.tombstoned
    for position in forest.children_first():
        claim = claims[position]
        if claim < size:
            continue
        if not tombstoned[position]:
            yield position, size - 1 - claim % size
            claim -= size
        above = parent[position]
        if above != NO_PARENT and claims[above] < claim:
            claims[above] = claim


@dataclass(slots=True, kw_only=True)
class Ladders:
    """The ladders of the commits that some head asks for.

    `top[c]` is the uppermost rung of commit c's ladder, `commits[r]` and `below[r]` what a rung
    holds and the next rung. A rung is always made after those below it.
    """

    top: list[int]
    commits: list[tuple[int, ...]] = field(default_factory=list)
    below: list[int] = field(default_factory=list)

    def add(self, commits: tuple[int, ...], below: int) -> int:
        """A new rung above `below`."""
        self.commits.append(commits)
        self.below.append(below)
        return len(self.below) - 1


def period_ladders(
    forest: Forest, heads: Sequence[Headcount], number: Callable[[datetime], int]
) -> Ladders:
    """Ladders with one commit for each period; `number` gives the period of a date.

    Of two commits of one period the newer stands; at equal dates the one nearer to the head.
    Only as much of a ladder is sure to be right as the heads above it ask for.
    """
    ladders = Ladders(top=[NO_RUNG] * len(forest.parent))
    wanted = _wanted(forest, heads)
    dates = forest.created_at
    periods = [number(instant) for instant in dates]
    inserter = _Inserter(ladders=ladders, periods=periods, dates=dates)
    top, parent, commits, below = ladders.top, forest.parent, ladders.commits, ladders.below
    for position in forest.parents_first():
        if not wanted[position]:
            continue
        above = parent[position]
        first = NO_RUNG if above == NO_PARENT else top[above]
        if forest.tombstoned[position]:
            top[position] = first
            continue
        if first != NO_RUNG and periods[commits[first][0]] >= periods[position]:
            newest = commits[first][0]
            simple = periods[newest] == periods[position] and len(commits[first]) == 1
            if not simple or dates[newest] > dates[position]:
                top[position] = inserter.insert(position, first, count_max=wanted[position])
                continue
            first = below[first]
        top[position] = ladders.add((position,), first)
    return ladders


def kept_of_ladders(ladders: Ladders, heads: Sequence[Headcount]) -> Iterator[tuple[int, int]]:
    """Yields (commit, which head) for every commit among the first N of a head's ladder.

    Of several heads, the one with most still to go is named, then the first. A commit whose
    rung was copied may come more than once.
    """
    if not any(count for _, count in heads):
        return
    size = len(heads)
    tops = (ladders.top[position] for position, _ in heads)
    claims = _claims(heads, tops, size=len(ladders.below))
    for rung in range(len(claims) - 1, -1, -1):
        claim = claims[rung]
        if claim < size:
            continue
        which = size - 1 - claim % size
        held = ladders.commits[rung]
        for commit in held[: claim // size]:
            yield commit, which
        rest, next_rung = claim - len(held) * size, ladders.below[rung]
        if next_rung != NO_RUNG and claims[next_rung] < rest:
            claims[next_rung] = rest


def _claims(heads: Sequence[Headcount], places: Iterable[int], *, size: int) -> list[int]:
    """Per place, the largest claim of a head that begins there; `NO_RUNG` is no place.

    A claim says in one number how many are still to go and, below that, which head says so:
    the count times the number of heads, plus the head's place counted from the end.
    """
    claims = [0] * size
    for which, ((_, count), place) in enumerate(zip(heads, places, strict=True)):
        if count and place != NO_RUNG:
            claims[place] = max(claims[place], (count + 1) * len(heads) - 1 - which)
    return claims


def _wanted(forest: Forest, heads: Sequence[Headcount]) -> list[int]:
    """Per position, the largest count of the heads whose main ancestry it is on."""
    wanted = [0] * len(forest.parent)
    for position, count in heads:
        wanted[position] = max(wanted[position], count)
    parent = forest.parent
    for position in forest.children_first():
        above, count = parent[position], wanted[position]
        if above != NO_PARENT and wanted[above] < count:
            wanted[above] = count
    return wanted


@dataclass(slots=True, kw_only=True)
class _Inserter:
    """Puts a commit whose period is not above all others on the ladder in its place.

    `lowest` remembers, for a ladder that was found to be full, the lowest period that counts:
    where dates fall from one commit to the next, each is refused without another climb.
    """

    ladders: Ladders
    periods: list[int]
    dates: list[datetime]
    lowest: dict[tuple[int, int], int] = field(default_factory=dict)

    def insert(self, position: int, first: int, *, count_max: int) -> int:
        """The top of the ladder that starts at rung `first`, with the commit in its place."""
        periods, commits = self.periods, self.ladders.commits
        period = periods[position]
        if period < self.lowest.get((first, count_max), period):
            return first
        passed: list[int] = []
        passed_count = 0
        rung = first
        while rung != NO_RUNG and periods[commits[rung][-1]] > period:
            passed.append(rung)
            passed_count += len(commits[rung])
            if passed_count >= count_max:
                self.lowest[first, count_max] = periods[commits[rung][-1]]
                return first
            rung = self.ladders.below[rung]
        changed = self._with_commit(position, rung)
        if changed is None:
            return first
        below = NO_RUNG if rung == NO_RUNG else self.ladders.below[rung]
        return self._rebuild(passed, changed, below)

    def _with_commit(self, position: int, rung: int) -> tuple[int, ...] | None:
        """What the rung comes to hold; None if it has a newer commit of that period already."""
        if rung == NO_RUNG:
            return (position,)
        held, period = self.ladders.commits[rung], self.periods[position]
        place = bisect_left(held, -period, key=lambda commit: -self.periods[commit])
        if self.periods[held[place]] != period:
            return (*held[:place], position, *held[place:])
        if self.dates[held[place]] > self.dates[position]:
            return None
        return (*held[:place], position, *held[place + 1 :])

    def _rebuild(self, passed: list[int], changed: tuple[int, ...], below: int) -> int:
        """Rungs for the changed one and the copies of those above it, small ones put together."""
        rung, pending = below, changed
        if len(pending) > RUNG_COMMITS_MAX:
            half = len(pending) // 2
            rung, pending = self.ladders.add(pending[half:], rung), pending[:half]
        for copied in reversed(passed):
            held = self.ladders.commits[copied]
            if len(held) + len(pending) > RUNG_COMMITS_MAX:
                rung, pending = self.ladders.add(pending, rung), held
            else:
                pending = held + pending
        return self.ladders.add(pending, rung)
