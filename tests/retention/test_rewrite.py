"""Rewriting: properties of any history."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.model import Commit
from ebbtide.retention import plan_rewrite, plan_rewrite_keep
from tests.retention import histories
from tests.retention.histories import NOW
from tests.support.randomized import randomized


def test_a_date_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no zone"):
        plan_rewrite([], [], NOW.replace(tzinfo=None))


def first_parents(start: str, parents: Mapping[str, tuple[str, ...]]) -> list[str]:
    line = [start]
    while parents[line[-1]] and parents[line[-1]][0] in parents:
        line.append(parents[line[-1]][0])
    return line


def reached(starts: Iterable[str], parents: Mapping[str, tuple[str, ...]]) -> set[str]:
    """All that the starts reach: grown until nothing is added."""
    found = set(starts)
    while True:
        more = {parent for one in found for parent in parents[one] if parent in parents} - found
        if not more:
            return found
        found |= more


def parents_of(commits: Iterable[Commit]) -> dict[str, tuple[str, ...]]:
    return {commit.commit_id: commit.parent_ids for commit in commits}


def edited(commits: Iterable[Commit], new_parents: Mapping[str, tuple[str, ...]]) -> list[Commit]:
    return [
        replace(commit, parent_ids=new_parents.get(commit.commit_id, commit.parent_ids))
        for commit in commits
    ]


@randomized("rewritten histories")
def test_any_history(seed: int) -> None:
    commits, refs, _ = histories.even(seed)
    source = random.Random(seed)
    threshold = source.choice(commits).created_at
    rewrite = plan_rewrite(commits, refs, threshold)
    before = parents_of(commits)
    date = {commit.commit_id: commit.created_at for commit in commits}

    expected: dict[str, tuple[str, ...]] = {}
    for ref in refs:
        line = first_parents(ref.commit_id, before)
        young = next((n for n, one in enumerate(line) if date[one] < threshold), len(line))
        if young > 0 and line[young - 1] != line[-1] and line[young] != line[-1]:
            expected[line[young - 1]] = (line[-1],)
    assert rewrite.new_parents == expected

    after = edited(commits, rewrite.new_parents)
    kept = reached((ref.commit_id for ref in refs), parents_of(after))
    assert rewrite.released == set(before) - kept
    shuffled = source.sample(refs, len(refs))
    assert plan_rewrite(reversed(commits), shuffled, threshold) == rewrite
    remaining = [commit for commit in after if commit.commit_id in kept]
    again = plan_rewrite(remaining, refs, threshold)
    assert not again.new_parents
    assert not again.released


@randomized("rewritten histories")
def test_any_choice_of_what_to_keep(seed: int) -> None:
    commits, refs, _ = histories.even(seed)
    before = parents_of(commits)
    source = random.Random(seed)
    keep = {commit_id for commit_id in sorted(before) if source.random() < 0.3}
    rewrite = plan_rewrite_keep(commits, refs, keep)

    lines = [first_parents(ref.commit_id, before) for ref in refs]
    stay = keep | {one for line in lines for one in (line[0], line[-1])}
    after = edited(commits, rewrite.new_parents)
    parents = parents_of(after)
    for line in lines:
        assert first_parents(line[0], parents) == [one for one in line if one in stay]
    for one, new in rewrite.new_parents.items():
        assert len(new) == 1
        assert new != before[one][:1]
    kept = reached((line[0] for line in lines), parents)
    assert rewrite.released == set(before) - kept
    assert plan_rewrite_keep(reversed(commits), reversed(refs), keep) == rewrite
    remaining = [commit for commit in after if commit.commit_id in kept]
    again = plan_rewrite_keep(remaining, refs, keep & kept)
    assert not again.new_parents
