"""All that keeps each commit, against the definition, and against the selection."""

from __future__ import annotations

from collections.abc import Mapping

from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy, select_commits
from ebbtide.retention.decision import reachable
from ebbtide.retention.holders import HeldCommits, holders_of
from tests.retention import histories, oracle
from tests.retention.histories import NOW
from tests.support.randomized import randomized


def named(held: HeldCommits, found: Mapping[str, int]) -> dict[str, set[str]]:
    """The names of the holders in each set, as the oracle writes them."""
    names = [
        f"{each.kind} {each.name}"
        if each.kind in ("branch", "tag", "collection", "hold")
        else each.kind
        for each in held.holders
    ]
    return {
        commit_id: {name for number, name in enumerate(names) if bits >> number & 1}
        for commit_id, bits in found.items()
    }


def check(commits: list[Commit], refs: list[Ref], written: Mapping[str, object]) -> None:
    held = holders_of(commits, refs, Policy.parse(written), NOW)
    data, records = oracle.holders(commits, refs, written, NOW)
    assert named(held, held.data) == {name: found for name, found in data.items() if found}
    assert named(held, held.records) == {name: found for name, found in records.items() if found}


@randomized("holders of commits")
def test_against_the_definition(seed: int) -> None:
    commits, refs, written = histories.even(seed)
    check(commits, refs, written)
    policy = Policy.parse(written)
    held = holders_of(commits, refs, policy, NOW)
    active = select_commits(commits, refs, policy, NOW).active
    assert held.data.keys() == set(active), "a commit is active exactly if it has a holder"
    reached = reachable(commits, [*(ref.commit_id for ref in refs), *active])
    assert held.records.keys() == reached


@randomized("holders of commits in long histories")
def test_long_histories(seed: int) -> None:
    commits, refs = histories.large(seed)
    rules = {
        "default": {"keep_daily": 7, "keep_hourly": 90},
        "branches": {"main": {"keep_daily": 120, "keep_last": 9}, "dev": "30d"},
    }
    check(commits, refs, rules)


@randomized("holders of commits, whole histories")
def test_whole_history(seed: int) -> None:
    """In mode rewrite each ref holds all that it reaches."""
    commits, refs, written = histories.even(seed)
    policy = Policy.parse({**written, "mode": "rewrite"})
    held = holders_of(commits, refs, policy, NOW)
    assert held.data.keys() == set(select_commits(commits, refs, policy, NOW).active)
    known = {commit.commit_id: commit for commit in commits}
    found = named(held, held.data)
    for ref in refs:
        if ref.keeps_data and not (ref.kind == "tag" and policy.tags is not None):
            for commit_id in oracle.ancestors(ref.commit_id, known):
                if not known[commit_id].tombstoned:
                    assert f"{ref.kind} {ref.name}" in found[commit_id]
