"""`retention`: policies as the command line writes them, and what they are shown to mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.cli import policies
from ebbtide.cli.policies import PolicyEffect, is_policy_text
from ebbtide.errors import InvalidInput
from ebbtide.formats.capabilities import WithPolicy
from ebbtide.retention.policy import Policy, parse_rule_text
from ebbtide.server.pages.policies import parse_policy
from tests.cli.conftest import Ebbtide
from tests.support.icechunk import create_repository

SET = ("retention", "set", "lake")


def test_rules_as_text() -> None:
    assert parse_rule_text("20d") == "20d"
    assert parse_rule_text("keep") == "keep"
    assert parse_rule_text("keep_last:3, keep_within:7d") == {"keep_last": 3, "keep_within": "7d"}
    with pytest.raises(InvalidInput):
        parse_rule_text("keep_last:3,keep_last:4")


BOTH = '{"default": "30d", "branches": {"main": {"keep_last": 3}}, "tags": "7d"}'
WRITTEN = {
    "30d": "30d; tags: keep",
    "keep_last:3": "keep_last 3; tags: keep",
    "keep_within:2w,keep_daily:7": "14d, keep_daily 7; tags: keep",
    BOTH: "30d; main: keep_last 3; tags: 7d",
}


def test_every_command_understands_the_same(lake: Ebbtide, tmp_path: Path) -> None:
    """As an argument and in a file, and on the page what is no file."""
    create_repository(tmp_path / "ice", spec_version=2)
    given = dict(WRITTEN)
    for number, (text, understood) in enumerate(WRITTEN.items()):
        (tmp_path / f"{number}").write_text(f"{text}\n")
        given[str(tmp_path / f"{number}")] = understood
    options = [word for text in given for word in ("--policy", text)]
    compared = lake("what-if lake", *options).out
    cut = ("--dry-run", "--unsafe", "--policy")
    for text, understood in given.items():
        if is_policy_text(text):
            assert parse_policy(text).describe() == understood
        assert f"policy: {understood}\n" in lake(*SET, text, "--dry-run").out
        assert (
            f"policy: {understood}\n" in lake("expire", f"icechunk:{tmp_path}/ice", *cut, text).out
        )
        assert re.search(rf"^{re.escape(text[:60])}…?: {re.escape(understood)}$", compared, re.M)


@pytest.mark.parametrize("command", [SET, ("what-if", "lake", "--policy")])
def test_text_that_is_no_policy(lake: Ebbtide, command: tuple[str, ...]) -> None:
    told = lake.refuses("invalid_argument", *command, "kep_last:3", code=2).err
    assert "no file, no JSON, and no rule such as 30d" in told
    lake.refuses("invalid_policy", *command, "keep_lst:3", code=2)
    lake.refuses("invalid_duration", *command, "30y", code=2)


def test_set_show_unset(lake: Ebbtide) -> None:
    rules = ("--branch", "main=keep_within:20d,keep_monthly:12", "--branch", "user-*=3d")
    done = lake.json(*SET, "--default", "7d", *rules, "--tags", "keep_last:5")
    assert done["policy"] == {
        "mode": "age",
        "default": "7d",
        "branches": {"main": {"keep_within": "20d", "keep_monthly": 12}, "user-*": "3d"},
        "tags": {"keep_last": 5},
    }
    assert done["warnings"] == ["the rule for 'user-*' matches no branch"]
    shown = lake.json("retention show lake")
    assert shown["policy"] == done["policy"]
    lake("retention unset lake")
    assert "everything is kept" in lake("retention show lake").out


@pytest.mark.parametrize("form", [(), ("--file",)])
def test_a_policy_from_a_file(lake: Ebbtide, tmp_path: Path, form: tuple[str, ...]) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"default": "30d", "mode": "rewrite"}))
    done = lake.json(*SET, *form, file)
    assert done["policy"]["mode"] == "rewrite"
    file.write_text("{")
    lake.refuses("invalid_policy", *SET, *form, file, code=2)
    lake(*SET, *form, file, "--default", "7d", code=2)
    lake(*SET, "30d", "--file", file, code=2)
    lake(*SET, *form, tmp_path / "nothing", code=2)


def test_a_policy_that_is_none(lake: Ebbtide) -> None:
    """The message says what is wrong in bearable length, and no policy is set."""
    for options, kind, words in (
        ("", "invalid_policy", "no rule is given"),
        ("--default 20", "invalid_duration", "has no unit"),
        ("--default keep_last:0", "invalid_policy", "not a count"),
        ("--default keep_some:1", "invalid_policy", "unknown key"),
        ("--default 7d --branch *=3d", "invalid_policy", "default"),
        ("--branch main", "invalid_argument", "NAME=VALUE"),
        ("--branch main=1d --branch main=2d", "invalid_argument", "twice"),
        ("--default 7d --mode other", "invalid_policy", "mode"),
        (f"--default {'7' * 10_000}", "invalid_duration", "no unit"),
    ):
        found = lake.refuses(kind, *SET, *options.split(), code=2)
        assert words in found.err
        assert len(found.err) < 500
    assert lake.json("repo show lake")["policy"] is None


def test_another_change_between_reading_and_writing(
    lake: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command keeps the other's rule. The one that was overtaken says so."""
    lake(*SET, "--default", "7d")
    effect_of = policies.effect_of
    others = [Policy.parse({"default": "7d", "branches": {"other": "3d"}})]

    def overtaken(found: WithPolicy, policy: Policy) -> PolicyEffect | None:
        if others:
            found.set_policy(others.pop())
        return effect_of(found, policy)

    monkeypatch.setattr(policies, "effect_of", overtaken)
    said = lake.json("retention branch lake main 1d")
    assert said["policy"]["branches"] == {"main": "1d", "other": "3d"}
    assert "changed by somebody else at the same time" in said["warnings"][-1]
    shown = lake.json("repo show lake")
    assert shown["policy"] == said["policy"]

    others.append(Policy.parse({"branches": {"main": "1d"}}))
    changed = lake.json("retention default lake 9d")
    kept = (changed["policy"]["default"], changed["policy"]["branches"])
    assert kept == ("9d", {"main": "1d"})
    unset = ("retention", "branch", "lake", "main", "--unset")
    others.append(Policy.parse({"default": "9d"}))
    lake.refuses("policy_not_found", *unset)
    after = lake.json("repo show lake")["policy"]
    assert (after["default"], "branches" in after) == ("9d", False)
    assert lake.json("retention default lake 9d")["warnings"] == []


def test_each_commit_with_its_fate(lake: Ebbtide, write: Callable[..., str]) -> None:
    """Which rule applies to each branch, and per commit what becomes of it and why."""
    lake("promises --lease-ttl 0s --yes")
    write("--date", "2020-01-01T00:00:00Z", a="1")
    old = write("--date", "2020-01-02T00:00:00Z", a="2")
    head = write(a="3")
    lake(*SET, "--default", "7d", "--branch", "main=keep_last:1")
    shown = lake.json("retention show lake --commits")
    assert (shown["active_count"], shown["expired_count"]) == (1, 3)
    assert [(ref["name"], ref["rule"]) for ref in shown["by_ref"]] == [("main", "keep_last 1")]
    fates = {commit["commit_id"]: commit for commit in shown["commits"]}
    assert (fates[head]["kept"], fates[head]["reason"]) == (True, "head of branch main")
    assert (fates[old]["kept"], fates[old]["reason"]) == (False, None)
    text = lake("retention show lake --commits").out
    assert "1 commit kept, 3 expire next" in text
