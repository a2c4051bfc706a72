"""`retention set` says which commits expire by it; `default` and `branch` change one rule."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Ebbtide, Write


def effect(newly_expired: int, newly_kept: int, before: int, after: int) -> dict[str, Any]:
    main = {"kind": "branch", "name": "main"}
    counts = {"kept_before_count": before, "kept_after_count": after}
    return {
        "newly_expired_count": newly_expired,
        "newly_kept_count": newly_kept,
        "by_ref": [main | counts],
    }


def test_the_effect_compared_with_the_present_policy(lake: Ebbtide, write: Write) -> None:
    # Otherwise a branch's former commits stay for the time of a lease.
    lake("promises --lease-ttl 0s --yes")
    for day in (1, 2, 3):
        write("--date", f"2020-01-0{day}", a=str(day))
    tried = lake("retention set lake --default keep_last:1 --dry-run --json")
    # The commit that the repository began with is one of four.
    assert tried.document["effect"] == effect(3, 0, 4, 1)
    assert tried.document["done"] is False
    assert lake.json("retention show lake")["policy"] is None
    done = lake("retention set lake --default keep_last:1")
    assert "3 more commits expire next, and 0 more are kept" in done.out
    again = lake.json("retention set lake --default keep_last:3")
    assert again["effect"] == effect(0, 2, 1, 3)
    same = lake("retention set lake --default keep_last:3").out
    assert "no commit expires or is kept in addition" in same
    lake("retention unset lake")
    lake("hold add lake main~1")
    held = lake.json("retention set lake --default keep_last:1 --dry-run")
    assert held["effect"]["newly_expired_count"] == 2


def test_one_rule_is_changed(lake: Ebbtide) -> None:
    lake("branch create lake dev")
    lake("retention set lake --default 30d --branch main=keep --tags 90d")

    def policy() -> Any:
        return lake.json("retention show lake")["policy"]

    others = {"mode": "age", "tags": "90d"}
    assert lake("retention default lake 7d").err == ""
    assert policy() == others | {"default": "7d", "branches": {"main": "keep"}}
    lake("retention branch lake dev keep_last:2")
    rules = {"dev": {"keep_last": 2}, "main": "keep"}
    assert policy() == others | {"default": "7d", "branches": rules}
    told = lake.json("retention branch lake user-* 1d --dry-run")
    assert (told["done"], policy()["branches"]) == (False, rules)
    lake("retention branch lake main --unset")
    lake("retention default lake --unset")
    assert policy() == others | {"branches": {"dev": {"keep_last": 2}}}


def test_what_is_refused(lake: Ebbtide) -> None:
    for words in (["default", "lake"], ["default", "lake", "7d", "--unset"]):
        lake.refuses("invalid_argument", "retention", *words, code=2)
    lake("retention default lake 7d")
    lake.refuses("invalid_policy", "retention default lake --unset", code=2)
    lake.refuses("policy_not_found", "retention branch lake dev --unset")
