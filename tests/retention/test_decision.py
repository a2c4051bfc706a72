"""What one reading of a repository means for each commit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.errors import Refused
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def commit(name: str, *parents: str, days: float) -> Commit:
    return Commit(name, parents, NOW - timedelta(days=days), f"tree-{name}")


HISTORY = (
    commit("root", days=90),
    commit("old", "root", days=60),
    commit("side", "root", days=55),
    commit("merge", "old", "side", days=50),
    commit("head", "merge", days=2),
    commit("lost", "root", days=40),
    commit("adrift", "lost", days=3),
)


def roots(*, policy: Policy | None, commits: tuple[Commit, ...] = HISTORY) -> Roots:
    return Roots(
        now=NOW,
        refs=(Ref("main", "branch", "head"),),
        commits=commits,
        stub_ids=frozenset(),
        tree_checksums={each.tree_id: "" for each in commits},
        policy=policy,
    )


def test_records_stay_for_all_that_a_ref_or_an_active_commit_reaches() -> None:
    decision = decide(roots(policy=Policy.parse({"default": "7d"})))

    # `merge` was the head when the window opened, and `lost` that of the dangling line.
    assert set(decision.active) == {"head", "merge", "adrift", "lost"}
    assert decision.expired == {"root", "old", "side"}
    assert decision.recorded == {each.commit_id for each in HISTORY}
    assert decision.forgettable == frozenset()

    # What nothing reaches is forgettable.
    decision = decide(roots(policy=Policy.parse({"default": "1d"})))
    assert set(decision.active) == {"head"}
    assert decision.forgettable == {"lost", "adrift"}


def test_without_a_policy_everything_is_kept_and_said_so() -> None:
    decision = decide(roots(policy=None))

    assert set(decision.active) == {each.commit_id for each in HISTORY}
    assert any("no retention policy" in warning for warning in decision.warnings)


@pytest.mark.parametrize("lost", ["old", "head"])
def test_a_lost_commit_is_an_alarm_and_a_stub_of_a_parent_is_not(lost: str) -> None:
    rest = tuple(each for each in HISTORY if each.commit_id != lost)
    reading = roots(policy=Policy.parse({"default": "7d"}), commits=rest)
    with pytest.raises(Refused) as caught:
        decide(reading)
    assert caught.value.kind == "missing_parent"
    if lost == "old":
        decide(replace(reading, stub_ids=frozenset({"old"})))


CONTENT = replace(commit("content", days=1), is_content=True)
"""What a collection has: the youngest of all, and no history."""


def with_content(*refs: Ref, content: Commit = CONTENT) -> Roots:
    """The history under a period in which nothing but the head's line counts, and content."""
    reading = roots(policy=Policy.parse({"default": "2d"}), commits=(*HISTORY, content))
    return replace(reading, refs=(*reading.refs, *refs))


def test_content_is_kept_by_refs_and_by_no_rule_of_age() -> None:
    decision = decide(with_content())
    assert "content" in decision.forgettable, "the youngest of all, and nobody points at it"

    decision = decide(with_content(Ref("set", "collection", "content")))
    assert decision.active["content"] == "collection set"
    assert "content" in decision.recorded

    trashed = Ref("set", "collection", "content", NOW - timedelta(days=1))
    assert "content" in decide(with_content(trashed)).active, "what is not gone is a root"


def test_a_ref_without_data_keeps_the_record_alone() -> None:
    without = Ref("set", "collection", "content", keeps_data=False)
    decision = decide(with_content(without))
    assert "content" in decision.expired
    assert "content" in decision.recorded
    assert "content" not in decision.forgettable

    # Any other ref on the same content, and any lease, keeps its data.
    assert "content" in decide(with_content(without, Ref("copy", "collection", "content"))).active
    leased = replace(CONTENT, leased_until=NOW + timedelta(days=1))
    assert "content" in decide(with_content(without, content=leased)).active
