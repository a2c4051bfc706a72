"""The rule for tags. A tag never moves, so that its rule applies to its own commit, not to a
history.

A period applies to the commit's age. A count applies to all tagged commits together, the newest
first; of equal dates the smaller id comes first. Not for: tags without a rule, which keep their
commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from ebbtide.durations import format_duration
from ebbtide.model import Commit
from ebbtide.retention.dates import instant_text, span_text, to_utc
from ebbtide.retention.periods import PERIOD_NUMBER, period_name
from ebbtide.retention.rules import PERIODS, Period, Rule
from ebbtide.retention.windows import window_start


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
