"""Which commits of a lakeFS repository stay, from the definition: lakeFS issue 1932, with tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class KnownCommit:
    """Its parents, the first one first, and its date."""

    parents: tuple[str, ...]
    created: datetime


def active(
    commits: Mapping[str, KnownCommit],
    heads: Iterable[str],
    tags: Iterable[str],
    *,
    now: datetime,
    days: timedelta,
) -> set[str]:
    """The commits that stay if all branches have the same days: the heads, the first parent of each
    commit that is younger than that, what tags name, and of dangling commits the young ones. A
    commit is dangling that is no head and nobody's first parent."""
    known_heads = set(heads)
    found = known_heads | set(tags)
    first = {each.parents[0] for each in commits.values() if each.parents}
    dangling = commits.keys() - first - known_heads
    found |= {each for each in dangling if commits[each].created > now - days}
    for start in known_heads | dangling:
        commit = commits[start]
        while commit.parents:
            if commit.created > now - days:
                found.add(commit.parents[0])
            commit = commits[commit.parents[0]]
    return found
