"""Figures of a selection for each branch: how much of its history is kept, and how much expired.

They are added up in one pass over the forest, from first parents to children, so that no branch is
walked on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ebbtide.retention.forest import NO_PARENT, main_ancestries
from ebbtide.retention.inputs import SelectionInput
from ebbtide.retention.reasons import Marks
from ebbtide.retention.rules import Rule

_REWRITTEN: Final = "whole history (mode rewrite)"
_REWRITTEN_DANGLING: Final = "only commits that refs reach (mode rewrite)"
_CONTENTS: Final = "contents that collections need"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefSummary:
    """The number of commits on a branch's main ancestry, and how many of them are active.

    `kept_count` counts every active commit, whatever keeps it: `commit_count` is `kept_count +
    expired_count`. There is one summary for each branch. If commits are on no branch's main
    ancestry, one of kind "dangling" follows for all of them. The contents of collections are not
    among them: one of kind "collections" follows for all contents. If tags have a rule, one of kind
    "tags" follows for the tagged commits. Only summaries of branches have a `commit_id`.
    """

    kind: Literal["branch", "dangling", "collections", "tags"]
    name: str
    commit_id: str | None
    rule: str
    commit_count: int
    kept_count: int
    expired_count: int


def summaries(inputs: SelectionInput, marks: Marks) -> Iterator[RefSummary]:
    """Yields the summaries of a selection, branches in the order of their names."""
    rewritten = inputs.policy.mode == "rewrite"
    active = marks.active()
    totals, kept = _running_totals(inputs, active)
    for head in inputs.branches:
        yield _summary(
            "branch",
            head.name,
            rule=_REWRITTEN if rewritten else _rule_text(head.rule),
            counts=(totals[head.position], kept[head.position]),
            commit_id=inputs.history.commits[head.position].commit_id,
        )
    off_branch = list(_on_no_branch(inputs))
    contents = [place for place in off_branch if inputs.history.commits[place].is_content]
    dangling = _count(active, set(off_branch).difference(contents))
    if dangling[0]:
        rule = _REWRITTEN_DANGLING if rewritten else _rule_text(inputs.policy.default)
        yield _summary("dangling", "(dangling)", rule=rule, counts=dangling)
    if contents:
        counts = _count(active, contents)
        yield _summary("collections", "(collections)", rule=_CONTENTS, counts=counts)
    tagged = {position for _, position in inputs.tagged()}
    if tagged and inputs.policy.tags is not None and not rewritten:
        rule = inputs.policy.tags.describe()
        yield _summary("tags", "(tags)", rule=rule, counts=_count(active, tagged))


def _summary(
    kind: Literal["branch", "dangling", "collections", "tags"],
    name: str,
    *,
    rule: str,
    counts: tuple[int, int],
    commit_id: str | None = None,
) -> RefSummary:
    commit_count, kept_count = counts
    return RefSummary(
        kind=kind,
        name=name,
        commit_id=commit_id,
        rule=rule,
        commit_count=commit_count,
        kept_count=kept_count,
        expired_count=commit_count - kept_count,
    )


def _rule_text(rule: Rule | None) -> str:
    return "keep (no rule applies)" if rule is None else rule.describe()


def _running_totals(inputs: SelectionInput, active: bytes) -> tuple[list[int], list[int]]:
    """Returns for each position the length of its main ancestry, and how many commits of it are
    active."""
    totals: list[int] = []
    kept: list[int] = []
    for above, is_active in zip(inputs.forest.parent, active, strict=True):  # parents first
        is_root = above == NO_PARENT
        totals.append(1 if is_root else totals[above] + 1)
        kept.append(is_active if is_root else kept[above] + is_active)
    return totals, kept


def _on_no_branch(inputs: SelectionInput) -> Iterator[int]:
    heads = (head.position for head in inputs.branches)
    on_branch = main_ancestries(inputs.history.parent, heads)
    return (position for position, found in enumerate(on_branch) if not found)


def _count(active: bytes, positions: Iterable[int]) -> tuple[int, int]:
    """Returns the number of positions, and how many of them are active."""
    states = [active[position] for position in positions]
    return len(states), sum(states)
