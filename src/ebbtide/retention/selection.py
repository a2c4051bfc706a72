"""Selects the commits that a policy keeps, with reasons: a pure function of commits, refs and time.

Sources: lakeFS issue 1932 (periods, first parents, dangling commits); for mode "rewrite", Icechunk
design document 007, basic expiration. Not for: reading a clock, a repository or a database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from ebbtide.model import Commit, Ref
from ebbtide.retention.forest import NO_PARENT, main_ancestries
from ebbtide.retention.policy import Policy, Rule
from ebbtide.retention.reasons import Code, Marks, Reasons, SelectionInput, mark_all

NAMED_MAX: Final = 10
"""The most commits that a warning names. It gives the number of the others."""

_REWRITTEN: Final = "whole history (mode rewrite)"
_REWRITTEN_DANGLING: Final = "only commits that refs reach (mode rewrite)"
_CONTENTS: Final = "contents that collections need"
BEYOND: Final[Mapping[int, str]] = {
    Code.HEAD: "as the head of a branch",
    Code.TAG: "by a tag",
    Code.COLLECTION: "by a collection",
    Code.HELD: "by a hold",
    Code.LEASED: "by a lease",
    Code.FUTURE: "by a date in the future",
    Code.BRANCH_RULE: "as the head when a period began",
}  # what keeps commits that no rule keeps as it is written

SummaryKind = Literal["branch", "dangling", "collections", "tags", "beyond"]


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


@dataclass(frozen=True, slots=True)
class KeptFlags:
    """The commits in some order, and for each policy whether it keeps each of them: a byte of 0 or
    1 for each commit, in that order."""

    ids: tuple[str, ...]
    flags: Iterator[bytes]


def kept_under(
    commits: Iterable[Commit],
    refs: Iterable[Ref],
    policies: Iterable[Policy | None],
    now: datetime,
) -> KeptFlags:
    """Selects the commits under several policies, on one history. None keeps everything. Each
    selection is that of `select_commits`, which also says what it raises."""
    inputs = SelectionInput.of(commits, refs, Policy(), now)
    count = len(inputs.history.commits)
    flags = (mark_all(inputs.under(each or Policy())).active()[:count] for each in policies)
    return KeptFlags(tuple(commit.commit_id for commit in inputs.history.commits), flags)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefSummary:
    """The number of commits on a branch's main ancestry: of all, of the kept ones, of those that
    expire next, and of those that a run closed, which are quarantined or gone.

    `kept_count` counts every active commit, whatever keeps it. There is one summary for each
    branch. If commits are on no branch's main ancestry, one of kind "dangling" follows for all of
    them. The contents of collections are not among them: one of kind "collections" follows for all
    contents. If tags have a rule, one of kind "tags" follows for the tagged commits. If more is
    kept than the rules say, one of kind "beyond" says why. Only summaries of branches have a
    `commit_id`.
    """

    kind: SummaryKind
    name: str
    commit_id: str | None
    rule: str
    commit_count: int
    kept_count: int
    expired_count: int
    gone_count: int


def summaries(inputs: SelectionInput, marks: Marks) -> Iterator[RefSummary]:
    """Yields the summaries of a selection, branches in the order of their names. No branch is
    walked on its own: figures are added up in one pass, from first parents to children."""
    rewritten = inputs.policy.mode == "rewrite"
    active, closed = marks.active(), bytes(inputs.forest.tombstoned)
    totals, kept, gone = (
        _running_totals(inputs, each) for each in (b"\1" * len(closed), active, closed)
    )
    for head in inputs.branches:
        yield _summary(
            "branch",
            head.name,
            rule=_REWRITTEN if rewritten else _rule_text(head.rule),
            counts=(totals[head.position], kept[head.position], gone[head.position]),
            commit_id=inputs.history.commits[head.position].commit_id,
        )
    off_branch = list(_on_no_branch(inputs))
    contents = [place for place in off_branch if inputs.history.commits[place].is_content]
    dangling = _count(active, closed, set(off_branch).difference(contents))
    if dangling[0]:
        rule = _REWRITTEN_DANGLING if rewritten else _rule_text(inputs.policy.default)
        yield _summary("dangling", "(dangling)", rule=rule, counts=dangling)
    if contents:
        counts = _count(active, closed, contents)
        yield _summary("collections", "(collections)", rule=_CONTENTS, counts=counts)
    tagged = {position for _, position in inputs.tagged()}
    if tagged and inputs.policy.tags is not None and not rewritten:
        rule = inputs.policy.tags.describe()
        yield _summary("tags", "(tags)", rule=rule, counts=_count(active, closed, tagged))
    beyond = _beyond(inputs, marks)
    if beyond:
        count = beyond.total()
        why = ", ".join(f"{beyond[code]:,} {BEYOND[code]}" for code in sorted(beyond))
        yield _summary("beyond", "(beyond the rules)", rule=why, counts=(count, count, 0))


def _beyond(inputs: SelectionInput, marks: Marks) -> Counter[int]:
    """Returns how many kept commits of the history no rule keeps as it is written, by the code of
    their reason."""
    found = zip(inputs.history.commits, marks.active(), marks.by_rules, marks.code, strict=False)
    return Counter(
        min(code, Code.BRANCH_RULE)
        for commit, is_kept, is_ruled, code in found
        if is_kept and not (is_ruled or commit.is_content)
    )


def _summary(
    kind: SummaryKind,
    name: str,
    *,
    rule: str,
    counts: tuple[int, int, int],
    commit_id: str | None = None,
) -> RefSummary:
    commit_count, kept_count, gone_count = counts
    return RefSummary(
        kind=kind,
        name=name,
        commit_id=commit_id,
        rule=rule,
        commit_count=commit_count,
        kept_count=kept_count,
        expired_count=commit_count - kept_count - gone_count,
        gone_count=gone_count,
    )


def _rule_text(rule: Rule | None) -> str:
    return "keep (no rule applies)" if rule is None else rule.describe()


def _running_totals(inputs: SelectionInput, flags: bytes) -> list[int]:
    """Returns for each position the sum of the flags on its main ancestry."""
    totals: list[int] = []
    for above, flag in zip(inputs.forest.parent, flags, strict=False):  # parents first
        totals.append(flag if above == NO_PARENT else totals[above] + flag)
    return totals


def _on_no_branch(inputs: SelectionInput) -> Iterator[int]:
    heads = (head.position for head in inputs.branches)
    on_branch = main_ancestries(inputs.history.parent, heads)
    return (position for position, found in enumerate(on_branch) if not found)


def _count(active: bytes, closed: bytes, positions: Iterable[int]) -> tuple[int, int, int]:
    """Returns the number of positions, and how many of them are active, and closed."""
    found = list(positions)
    return len(found), sum(active[each] for each in found), sum(closed[each] for each in found)
