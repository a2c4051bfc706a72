"""Policies: what can be written, what comes back, and which rule a branch falls under."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.retention import Policy, Rule
from tests.retention import histories, oracle
from tests.support.randomized import randomized

DAY = timedelta(days=1)
DOCUMENT = Path(__file__).parents[2] / "docs" / "retention.md"

# What is written, the kind of error, the key that it names, and words of the message.
REFUSED: list[tuple[Any, str, str, str]] = [
    ({}, "invalid_policy", "default", "no rule is given"),
    ("7d", "invalid_policy", "policy", "not a mapping"),
    ({"defualt": "7d"}, "invalid_policy", "defualt", "default, branches, tags, holds, mode"),
    ({"default": 7}, "invalid_policy", "default", "is not a rule"),
    ({"default": {}}, "invalid_policy", "default", "the rule is empty"),
    ({"default": "7"}, "invalid_duration", "default", "has no unit"),
    ({"default": "0d"}, "invalid_duration", "default", '"keep_last": 1'),
    ({"default": "36501d"}, "invalid_duration", "default", "longer than"),
    ({"default": {"keep_within": 7}}, "invalid_duration", "default.keep_within", "7d|20d"),
    ({"default": {"keep_first": 1}}, "invalid_policy", "default.keep_first", "keep_within, keep_l"),
    ({"default": {"keep_last": 0}}, "invalid_policy", "default.keep_last", "1 or more"),
    ({"default": {"keep_last": True}}, "invalid_policy", "default.keep_last", "whole number"),
    ({"branches": ["main"]}, "invalid_policy", "branches", "not a mapping"),
    ({"branches": {"": "7d"}}, "invalid_policy", "branches", "empty name"),
    ({"branches": {"b" * 10_000: "7d"}}, "invalid_policy", "branches", "10,000 characters"),
    ({"default": "9" * 5_000 + "d"}, "invalid_duration", "default", "is not a duration"),
    ({"branches": {"a": {"keep_daily": 0}}}, "invalid_policy", "branches.a.keep_daily", "1 or"),
    ({"default": "7d", "branches": {"*": "7d"}}, "invalid_policy", "default", "one of the two"),
    ({"default": "7d", "holds": "c1"}, "invalid_policy", "holds", "list of commit ids"),
    ({"default": "7d", "holds": [1]}, "invalid_policy", "holds", "not a commit id"),
    ({"default": "7d", "holds": {"c1": None}}, "invalid_policy", "holds.c1", "not a reason"),
    ({"default": "7d", "mode": "both"}, "invalid_policy", "mode", "age or rewrite"),
]


def test_refused() -> None:
    for written, kind, key, words in REFUSED:
        with pytest.raises(InvalidInput, match=words) as caught:
            Policy.parse(written)
        assert caught.value.kind == kind
        assert caught.value.details["key"] == key
        assert f"{key}: " in caught.value.message


def test_a_policy_with_everything() -> None:
    written = {
        "mode": "age",
        "default": "20d",
        "branches": {"main": {"keep_within": "1d12h", "keep_last": 3}, "user-*": "keep"},
        "tags": {"keep_yearly": 10},
        "holds": {"c1": "legal case", "c2": ""},
    }
    policy = Policy.parse(written)
    assert policy.default == Rule(keep_within=20 * DAY)
    assert policy.branches["main"] == Rule(keep_within=1.5 * DAY, keep_last=3)
    assert policy.branches["user-*"] == Rule(keep_all=True)
    assert policy.tags == Rule(keep_yearly=10)
    assert policy.to_mapping() == written


@randomized("rewritten histories")
def test_round_trip_and_lookup(seed: int) -> None:
    _, _, written = histories.even(seed)
    policy = Policy.parse(written)
    assert Policy.parse(policy.to_mapping()) == policy
    lookup = policy.lookup()
    for name in (*histories.BRANCH_NAMES, "user-[ab]", "user-b/c", "User-b", "nobody", "x", "e"):
        expected = oracle.rule_of_branch(name, written)
        assert lookup.rule(name) in (
            {Policy.parse({"default": expected}).default}
            | ({None} if expected == "keep" else set())
        )


def test_a_name_that_looks_like_a_glob_is_exact_too() -> None:
    policy = Policy.parse({"branches": {"a[b]": "1d", "a[[]b*": "2d"}})
    assert policy.lookup().rule("a[b]") == Rule(keep_within=DAY)
    assert policy.lookup().rule("ab") == Rule(keep_within=DAY)
    assert policy.lookup().rule("c") is None


def test_unmatched() -> None:
    policy = Policy.parse({"branches": {"main": "1d", "u*": "1d", "user-*": "1d", "old": "1d"}})
    assert policy.unmatched(["user-a", "dev"]) == ("main", "old")
    assert policy.unmatched(iter(["main", "old"])) == ("u*", "user-*")
    assert not Policy.parse({"branches": {"a[b]": "1d"}}).unmatched(["a[b]"]), "it is a name too"


def test_with_holds() -> None:
    policy = Policy.parse({"default": "7d", "holds": ["c1", "c2"]})
    more = policy.with_holds({"c2": "audit", "c3": "legal"})
    assert dict(more.holds) == {"c1": "", "c2": "audit", "c3": "legal"}
    assert dict(policy.holds) == {"c1": "", "c2": ""}
    with pytest.raises(InvalidInput):
        policy.with_holds({"": "nothing"})


def test_describe() -> None:
    for written, described in (
        ("36h", "1d12h"),
        ("keep", "keep"),
        ({"keep_monthly": 12, "keep_last": 3}, "keep_last 3, keep_monthly 12"),
        ({"keep_yearly": 1, "keep_within": "90m"}, "1h30min, keep_yearly 1"),
    ):
        rule = Policy.parse({"default": written}).default
        assert rule is not None
        assert rule.describe() == described


def test_the_examples_of_the_document() -> None:
    examples = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        Policy.parse(json.loads(example))
