"""Compares policies with the present policy of a repository: the commits that each keeps, by branch
and by rule.

Not for: how many bytes a policy frees (a look of `server.jobs` computes that), or HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ebbtide.formats.capabilities import WithPolicy
from ebbtide.gc.whatif import Alternative, RefOutlook, alternative_of
from ebbtide.retention.decision import Roots, decide
from ebbtide.retention.policy import Policy

NAMES: Final = ("A", "B", "C")
PRESENT: Final = "Present"
REFS_COMPARED: Final = 50


@dataclass(frozen=True, slots=True)
class Comparison:
    """The present policy, and other policies by name.

    `refs` has a row for each branch, with the outcome of each policy, the present one first.
    Branches that lose the most commits under any policy come first.
    """

    present: Alternative
    others: Mapping[str, Alternative]
    refs: Sequence[Sequence[RefOutlook]]
    more_refs: int

    @property
    def by_name(self) -> dict[str, Alternative]:
        """All policies by name, the present one first."""
        return {PRESENT: self.present, **self.others}


def history_of(roots: Roots) -> Roots:
    """Returns the roots without the contents of collections, which no policy changes. Contents have
    no parents, so that no other commit is kept or expired because of them."""
    contents = {commit.commit_id for commit in roots.commits if commit.is_content}
    holds = {held: why for held, why in roots.holds.items() if held not in contents}
    policy = roots.policy
    if policy is not None:
        kept = {held: why for held, why in policy.holds.items() if held not in contents}
        policy = replace(policy, holds=kept)
    return replace(
        roots,
        commits=tuple(commit for commit in roots.commits if not commit.is_content),
        refs=tuple(ref for ref in roots.refs if ref.commit_id not in contents),
        policy=policy,
        holds=holds,
    )


def compare(
    repository: WithPolicy, present: Policy | None, policies: Mapping[str, Policy]
) -> Comparison:
    """Compares policies with the `present` one, in one reading of refs and commits. Files are not
    listed.

    Only the commits of the history are counted, as on the other pages. The contents of collections
    are left out: no policy changes them.
    """
    roots = history_of(repository.roots(present))
    decision = decide(roots)
    now = alternative_of(roots, decision, decision)
    others: dict[str, Alternative] = {}
    for name, policy in policies.items():
        other = replace(roots, policy=policy.with_holds(roots.holds))
        others[name] = alternative_of(other, decide(other), decision)
    rows = _by_ref([now, *others.values()]) if others else []
    return Comparison(now, others, rows[:REFS_COMPARED], max(0, len(rows) - REFS_COMPARED))


def _by_ref(alternatives: Sequence[Alternative]) -> list[list[RefOutlook]]:
    """Returns a row for each branch, for all dangling commits, and for all tagged commits; only
    rows that every policy has."""
    rows: dict[tuple[str, str], list[RefOutlook]] = {}
    for each in alternatives:
        for ref in each.by_ref:
            rows.setdefault((ref.kind, ref.name), []).append(ref)
    whole = [row for row in rows.values() if len(row) == len(alternatives)]
    return sorted(whole, key=lambda row: (-max(ref.fewer_count for ref in row), row[0].name))


def looked_rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the results of a look so far, with the names of the policies."""
    return list(zip((PRESENT, *NAMES), found, strict=False))
