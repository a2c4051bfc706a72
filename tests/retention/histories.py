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

COMMIT_DICE_MAX = 2**19 - 1


def _commit(place: int, age: timedelta, dice: int) -> Commit:
    dice, kind = divmod(dice, 8)
    dice, first = divmod(dice, 16)
    dice, second = divmod(dice, 16)
    dice, lease = divmod(dice, 16)
    dice, tombstone = divmod(dice, 4)
    parents: tuple[str, ...] = (f"c{place - 1}",)
    if kind == 4:
        parents = (f"c{first % place if place else 0}",)
    elif kind == 5:
        parents = (f"c{first % place if place else 0}", f"c{second % place if place else 0}")
    elif kind == 6:
        parents = ("gone",)
    return Commit(
        commit_id=f"c{place}",
        parent_ids=parents if place and kind != 7 else (),
        created_at=(NOW - age).astimezone(ELSEWHERE if dice == 3 else UTC),
        tree_id=f"t{place}",
        tombstoned=tombstone == 3,
        leased_until={5: NOW - timedelta(hours=1), 6: NOW, 7: NOW + timedelta(hours=1)}.get(lease),
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
    made = [_commit(n, age, source.randint(0, COMMIT_DICE_MAX)) for n, age in enumerate(ages)]
    for _ in range(source.choice((0, 0, 1, 3))):
        age = timedelta(hours=source.randint(-1, span))
        content = _commit(len(made), age, source.randint(0, COMMIT_DICE_MAX))
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
    policy: dict[str, Any] = {"default": _rule(source.randint(0, RULE_DICE_MAX))}
    for pattern in source.sample(PATTERNS, source.randint(0, 3)):
        policy.setdefault("branches", {})[pattern] = _rule(source.randint(0, RULE_DICE_MAX))
    branches = policy.get("branches", {})
    if "*" in branches or (branches and source.random() < 0.2):
        del policy["default"]
    if source.random() < 0.6:
        policy["tags"] = _rule(source.randint(0, RULE_DICE_MAX))
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


def _rule(dice: int) -> Any:
    """The rule that a number stands for: "keep", a period, or up to two counts, or both."""
    dice, kind = divmod(dice, 16)
    dice, period = divmod(dice, len(PERIODS))
    if kind == 15:
        return "keep"
    if kind < 5:
        return PERIODS[period]
    parts: dict[str, Any] = {"keep_within": PERIODS[period]} if kind < 8 else {}
    for _ in range(2):
        dice, part = divmod(dice, len(COUNTED))
        dice, count = divmod(dice, 5)
        parts[COUNTED[part]] = count + 1
    return parts


RULE_DICE_MAX = 16 * len(PERIODS) * (len(COUNTED) * 5) ** 2 - 1
