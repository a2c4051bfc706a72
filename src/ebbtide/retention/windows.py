"""The period of a rule: commits made within it, and the commit that was the head when it began.

Not for: counting rules (`counting`). Source: lakeFS issue 1932, "Definitions" and "Algorithm".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Final

from ebbtide.retention.forest import NO_PARENT, Forest
from ebbtide.retention.rules import Rule

EVER: Final = datetime.min.replace(tzinfo=UTC)
_RESOLUTION: Final = timedelta(microseconds=1)


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
