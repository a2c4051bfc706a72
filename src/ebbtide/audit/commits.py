"""Checks that a plan keeps the right commits.

The decision is made again from the commits and refs that the plan recorded, and compared with the
plan. The recorded commits and refs are compared with those of the repository now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ebbtide.audit.findings import Finding, Findings
from ebbtide.errors import EbbtideError
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.planning.plan import COMMITS_FILE, REFS_FILE, Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots, decide

_COUNTED: Final = ("active_count", "expired_count", "gone_count", "forgettable_count")


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """A commit in a plan. `active`: the plan keeps its data, with the `reason`. `recorded`: the
    plan keeps its record. `companions` are addresses that belong to the record."""

    commit: Commit
    active: bool
    recorded: bool
    reason: str | None
    companions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedRoots:
    """All commits and refs of a plan. `decision` is the decision that is made again from them; None
    if they lack a part of the history."""

    commits: tuple[PlannedCommit, ...]
    refs: tuple[Ref, ...]
    decision: Decision | None


def read_planned(folder: RunFolder, plan: Plan, commits: Part, refs: Part) -> PlannedRoots:
    """Reads the commits and refs of a plan, and decides again. Raises Refused `plan_corrupt`."""
    planned = tuple(_planned_commits(folder, commits))
    rows = read_part(folder, REFS_FILE, refs.checksum).to_pylist()
    known_refs = tuple(Ref(**row) for row in rows)
    known = {each.commit.commit_id for each in planned}
    named = {ref.commit_id for ref in known_refs}
    named.update(parent for each in planned for parent in each.commit.parent_ids)
    roots = Roots(
        now=plan.read_at,
        refs=known_refs,
        commits=tuple(each.commit for each in planned),
        stub_ids=frozenset(named - known),
        tree_checksums={},
        policy=None if plan.policy is None else Policy.parse(plan.policy),
    )
    try:
        decision = decide(roots)
    except EbbtideError:
        decision = None
    return PlannedRoots(planned, known_refs, decision)


def _planned_commits(folder: RunFolder, part: Part) -> Iterator[PlannedCommit]:
    for row in read_part(folder, COMMITS_FILE, part.checksum).to_pylist():
        commit = Commit(
            row["commit_id"],
            tuple(row["parent_ids"]),
            row["created_at"],
            row["tree_id"],
            tombstoned=row["tombstoned"],
            leased_until=row["leased_until"],
            is_content=row["is_content"],
        )
        yield PlannedCommit(
            commit, row["active"], row["recorded"], row["reason"], tuple(row["companions"])
        )


def check_decision(plan: Plan, planned: PlannedRoots, findings: Findings) -> None:
    """Adds a finding for each commit whose state in the plan differs from the second decision, and
    for wrong counts."""
    _check_counts(plan, planned, findings)
    decision = planned.decision
    if decision is None:
        text = (
            "the plan's commits and refs lack a part of the history: no second decision is possible"
        )
        findings.add(Finding("reason", text))
        return
    for each in planned.commits:
        commit_id = each.commit.commit_id
        reason = decision.active.get(commit_id)
        said = (each.active, each.reason if each.active else None, each.recorded)
        follows = (reason is not None, reason, commit_id in decision.recorded)
        if said != follows:
            text = f"the plan says {_fate(*said)}; the second decision says {_fate(*follows)}"
            findings.add(Finding("reason", text, commit_id=commit_id))


def _fate(active: bool, reason: str | None, recorded: bool) -> str:
    if active:
        return f"kept ({reason or 'without a reason'})"
    return "expired, its record kept" if recorded else "expired, its record deleted too"


def _check_counts(plan: Plan, planned: PlannedRoots, findings: Findings) -> None:
    lost = [each for each in planned.commits if not each.active]
    gone = sum(each.commit.tombstoned for each in lost)
    forgettable = sum(not each.recorded for each in lost)
    found = (len(planned.commits) - len(lost), len(lost) - gone, gone, forgettable)
    for name, count in zip(_COUNTED, found, strict=True):
        if getattr(plan, name) != count:
            text = f"{name} is {getattr(plan, name):,}, and the plan has {count:,} such commits"
            findings.add(Finding("figure", text))


def check_present(
    plan: Plan, planned: PlannedRoots, roots: Roots, findings: Findings, *, swept: bool
) -> None:
    """Compares the plan with the repository as it is now. A changed commit is a difference, because
    commits never change. Before the sweep, other changes are notes."""
    now = {commit.commit_id: commit for commit in roots.commits}
    for each in planned.commits:
        commit = now.get(each.commit.commit_id)
        # For an unreachable commit, a format may know only the date of its file.
        if commit is None or commit.tree_id in roots.lenient_trees:
            continue
        if _lasting(commit) != _lasting(each.commit):
            text = f"the plan has {_lasting(each.commit)}, the repository {_lasting(commit)}"
            findings.add(Finding("commit", text, commit_id=commit.commit_id))
    if swept:
        return
    changed: list[str] = []
    known = {each.commit.commit_id for each in planned.commits}
    if made := len(now.keys() - known):
        changed.append(f"commits that the plan does not know: {made:,}")
    moved = set(planned.refs) ^ set(roots.refs)
    names = {(ref.kind, ref.name) for ref in moved}
    changed += [f"{kind} {name} was changed, created or deleted" for kind, name in sorted(names)]
    if (None if roots.policy is None else roots.policy.to_mapping()) != plan.policy:
        changed.append("the policy or a hold was changed")
    for text in changed:
        findings.add(Finding("since", text))


def _lasting(commit: Commit) -> str:
    """Returns the properties of a commit that never change, in words."""
    return f"tree {commit.tree_id}, dated {commit.created_at.isoformat()}"
