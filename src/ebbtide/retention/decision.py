"""Decides for each commit of a reading whether its data, its record, or neither stays.

Pure. The plan and the fence both call `decide`, so that both follow the same rules. Not for:
addresses (the mark), or gates that need the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ebbtide.errors import Refused
from ebbtide.model import Commit, Ref
from ebbtide.retention.policy import Policy
from ebbtide.retention.selection import RefSummary, select_commits

KEEP_EVERYTHING = Policy.parse({"default": "keep"})


@dataclass(frozen=True, slots=True)
class Roots:
    """One consistent reading of everything that decides: refs, commits, policy, and the time.

    `refs` are the refs that are not gone. A ref is gone `trash_time` after its `expires_at`.
    `commits` leaves out stubs, whose records an earlier run forgot; `stub_ids` has their ids.
    `tree_checksums` maps tree ids to the checksums of their files. A tree without a checksum there
    was given up. Without a `policy` the data of every commit is kept.

    `companions` maps commits to addresses that are kept with their records, besides tree and nodes.
    Files of `lenient_trees` may be missing, because nothing needs them. `holds` must be added to
    any other policy that is tried; `policy` has them already. `holds_end` maps held commits to the
    time when their hold ends by itself, at the latest.
    """

    now: datetime
    refs: tuple[Ref, ...]
    commits: tuple[Commit, ...]
    stub_ids: frozenset[str]
    tree_checksums: Mapping[str, str]
    policy: Policy | None
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lenient_trees: frozenset[str] = frozenset()
    holds: Mapping[str, str] = field(default_factory=dict)
    trash_time: timedelta = timedelta()
    holds_end: Mapping[str, datetime] = field(default_factory=dict)

    def at(self, instant: datetime) -> Roots:
        """Returns the roots as they will be at a later instant if nothing happens until then."""
        refs = tuple(
            ref
            for ref in self.refs
            if ref.expires_at is None or instant - ref.expires_at < self.trash_time
        )
        ended = {commit_id for commit_id, end in self.holds_end.items() if end <= instant}
        policy = self.policy
        if policy is not None and ended:
            holds = {name: why for name, why in policy.holds.items() if name not in ended}
            policy = replace(policy, holds=holds)
        return replace(self, now=instant, refs=refs, policy=policy)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for each commit of a reading.

    `active` maps the commits whose data stays to the reason; all others are in `expired`.
    `recorded` are the commits whose record, tree and ranges stay: all commits that a ref or an
    active commit reaches.
    """

    active: Mapping[str, str]
    expired: frozenset[str]
    recorded: frozenset[str]
    warnings: tuple[str, ...] = ()
    by_ref: tuple[RefSummary, ...] = field(default=())

    @property
    def forgettable(self) -> frozenset[str]:
        """The expired commits that nothing reaches: their records may be deleted too."""
        return self.expired - self.recorded


def decide(roots: Roots) -> Decision:
    """Selects the commits by the policy, then finds the records that stay.

    Raises Refused `missing_parent` if a commit's parent, or the commit of a ref, is neither among
    the commits nor a stub. Part of the history is then lost, and it is unknown what that part kept.
    """
    _check_parents(roots)
    warnings: tuple[str, ...] = ()
    if roots.policy is None:
        warnings = ("no retention policy is set: every commit is kept",)
    policy = roots.policy or KEEP_EVERYTHING
    selection = select_commits(roots.commits, roots.refs, policy, roots.now)
    start = [ref.commit_id for ref in roots.refs]
    recorded = reachable(roots.commits, [*start, *selection.active])
    return Decision(
        active=selection.active,
        expired=frozenset(selection.expired),
        recorded=recorded,
        warnings=warnings + tuple(selection.warnings),
        by_ref=tuple(selection.by_ref),
    )


def reachable(commits: Iterable[Commit], start: Iterable[str]) -> frozenset[str]:
    """Returns all commits that `start` reaches through any parents, including `start`."""
    parents = {commit.commit_id: commit.parent_ids for commit in commits}
    found: set[str] = set()
    waiting = [commit_id for commit_id in start if commit_id in parents]
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in found:
            found.add(commit_id)
            waiting += [parent for parent in parents[commit_id] if parent in parents]
    return frozenset(found)


def _check_parents(roots: Roots) -> None:
    known = {commit.commit_id for commit in roots.commits} | roots.stub_ids
    for commit in roots.commits:
        for parent_id in commit.parent_ids:
            if parent_id not in known:
                raise Refused(
                    "missing_parent",
                    f"commit {commit.commit_id} names the parent {parent_id}, which is not in "
                    "the database, and no run deleted its record: the database has lost part of "
                    "the history; restore it before collecting",
                )
    lost = [ref for ref in roots.refs if ref.commit_id not in known]
    if lost:
        raise Refused(
            "missing_parent",
            f"{lost[0].kind} {lost[0].name} points at commit {lost[0].commit_id}, which is not "
            "in the database: restore the database before collecting",
        )
