"""Marks every commit of an input's forest that something keeps, with the reason.

Each function here marks the commits that one reason keeps. Together they cover all rules that a
policy can have.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.model import RefKind
from ebbtide.retention.counting import Headcount, kept_last, kept_of_ladders, period_ladders
from ebbtide.retention.dates import to_utc
from ebbtide.retention.inputs import SelectionInput
from ebbtide.retention.periods import PERIOD_NUMBER
from ebbtide.retention.reach import reached_from
from ebbtide.retention.reasons import Code, Marks, RulePart
from ebbtide.retention.rules import KEEP_ALL, PERIODS, Period, Rule
from ebbtide.retention.tags import kept_tagged
from ebbtide.retention.windows import kept_by_window, window_start

_REF_CODES: dict[RefKind, Code] = {
    "branch": Code.HEAD,
    "tag": Code.TAG,
    "collection": Code.COLLECTION,
}


def mark_all(inputs: SelectionInput) -> Marks:
    """Returns the marks of all kept commits, in the mode of the input's policy."""
    marks = Marks(inputs.forest)
    _mark_refs(inputs, marks)
    _mark_holds(inputs, marks)
    _mark_leases_and_future(inputs, marks)
    if inputs.policy.mode == "rewrite":
        _mark_reached(inputs, marks)
        return marks
    _mark_windows(inputs, marks)
    _mark_last(inputs, marks)
    for offset, period in enumerate(PERIODS):
        _mark_period(inputs, marks, period, RulePart.PERIOD + offset)
    _mark_tags_by_rule(inputs, marks)
    return marks


def _mark_refs(inputs: SelectionInput, marks: Marks) -> None:
    for which, (ref, position) in enumerate(zip(inputs.refs, inputs.positions, strict=True)):
        by_rule = ref.kind == "tag" and inputs.policy.tags is not None
        if not by_rule:
            marks.mark(position, _REF_CODES[ref.kind], which)


def _mark_holds(inputs: SelectionInput, marks: Marks) -> None:
    for commit_id in inputs.policy.holds:
        position = inputs.history.index.get(commit_id)
        if position is not None:
            marks.mark(position, Code.HELD, 0)


def _mark_leases_and_future(inputs: SelectionInput, marks: Marks) -> None:
    now, created_at = inputs.now, inputs.forest.created_at
    for position, commit in enumerate(inputs.history.commits):
        lease = commit.leased_until
        if lease is not None and to_utc(lease, what=f"lease of {commit.commit_id}") > now:
            marks.mark(position, Code.LEASED, 0)
        if created_at[position] > now:
            marks.mark(position, Code.FUTURE, 0)


def _mark_reached(inputs: SelectionInput, marks: Marks) -> None:
    reached = reached_from(inputs.history, inputs.positions, new_parents={})
    for position, which in reached.items():
        marks.mark(position, Code.REACHED, which)


def _mark_windows(inputs: SelectionInput, marks: Marks) -> None:
    now = inputs.now
    branches = [
        (head.position, window_start(_effective(head.rule), now)) for head in inputs.branches
    ]
    default_start = window_start(_effective(inputs.policy.default), now)
    dangling = [(child, default_start) for child in inputs.forest.dangling_children()]
    for heads, code in ((branches, Code.BRANCH_RULE), (dangling, Code.DANGLING_RULE)):
        windows = kept_by_window(inputs.forest, heads)
        kept = ((RulePart.WITHIN, windows.within), (RulePart.OPENING, windows.opening))
        for part, sources in kept:
            for position, source in enumerate(sources):
                if source >= 0:
                    marks.mark(position, code + part, source)


def _effective(rule: Rule | None) -> Rule:
    """Returns the rule. If no rule applies, everything is kept."""
    return KEEP_ALL if rule is None else rule


def _mark_last(inputs: SelectionInput, marks: Marks) -> None:
    for code, counts in _counts(inputs, lambda rule: rule.keep_last):
        for position, which in kept_last(inputs.forest, counts):
            marks.mark(position, code + RulePart.LAST, which)


def _mark_period(inputs: SelectionInput, marks: Marks, period: Period, part: int) -> None:
    groups = _counts(inputs, lambda rule: rule.period_count(period))
    everyone = [headcount for _, counts in groups for headcount in counts]
    if not any(count for _, count in everyone):
        return
    ladders = period_ladders(inputs.forest, everyone, PERIOD_NUMBER[period])
    for code, counts in groups:
        for position, which in kept_of_ladders(ladders, counts):
            marks.mark(position, code + part, which)


def _counts(
    inputs: SelectionInput, count_of: Callable[[Rule], int | None]
) -> list[tuple[Code, list[Headcount]]]:
    """Returns the counts for all branches, and those for all dangling heads."""
    default_count = count_of(_effective(inputs.policy.default)) or 0
    branches = [(head.position, count_of(_effective(head.rule)) or 0) for head in inputs.branches]
    dangling = [(child, default_count) for child in inputs.forest.dangling_children()]
    return [(Code.BRANCH_RULE, branches), (Code.DANGLING_RULE, dangling)]


def _mark_tags_by_rule(inputs: SelectionInput, marks: Marks) -> None:
    rule = inputs.policy.tags
    if rule is None:
        return
    # Reversed, so that the first of several tags on one commit, by name, gives the reason.
    name_at = {position: name for name, position in reversed(inputs.tagged())}
    commits = [inputs.history.commits[position] for position in name_at]
    intact = [commit for commit in commits if not commit.tombstoned]
    for commit_id, why in kept_tagged(intact, rule, inputs.now):
        position = inputs.history.index[commit_id]
        marks.sentences.append(f"tag {name_at[position]}, {why}")
        marks.mark(position, Code.TAG_RULE, len(marks.sentences) - 1)
