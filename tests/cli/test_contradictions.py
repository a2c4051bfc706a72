"""Whatever is said twice is refused, naming it: the last one would win in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide

TWICE = '{"branches": {"main": "keep", "main": "1d"}}'


def policy(lake: Ebbtide) -> object:
    return lake.json("retention show lake")["policy"]


def test_a_key_twice_in_a_policy(
    lake: Ebbtide, tmp_path: Path, typing: Callable[[str], None]
) -> None:
    """In a file, from stdin, and in one that is tried."""
    (tmp_path / "policy.json").write_text(TWICE)
    before = policy(lake)
    result = lake("retention set lake", tmp_path / "policy.json", code=2)
    assert "policy.json has the key 'main' twice" in result.err
    typing('{"default": {"keep_last": 1, "keep_last": 2}}')
    result = lake("retention set lake -", code=2)
    assert "stdin has the key 'keep_last' twice" in result.err
    assert policy(lake) == before
    assert "'main' twice" in lake("what-if lake --policy", TWICE, code=2).err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["retention", "set", "lake", "--default", "3d", "--default", "4d"], "--default"),
        (["commit", "lake", "main", "-m", "one", "--message", "two"], "--message"),
    ],
)
def test_an_option_that_takes_one_value(lake: Ebbtide, words: list[str], name: str) -> None:
    assert f"{name} is given 2 times" in lake(*words, code=2).err


def test_repeatable_options_and_flags_may_stand_twice(lake: Ebbtide) -> None:
    lake("retention set lake --branch a=3d --branch b=4d")
    lake("repo list --json --json")


def test_what_a_new_policy_drops_is_said(lake: Ebbtide) -> None:
    lake("retention set lake --default 30d --tags 9d --branch old=1d")
    result = lake("retention set lake --branch main=3d")
    for name in ("the default rule", "the rule for 'old'", "the rule for tags"):
        assert f"{name} of the previous policy is dropped" in result.err
    again = lake("retention set lake --branch main=4d --default 9d")
    assert "is dropped" not in again.err
