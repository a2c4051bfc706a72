"""`retention` on a repository of a lakeFS server: a policy beside it, for lakeFS's rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count
from threading import Event
from typing import Final

import pytest

from ebbtide.errors import Conflict
from ebbtide.formats.lakefs import scheme
from ebbtide.formats.lakefs.repository import GRACE
from ebbtide.formats.notes import (
    POLICY_ADDRESS,
    WRITES_MAX,
    change_policy,
    read_policy,
    write_policy,
)
from ebbtide.retention.policy import Policy, Rule
from tests.cli.conftest import Ebbtide
from tests.formats.lakefs.world import DAY, LakefsWorld, open_lakefs_world
from tests.support.icechunk_lake import candidates

NAME = "lakefs:lake"
WAIT_SECONDS: Final = 60
RULE: Final = Rule(keep_within=timedelta(days=1))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[LakefsWorld]:
    """A repository with two commits on `main`, ten days apart, under rules of seven days."""
    with open_lakefs_world() as opened:
        for content in (b"old", b"new"):
            opened.state.upload("main", "a", content)
            opened.state.commit("main")
            opened.grow_old(10 * DAY)
        found = opened.repository(), GRACE
        monkeypatch.setattr(scheme.LakefsScheme, "open", lambda *_, **_more: found)
        yield opened


def test_a_policy_is_set_shown_and_removed(world: LakefsWorld, ebbtide: Ebbtide) -> None:
    lakefs = ebbtide.json("retention show", NAME)
    assert lakefs["policy"]["default"] == "7d"
    assert candidates(world.collector().plan()), "by lakeFS's rules"

    said = ebbtide("retention set", NAME, "--default", "30d", "--branch", "tmp-*=1d")
    assert "the rule for 'tmp-*' matches no branch" in said.err
    assert "lakeFS's own rules do not apply to runs of Ebbtide any more" in said.err
    written = json.loads(world.state.storage.get(POLICY_ADDRESS))
    assert (written["default"], written["branches"]) == ("30d", {"tmp-*": "1d"})
    shown = ebbtide("retention show", NAME, "--commits")
    assert "30d" in shown.out and "kept, 0 expire next" in shown.out
    assert not candidates(world.collector().plan())

    said = ebbtide("retention set", NAME, "--default", "1d")
    assert "the rule for 'tmp-*' of the previous policy is dropped" in said.err
    assert "lakeFS's own rules" not in said.err
    found = ebbtide.json("retention show", NAME, "--commits")
    assert sum(not each["kept"] for each in found["commits"]) == found["expired_count"] > 0

    said = ebbtide("retention unset", NAME)
    assert "has no policy any more: lakeFS's own rules apply" in said.out
    assert world.state.storage.head(POLICY_ADDRESS) is None
    assert ebbtide.json("retention show", NAME)["policy"] == lakefs["policy"]
    ebbtide("retention unset", NAME)


def test_what_is_shown_is_what_a_run_decides(world: LakefsWorld, ebbtide: Ebbtide) -> None:
    ebbtide("retention set", NAME, "--default", "12d")
    shown = ebbtide.json("retention show", NAME)
    assert not world.state.storage.list_prefixes("_lakefs/retention/gc/uncommitted/"), "not asked"
    planned = world.collector().plan().to_json()["commits"]
    assert (planned["active"], planned["expired"]) == (
        shown["active_count"],
        shown["expired_count"],
    )


def test_without_any_rules(world: LakefsWorld, ebbtide: Ebbtide) -> None:
    world.state.rules = None
    said = ebbtide("retention show", NAME, code=3)
    assert "ebbtide retention set lakefs:" in said.err
    ebbtide("retention set", NAME, "--default", "30d")
    assert "30d" in ebbtide("retention show", NAME).out


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"{", "is not JSON"),
        (b'{"default": "1d", "default": "keep"}', "has the key 'default' twice"),
        (b'{"defualt": "1d"}', "defualt"),
    ],
)
def test_a_policy_that_cannot_be_read(
    world: LakefsWorld, ebbtide: Ebbtide, written: bytes, says: str
) -> None:
    """It is in somebody's way until it is set anew. Nothing goes by a guess."""
    world.state.storage.put(POLICY_ADDRESS, written)
    assert says in ebbtide("retention show", NAME, code=2).err
    assert says in ebbtide("retention set", NAME, "--default", "1d", code=2).err
    assert world.state.storage.get(POLICY_ADDRESS) == written
    ebbtide("retention unset", NAME)
    ebbtide("retention set", NAME, "--default", "1d")


def test_of_icechunk_there_is_none(ebbtide: Ebbtide) -> None:
    said = ebbtide("retention set icechunk:/data/x --default 1d", code=2)
    assert "'retention' and 'hold' for lakeFS and Delta, and 'expire' for Icechunk" in said.err


def test_two_changes_of_the_policy_at_once(world: LakefsWorld) -> None:
    """The second is written between the reading and the writing of the first. Both stay."""
    storage = world.state.storage
    write_policy(storage, Policy.parse({"default": "7d"}))
    read, written = Event(), Event()
    seen: list[Policy] = []

    def first(before: Policy) -> Policy:
        seen.append(before)
        read.set()
        assert written.wait(WAIT_SECONDS)
        return replace(before, branches={**before.branches, "main": RULE})

    def second(before: Policy) -> Policy:
        return replace(before, branches={**before.branches, "dev": RULE})

    def begin() -> None:
        assert read.wait(WAIT_SECONDS)
        change_policy(storage, second)
        written.set()

    with ThreadPoolExecutor(2) as threads:
        earlier, later = threads.submit(change_policy, storage, first), threads.submit(begin)
        later.result(WAIT_SECONDS)
        changed = earlier.result(WAIT_SECONDS)
    assert [sorted(each.branches) for each in seen] == [[], ["dev"]]
    assert changed.to_mapping()["branches"] == {"main": "1d", "dev": "1d"}
    assert read_policy(storage) == changed


def test_writers_that_are_always_faster(world: LakefsWorld) -> None:
    storage = world.state.storage
    policies = count(1)

    def overtaken(before: Policy) -> Policy:
        write_policy(storage, Policy.parse({"default": f"{next(policies)}d"}))
        return before

    with pytest.raises(Conflict) as raised:
        change_policy(storage, overtaken)
    assert raised.value.kind == "object_changed"
    assert next(policies) == WRITES_MAX + 1
