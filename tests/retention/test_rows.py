"""Commits as rows, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.retention.rows import CommitRow, micros_since_epoch, with_commits
from tests.retention import histories
from tests.support.randomized import examples, randomized


def rows_of(roots: Roots) -> list[CommitRow]:
    """Commits, and stubs behind them, one by one."""
    commits = [
        (
            commit.commit_id,
            " ".join(commit.parent_ids),
            micros_since_epoch(commit.created_at),
            commit.tree_id,
            roots.tree_checksums.get(commit.tree_id),
            None if commit.leased_until is None else micros_since_epoch(commit.leased_until),
            int(commit.tombstoned),
            int(commit.is_content),
            0,
        )
        for commit in roots.commits
    ]
    return commits + [(name, "", 0, "", None, None, 1, 0, 1) for name in sorted(roots.stub_ids)]


@randomized("properties of values")
@examples("properties of values")
@given(
    commits=histories.commits(),
    given_up=st.sets(st.integers(0, 20)),
    stubs=st.frozensets(st.text("abc", min_size=1, max_size=3)),
    shift=st.sampled_from([timedelta(days=days) for days in (0, 400_000, -40_000)]),
)
def test_rows_say_all_of_a_commit(
    commits: list[Commit], given_up: set[int], stubs: frozenset[str], shift: timedelta
) -> None:
    """To the microsecond, long after and before the epoch; in UTC, whatever zone they were in."""
    commits = [replace(each, created_at=each.created_at + shift) for each in commits]
    roots = Roots(
        now=histories.NOW,
        refs=(Ref("main", "branch", commits[0].commit_id),),
        commits=tuple(commits),
        stub_ids=stubs,
        tree_checksums={
            each.tree_id: f"sum of {each.tree_id}"
            for place, each in enumerate(commits)
            if place not in given_up
        },
        policy=Policy.parse({"default": "7d"}),
        lenient_trees=frozenset({"a"}),
        companions={"a": ("b",)},
    )
    head = replace(roots, commits=(), stub_ids=frozenset(), tree_checksums={})
    back = with_commits(head, rows_of(roots))
    assert back == roots
    assert {each.created_at.tzinfo for each in back.commits} == {UTC}
