"""Counting rules: the last N commits, or the newest commit of each of the last N periods.

The last N: the number of commits left to keep is passed down the main ancestry, from child to
parent. Where branches meet, the larger number is passed on.

The newest of each period: each commit has a *ladder*, which lists the newest commit of each period
on its main ancestry, the latest period first. The parts of a ladder are its *rungs*. Ladders share
their lower rungs, as branches share history: a commit usually adds one rung on top of its first
parent's ladder. Only a commit that is older than some of its ancestors is inserted further down,
and then the rungs above its place are copied. A copied rung contains many commits, and its copies
share them. This keeps insertion cheap if dates are in no order. All ladders together are one forest
of rungs, and the numbers left are passed down it in the same way.
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
"""A head's position, and the number of commits that its rule keeps, 0 without such a rule."""


def kept_last(forest: Forest, heads: Sequence[Headcount]) -> Iterator[tuple[int, int]]:
    """Yields (commit, head index) for the first N intact commits of each head's main ancestry.

    If several heads keep a commit, the head with the most commits left is named. Of heads with the
    same number left, the first is named.
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
    """The ladders of the commits for which some head needs one.

    `top[c]` is the uppermost rung of commit c's ladder. `commits[r]` are the commits of a rung, and
    `below[r]` is the next rung. A rung is always made after the rungs below it.
    """

    top: list[int]
    commits: list[tuple[int, ...]] = field(default_factory=list)
    below: list[int] = field(default_factory=list)

    def add(self, commits: tuple[int, ...], below: int) -> int:
        """Adds a rung above `below`, and returns it."""
        self.commits.append(commits)
        self.below.append(below)
        return len(self.below) - 1


def period_ladders(
    forest: Forest, heads: Sequence[Headcount], number: Callable[[datetime], int]
) -> Ladders:
    """Returns ladders with one commit for each period. `number` returns the period of a date.

    If two commits are in one period, the newer one is listed. If their dates are equal, the one
    nearer to the head is listed. A ladder is only correct as far as the heads with this commit on
    their main ancestry need it.
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
    """Yields (commit, head index) for the first N commits of each head's ladder.

    If several heads keep a commit, the head with the most commits left is named. Of heads with the
    same number left, the first is named. A commit can come more than once, because several ladders
    can have copies of one rung.
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
    """Returns for each place the largest claim of a head that begins there. `NO_RUNG` is no place.

    A claim is one number for the commits left and the head that claims them: the count times the
    number of heads, plus the head's index counted from the end.
    """
    claims = [0] * size
    for which, ((_, count), place) in enumerate(zip(heads, places, strict=True)):
        if count and place != NO_RUNG:
            claims[place] = max(claims[place], (count + 1) * len(heads) - 1 - which)
    return claims


def _wanted(forest: Forest, heads: Sequence[Headcount]) -> list[int]:
    """Returns for each position the largest count of the heads that have it on their main
    ancestry."""
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
    """Inserts a commit into a ladder if its period is not later than all others there.

    `lowest` remembers the lowest period that counts in a full ladder. If dates descend from commit
    to commit, each commit is then refused without another search.
    """

    ladders: Ladders
    periods: list[int]
    dates: list[datetime]
    lowest: dict[tuple[int, int], int] = field(default_factory=dict)

    def insert(self, position: int, first: int, *, count_max: int) -> int:
        """Returns the top of the ladder that starts at rung `first`, with the commit inserted."""
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
        """Returns the rung's commits with this one inserted, or None if a newer commit of the
        period is there."""
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
        """Adds a rung for `changed` and copies of the rungs above it. Small rungs are joined."""
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
