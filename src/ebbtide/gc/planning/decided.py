"""What was decided on refs and commits, as far as a plan needs it.

Commits are the most that a run holds by itself: nobody does for longer than it takes to decide and
to write down what was decided. What follows needs their trees.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ebbtide.gc.parts import Part
from ebbtide.gc.planning.planned_commits import write_commits, write_refs
from ebbtide.gc.relations.mark import MarkedTrees, write_trees
from ebbtide.gc.relations.trees import KnownTrees
from ebbtide.gc.runs import RunFolder
from ebbtide.retention.decision import Decision, Roots, decide


@dataclass(frozen=True, slots=True)
class Basis:
    """What was decided from, and what it came to."""

    roots: Roots
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a plan says of refs and commits, at `now`; the files that say it of each; and the trees
    of all. The `basis` is for who decides once more."""

    now: datetime
    policy: dict[str, Any] | None  # as `Policy.to_mapping` has it
    active_count: int
    expired_count: int
    gone_count: int
    forgettable_count: int
    by_ref: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    commits: Part
    refs: Part
    trees: KnownTrees
    basis: Basis | None = None


def decided(folder: RunFolder, roots: Roots, *, keeps_basis: bool = False) -> Decided:
    """Decide, and write it down. Raises as `decide`."""
    decision = decide(roots)
    gone_count = sum(commit.tombstoned for commit in roots.commits)
    return Decided(
        now=roots.now,
        policy=None if roots.policy is None else roots.policy.to_mapping(),
        active_count=len(decision.active),
        expired_count=len(decision.expired) - gone_count,
        gone_count=gone_count,
        forgettable_count=len(decision.forgettable),
        by_ref=tuple(asdict(summary) for summary in decision.by_ref),
        warnings=decision.warnings,
        commits=write_commits(folder, roots, decision),
        refs=write_refs(folder, roots),
        trees=write_trees(folder, "", trees_of(roots, decision), roots.tree_checksums),
        basis=Basis(roots, decision) if keeps_basis else None,
    )


def trees_of(roots: Roots, decision: Decision) -> MarkedTrees:
    """The trees that a decision keeps, and those whose data it keeps.

    A commit that an operator gave up has no checksum of its tree: the tree is not read.
    """

    def trees(commit_ids: Container[str]) -> frozenset[str]:
        found = {commit.tree_id for commit in roots.commits if commit.commit_id in commit_ids}
        return frozenset(found.intersection(roots.tree_checksums))

    def companions(commit_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(
            address for commit_id in commit_ids for address in roots.companions.get(commit_id, ())
        )

    lenient = {c.commit_id for c in roots.commits if c.tree_id in roots.lenient_trees}
    return MarkedTrees(
        recorded=trees(decision.recorded),
        data=trees(frozenset(decision.active)),
        lenient=roots.lenient_trees,
        companions=companions(decision.recorded),
        required=companions(decision.recorded - lenient),
    )
