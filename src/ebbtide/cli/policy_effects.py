"""The effect of another policy on commits, compared with the policy in force. Not for: files, which
`ebbtide what-if` counts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ebbtide.errors import Refused
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.cli.output import Output
    from ebbtide.formats.capabilities import WithPolicy
    from ebbtide.retention import Policy
    from ebbtide.retention.decision import Decision, Roots


@dataclass(frozen=True, slots=True)
class BranchEffect:
    """The number of commits that one branch keeps, under the policy in force and another one."""

    kind: str
    name: str
    kept_before: int
    kept_after: int


@dataclass(frozen=True, slots=True)
class PolicyEffect:
    """Counts of commits whose fate another policy changes. Commits whose data is gone already are
    left out.

    `newly_expired` are kept by the policy in force, and not by the other one. `newly_kept` are the
    opposite. `branches` has the branches whose counts differ.
    """

    newly_expired: int
    newly_kept: int
    branches: tuple[BranchEffect, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the effect in JSON."""
        return {
            "newly_expired_count": self.newly_expired,
            "newly_kept_count": self.newly_kept,
            "by_ref": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "kept_before_count": each.kept_before,
                    "kept_after_count": each.kept_after,
                }
                for each in self.branches
            ],
        }


def effect_of(found: WithPolicy, policy: Policy) -> PolicyEffect | None:
    """Returns the effect of a policy that is not set yet. None if the history is damaged, so that
    nothing can be decided about it. Raises Failed."""
    present: Policy | None = None
    # A repository of lakeFS without rules cannot be collected: it keeps everything.
    with suppress(Refused):
        present = found.policy()
    try:
        roots = found.roots(policy)
        before, after = _decided(roots, present), _decided(roots, policy)
    except Refused:
        return None
    intact = {commit.commit_id for commit in roots.commits if not commit.tombstoned}
    return PolicyEffect(
        newly_expired=len((after.expired - before.expired) & intact),
        newly_kept=len((before.expired - after.expired) & intact),
        branches=_branches(before, after),
    )


def _decided(roots: Roots, policy: Policy | None) -> Decision:
    from ebbtide.retention.decision import decide

    held = None if policy is None else policy.with_holds(roots.holds)
    return decide(replace(roots, policy=held))


def _branches(before: Decision, after: Decision) -> tuple[BranchEffect, ...]:
    kept = {(each.kind, each.name): each.kept_count for each in before.by_ref}
    found = [
        BranchEffect(
            each.kind,
            each.name,
            kept_before=kept.get((each.kind, each.name), each.commit_count),
            kept_after=each.kept_count,
        )
        for each in after.by_ref
    ]
    return tuple(each for each in found if each.kept_before != each.kept_after)


def show_effect(output: Output, effect: PolicyEffect | None) -> None:
    """Prints the effect of a policy."""
    if effect is None:
        output.warn("the history is damaged: the effect on commits is unknown")
        return
    if not effect.newly_expired and not effect.newly_kept:
        output.line("compared with the former policy, no commit expires or is kept in addition")
        return
    output.line(
        f"compared with the former policy, {count_text(effect.newly_expired, 'commit')} more "
        f"expire, and {count_text(effect.newly_kept, 'commit')} more are kept"
    )
    output.table(
        ["branch", "kept before", "kept after"],
        [
            [each.name, count_text(each.kept_before), count_text(each.kept_after)]
            for each in effect.branches
        ],
        right=["kept before", "kept after"],
        none="no branch keeps another number of commits",
    )
