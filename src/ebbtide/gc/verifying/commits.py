"""Whether a plan keeps the commits that it must: decided again, by what it says it was decided by,
and by what the repository says now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import EbbtideError
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.planning.planned_commits import COMMITS_FILE, REFS_FILE
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.verifying.findings import Finding, Findings
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots, decide

_COUNTED: Final = ("active_count", "expired_count", "gone_count", "forgettable_count")


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """What a plan says of a commit: the commit, and what it keeps of it."""

    commit: Commit
    active: bool
    recorded: bool
    reason: str | None
    companions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedRoots:
    """What a plan says of all commits and refs; `decision` is what follows from that, None where
    nothing does."""

    commits: tuple[PlannedCommit, ...]
    refs: tuple[Ref, ...]
    decision: Decision | None


def read_planned(folder: RunFolder, plan: Plan, commits: Part, refs: Part) -> PlannedRoots:
    """Read it, and decide again. Refused `plan_corrupt`."""
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
    """Name each commit of which the plan says something else than follows from its own record."""
    _check_counts(plan, planned, findings)
    decision = planned.decision
    if decision is None:
        text = "nothing follows from the plan's commits and refs: they lack a part of the history"
        findings.add(Finding("reason", text))
        return
    for each in planned.commits:
        commit_id = each.commit.commit_id
        reason = decision.active.get(commit_id)
        said = (each.active, each.reason if each.active else None, each.recorded)
        follows = (reason is not None, reason, commit_id in decision.recorded)
        if said != follows:
            text = f"the plan says {_fate(*said)}; it is {_fate(*follows)}"
            findings.add(Finding("reason", text, commit_id=commit_id))


def _fate(active: bool, reason: str | None, recorded: bool) -> str:
    if active:
        return f"kept ({reason or 'without a reason'})"
    return "let go, its record kept" if recorded else "let go, its record too"


def _check_counts(plan: Plan, planned: PlannedRoots, findings: Findings) -> None:
    lost = [each for each in planned.commits if not each.active]
    gone = sum(each.commit.tombstoned for each in lost)
    forgettable = sum(not each.recorded for each in lost)
    found = (len(planned.commits) - len(lost), len(lost) - gone, gone, forgettable)
    for name, count in zip(_COUNTED, found, strict=True):
        if getattr(plan, name) != count:
            text = f"{name} is {getattr(plan, name):,}, and its commits come to {count:,}"
            findings.add(Finding("figure", text))


def check_present(
    plan: Plan, planned: PlannedRoots, roots: Roots, findings: Findings, *, swept: bool
) -> None:
    """Compare with the repository as it is now: commits never change; what else did is noted, until
    the plan is swept."""
    now = {commit.commit_id: commit for commit in roots.commits}
    for each in planned.commits:
        commit = now.get(each.commit.commit_id)
        # Of what nothing reaches, a format may know no date but that of a file.
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
    changed += [f"{kind} {name} is another, new or gone" for kind, name in sorted(names)]
    if (None if roots.policy is None else roots.policy.to_mapping()) != plan.policy:
        changed.append("the policy or a hold is another")
    for text in changed:
        findings.add(Finding("since", text))


def _lasting(commit: Commit) -> str:
    """What nothing changes of a commit, in words."""
    return f"tree {commit.tree_id}, dated {commit.created_at.isoformat()}"
