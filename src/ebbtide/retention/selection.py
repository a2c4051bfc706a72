"""Selects the commits that a policy keeps, with reasons: a pure function of commits, refs and time.

Sources: lakeFS issue 1932 (periods, first parents, dangling commits); for mode "rewrite", Icechunk
design document 007, basic expiration. Not for: reading a clock, a repository or a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide.model import Commit, Ref
from ebbtide.retention.inputs import SelectionInput
from ebbtide.retention.marking import mark_all
from ebbtide.retention.policy import Policy
from ebbtide.retention.reasons import Reasons
from ebbtide.retention.summaries import RefSummary, summaries

__all__ = ["RefSummary", "Selection", "select_commits"]

NAMED_MAX: Final = 10
"""The most commits that a warning names. It gives the number of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Every commit is either in `active`, with its reason, or in `expired`.

    Closed commits are expired. `by_ref` has figures for each branch. `warnings` are sentences
    for the operator.
    """

    active: Mapping[str, str]
    expired: frozenset[str]
    warnings: tuple[str, ...]
    by_ref: tuple[RefSummary, ...]


def select_commits(
    commits: Iterable[Commit], refs: Iterable[Ref], policy: Policy, now: datetime
) -> Selection:
    """Divides the commits into active and expired ones under `policy`, as of `now`.

    `refs` are the refs that are not gone. A ref that does not keep its data keeps no commit active.
    In mode "rewrite" all commits that the other refs reach are active. Raises InvalidInput
    (`invalid_date`; `invalid_argument` for a duplicate commit or a cycle), and Refused
    `commit_not_found` if a ref points at a commit that is not given.
    """
    inputs = SelectionInput.of(commits, refs, policy, now)
    marks = mark_all(inputs)
    active = Reasons(marks, inputs)
    return Selection(
        active=active,
        expired=frozenset(inputs.history.index).difference(active),
        warnings=tuple(_warnings(inputs)),
        by_ref=tuple(summaries(inputs, marks)),
    )


def _warnings(inputs: SelectionInput) -> Iterator[str]:
    dates = inputs.forest.created_at
    future = [
        commit.commit_id
        for commit, created_at in zip(inputs.history.commits, dates, strict=False)
        if created_at > inputs.now and not commit.tombstoned
    ]
    if future:
        yield f"dated in the future, and kept until then: {_named('commit', future)}"
    for pattern in inputs.policy.unmatched(head.name for head in inputs.branches):
        yield f"the rule for {pattern!r} matches no branch"
    holds, index = inputs.policy.holds, inputs.history.index
    unknown = [commit_id for commit_id in holds if commit_id not in index]
    if unknown:
        yield f"held, but not in this repository: {_named('commit', unknown)}"
    lost = [
        commit_id
        for commit_id in holds
        if commit_id in index and inputs.history.commits[index[commit_id]].tombstoned
    ]
    if lost:
        yield f"held, but expired in an earlier run: {_named('commit', lost)}"


def _named(noun: str, commit_ids: list[str]) -> str:
    named = ", ".join(commit_ids[:NAMED_MAX])
    more = len(commit_ids) - NAMED_MAX
    plural = "" if len(commit_ids) == 1 else "s"
    return f"{noun}{plural} {named}" + (f" and {more} more" if more > 0 else "")
