"""What each part of a rule keeps: a period, the last N commits, the newest of each month.

*The period of a rule* keeps the commits made within it, and the commit that was the head when it
began. Source: lakeFS issue 1932, "Definitions" and "Algorithm".

*The last N*: the number of commits left to keep is passed down the main ancestry, from child to
parent. Where branches meet, the larger number is passed on.

*The newest of each hour, day, week, month or year*: each commit has a *ladder*, which lists the
newest commit of each period on its main ancestry, the latest period first. The parts of a ladder
are its *rungs*. Ladders share their lower rungs, as branches share history: a commit usually adds
one rung on top of its first parent's ladder. Only a commit that is older than some of its ancestors
is inserted further down, and then the rungs above its place are copied. A copied rung contains many
commits, and its copies share them. This keeps insertion cheap if dates are in no order. All ladders
together are one forest of rungs, and the numbers left are passed down it in the same way.

*The rule for tags*: a tag never moves, so that its rule applies to its own commit, not to a
history. A period applies to the commit's age. A count applies to all tagged commits together, the
newest first; of equal dates the smaller id comes first. Tags without a rule keep their commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Final

from ebbtide.durations import format_duration
from ebbtide.model import Commit
from ebbtide.retention.dates import instant_text, span_text, to_utc
from ebbtide.retention.forest import NO_PARENT, Forest
from ebbtide.retention.policy import PERIODS, Period, Rule

EVER: Final = datetime.min.replace(tzinfo=UTC)
_RESOLUTION: Final = timedelta(microseconds=1)

NO_RUNG: Final = -1
RUNG_COMMITS_MAX: Final = 32
Headcount = tuple[int, int]
"""A head's position, and the number of commits that its rule keeps, 0 without such a rule."""
PERIOD_NUMBER: Final[Mapping[Period, Callable[[datetime], int]]] = {
    "hourly": lambda instant: instant.toordinal() * 24 + instant.hour,
    "daily": datetime.toordinal,
    # Day 1 of the calendar was a Monday.
    "weekly": lambda instant: (instant.toordinal() - 1) // 7,
    "monthly": lambda instant: instant.year * 12 + instant.month,
    "yearly": lambda instant: instant.year,
}
"""The period of an instant in UTC, as a whole number that grows with time, so that periods compare
as numbers. Weeks are those of ISO 8601: a week begins on Monday, and belongs to the year of its
Thursday."""
_PERIOD_NAMES: Final[Mapping[Period, str]] = {
    "hourly": "hour %Y-%m-%dT%HZ",
    "daily": "day %Y-%m-%d",
    "weekly": "week %G-W%V",
    "monthly": "month %Y-%m",
    "yearly": "year %Y",
}


def window_start(rule: Rule, now: datetime) -> datetime | None:
    """Returns the first instant within the rule's period, or None if the rule has no period.

    A commit whose age equals the period is outside it. The window therefore begins a microsecond
    later.
    """
    if rule.keep_all:
        return EVER
    if rule.keep_within is None:
        return None
    try:
        return now - rule.keep_within + _RESOLUTION
    except OverflowError:  # the period begins before the first valid date
        return EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """For each position the head whose window keeps it, as an index into the list of heads, or -1.
    Both lists are empty if no head has a window.

    `within`: the commit was made in the window. `opening`: it is the first parent of a commit that
    was made in the window. It was therefore the head when the window opened.
    """

    within: list[int]
    opening: list[int]


def kept_by_window(forest: Forest, heads: Sequence[tuple[int, datetime | None]]) -> Windows:
    """Returns the positions that the heads' windows keep. `heads` has each head's commit and window
    start.

    A commit is in the window of some head exactly if it is in the longest window among the heads
    that have it on their main ancestry. The longest window is therefore passed from children to
    parents, in one pass. Of equal windows the first head's is named.
    """
    # Ordered from the shortest window to the longest, so that an index into this list compares
    # lengths. Of equal windows the last head comes first, so that the first head wins.
    ranked = [(start, which) for which, (_, start) in enumerate(heads) if start is not None]
    ranked.reverse()
    ranked.sort(key=itemgetter(0), reverse=True)
    size = len(forest.parent)
    if not ranked:
        return Windows(within=[], opening=[])
    rank_at = [-1] * size
    for rank, (_, which) in enumerate(ranked):
        rank_at[heads[which][0]] = rank
    within, opened_by = [-1] * size, [-1] * size
    created_at, parent = forest.created_at, forest.parent
    for position in forest.children_first():
        rank = rank_at[position]
        if rank < 0:
            continue
        above = parent[position]
        if above != NO_PARENT and rank_at[above] < rank:
            rank_at[above] = rank
        start, which = ranked[rank]
        if created_at[position] >= start:
            within[position] = which
            if above != NO_PARENT and opened_by[above] < rank:
                opened_by[above] = rank
    opening = [ranked[rank][1] if rank >= 0 else -1 for rank in opened_by]
    return Windows(within=within, opening=opening)


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


def period_name(period: Period, instant: datetime) -> str:
    """Returns the hour, day, week, month or year of a UTC instant, for people: `month 2026-03`."""
    return instant.strftime(_PERIOD_NAMES[period])


def kept_tagged(tagged: Iterable[Commit], rule: Rule, now: datetime) -> Iterator[tuple[str, str]]:
    """Yields (commit id, reason) for the intact tagged commits that the rule keeps.

    The strongest reason comes first. A commit that several parts keep comes several times.
    """
    newest_first = sorted(tagged, key=lambda commit: commit.commit_id)
    newest_first.sort(key=lambda commit: commit.created_at, reverse=True)
    start = window_start(rule, now)
    if start is not None and rule.keep_within is not None:
        period = format_duration(rule.keep_within)
        for commit in newest_first:
            if commit.created_at >= start:
                age = span_text(now - commit.created_at)
                yield commit.commit_id, f"created {age} before now, within the {period} of tags"
    if rule.keep_last is not None:
        for commit in newest_first[: rule.keep_last]:
            yield commit.commit_id, f"one of the last {rule.keep_last} tagged commits"
    for name in PERIODS:
        count = rule.period_count(name)
        if count is not None:
            yield from _newest_of_periods(newest_first, name, count)


def _newest_of_periods(
    newest_first: list[Commit], period: Period, count: int
) -> Iterator[tuple[str, str]]:
    seen: set[int] = set()
    for commit in newest_first:
        instant = to_utc(commit.created_at, what=instant_text(commit.created_at))
        number = PERIOD_NUMBER[period](instant)
        if number in seen:
            continue
        if len(seen) == count:
            return
        seen.add(number)
        name = period_name(period, instant)
        yield commit.commit_id, f"newest tagged commit of {name} (keep_{period} {count})"
