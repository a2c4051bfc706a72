"""Random histories and policies for the properties of retention. Not for: examples by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from ebbtide.model import Commit, Ref, RefKind

NOW = datetime(2026, 6, 1, 0, 30, tzinfo=UTC)  # a month and a week have just begun
ELSEWHERE = timezone(timedelta(hours=5, minutes=30))

BRANCH_NAMES = ("main", "dev", "user-a", "user-b", "user-ab", "release")
PATTERNS = ("main", "dev", "user-*", "user-a*", "user-[ab]", "user-?", "*e*", "nobody", "*")
PERIODS = ("1h", "5h", "1d", "3d", "7d", "30d")
COUNTED = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly", "keep_yearly")

LEASES = (NOW - timedelta(hours=1), NOW, NOW + timedelta(hours=1))


def _commit(source: random.Random, place: int, age: timedelta) -> Commit:
    first, second = (f"c{source.randrange(max(place, 1))}" for _ in range(2))
    usual = [(f"c{place - 1}",)] * 4
    parents = source.choice([*usual, (first,), (first, second), ("gone",), ()])
    return Commit(
        commit_id=f"c{place}",
        parent_ids=parents if place else (),
        created_at=(NOW - age).astimezone(source.choice((UTC, UTC, UTC, ELSEWHERE))),
        tree_id=f"t{place}",
        tombstoned=source.random() < 0.25,
        leased_until=source.choice(LEASES) if source.random() < 0.2 else None,
    )


def _ref(name: str, kind: RefKind, commit_id: str, keeps_data: bool) -> Ref:
    """Only collections may let their data go."""
    return Ref(name, kind, commit_id, keeps_data=keeps_data or kind != "collection")


def even(seed: int) -> tuple[list[Commit], list[Ref], dict[str, Any]]:
    """A history, refs and a policy: several roots and heads, merges, equal dates, and dates in any
    order; content of collections, which belongs to no history; refs that keep no data."""
    source = random.Random(seed)
    size = source.randint(1, 14)
    span = source.choice((6, 60, 200, 20_000))
    offs = (-1, 0, 0, 0, 1)  # periods are met exactly, and a little off them
    ages = [
        timedelta(hours=source.randint(-1, span), microseconds=source.choice(offs))
        for _ in range(size)
    ]
    if source.random() < 0.7:
        ages.sort(reverse=True)
    made = [_commit(source, n, age) for n, age in enumerate(ages)]
    for _ in range(source.choice((0, 0, 1, 3))):
        age = timedelta(hours=source.randint(-1, span))
        content = _commit(source, len(made), age)
        made.append(replace(content, parent_ids=(), is_content=True))
    kinds: tuple[RefKind, ...] = ("branch", "branch", "branch", "tag", "tag", "collection")
    pointed = [
        _ref(
            source.choice(BRANCH_NAMES),
            source.choice(kinds),
            made[max(source.randrange(len(made)), source.randrange(len(made)))].commit_id,
            source.random() < 0.5,
        )
        for _ in range(source.randint(0, 4))
    ]
    policy: dict[str, Any] = {"default": _rule(source)}
    for pattern in source.sample(PATTERNS, source.randint(0, 3)):
        policy.setdefault("branches", {})[pattern] = _rule(source)
    branches = policy.get("branches", {})
    if "*" in branches or (branches and source.random() < 0.2):
        del policy["default"]
    if source.random() < 0.6:
        policy["tags"] = _rule(source)
    if source.random() < 0.2:
        policy["holds"] = [source.choice(made).commit_id, "unknown"]
    source.shuffle(made)
    return made, pointed, policy


def large(seed: int) -> tuple[list[Commit], list[Ref]]:
    """A few hundred commits in long chains, most dates in no order, some of them equal."""
    source = random.Random(seed)
    size, disorder = source.randrange(100, 300), source.choice((0, 3, 400))
    made: list[Commit] = []
    for place in range(size):
        ahead = source.choice((1, 1, 1, 1, 1, 1, 30))
        parent = max(place - ahead, 0)
        days = size - place + source.randint(-disorder, disorder)
        made.append(
            Commit(
                commit_id=f"c{place}",
                parent_ids=(f"c{parent}",) if place else (),
                created_at=NOW - timedelta(days=max(days, 0), hours=source.choice((0, 5))),
                tree_id=f"t{place}",
                tombstoned=source.random() < 0.05,
            )
        )
    heads = source.choices(made, k=4) + made[-1:]
    branches = [
        Ref(name, "branch", head.commit_id) for name, head in zip(BRANCH_NAMES, heads, strict=False)
    ]
    source.shuffle(made)
    return made, branches


def _rule(source: random.Random) -> Any:
    """Of a branch or of tags: "keep", a period, or up to two counts, or both."""
    kind, period = source.randrange(16), source.choice(PERIODS)
    if kind == 15:
        return "keep"
    if kind < 5:
        return period
    parts: dict[str, Any] = {"keep_within": period} if kind < 8 else {}
    return parts | {name: source.randint(1, 5) for name in source.choices(COUNTED, k=2)}
