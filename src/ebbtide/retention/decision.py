"""Decides for each commit of a reading whether its data, its record, or neither stays.

Pure. The plan and the fence both call `decide`, so that both follow the same rules.

`outlook` finds the first instant at which nothing keeps some commits, if nothing happens. For a
later instant, `decide` is called with the roots as they will be then. Its result changes at few
instants: when a ref is gone, when a hold or lease ends, and when a rule's period ends for a commit
or its child. While the refs are the same, the kept commits only become fewer, because counting
rules do not depend on the clock. When a ref is gone, a commit that its rule had expired may be kept
again: by the default rule, as a dangling commit, or by the rule for tags. Each interval between two
such instants is therefore searched on its own.

Not for: addresses (the mark), their protections, or gates that need the storage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from ebbtide.errors import Refused
from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit, Ref
from ebbtide.retention.policy import Policy
from ebbtide.retention.selection import RefSummary, select_commits

KEEP_EVERYTHING = Policy.parse({"default": "keep"})

CommitRow: TypeAlias = tuple[str, str, int, str, str | None, int | None, int, int, int]
"""The row of a commit. Its columns are id, parents' ids joined by blanks, date, tree id, checksum
of the tree's file, and end of the lease. Three flags follow: closed, content of a collection,
stub. The checksum is None if the tree was given up; the end is None without a lease. In a stub's
row only the id counts. Instants are microseconds since EPOCH."""


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
    time when their hold ends by itself, at the latest. `warnings` are sentences for the operator.
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
    warnings: tuple[str, ...] = ()

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
    warnings = roots.warnings
    if roots.policy is None:
        warnings += ("no retention policy is set: every commit is kept",)
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


def micros_since_epoch(instant: datetime) -> int:
    """Returns an instant as rows store it."""
    return (instant - EPOCH) // ONE_MICROSECOND


def with_commits(head: Roots, rows: Iterable[CommitRow]) -> Roots:
    """Returns `head`, the roots without commits, with the commits of the rows."""
    kept: list[Commit] = []
    stub_ids: set[str] = set()
    checksums: dict[str, str] = {}
    ids: dict[str, str] = {}  # each id is stored once, however many children name it as a parent
    once = ids.setdefault
    for row in rows:
        commit_id, parent_ids, made_at, tree_id, checksum, leased_until, gone, content, stub = row
        if stub:
            stub_ids.add(commit_id)
            continue
        kept.append(
            Commit(
                once(commit_id, commit_id),
                tuple([once(each, each) for each in parent_ids.split()]),
                EPOCH + made_at * ONE_MICROSECOND,
                tree_id,
                bool(gone),
                None if leased_until is None else EPOCH + leased_until * ONE_MICROSECOND,
                bool(content),
            )
        )
        if checksum is not None:
            checksums[tree_id] = checksum
    return replace(
        head, commits=tuple(kept), stub_ids=frozenset(stub_ids), tree_checksums=checksums
    )


@dataclass(frozen=True, slots=True)
class Outlook:
    """`ends_at` is the instant from which on nothing keeps the commits. None means that they stay
    for good; `reason` then says what keeps them."""

    ends_at: datetime | None
    reason: str | None = None


def outlook(roots: Roots, *, data: Iterable[str] = (), records: Iterable[str] = ()) -> Outlook:
    """Returns how long the data of any commit in `data`, or the record of any in `records`, stays.

    Raises as `decide` does.
    """
    asked = _Asked(roots, tuple(data), tuple(records))
    near = asked.related()
    instants = sorted({roots.now, *_instants(roots, near)})
    breaks = sorted({roots.now, *_refs_end(roots, near)})
    reason: str | None = None
    for start, end in zip(breaks, [*breaks[1:], None], strict=True):
        between = [start, *(i for i in instants if start < i and (end is None or i < end))]
        reason = asked.kept_at(between[-1])
        if reason is None:
            return Outlook(_first_unkept(asked, between))
    return Outlook(None, reason)


def _first_unkept(asked: _Asked, instants: list[datetime]) -> datetime:
    """Returns the first of ascending instants at which nothing is kept. Nothing is kept at the last
    one, and nothing becomes kept again on the way."""
    place = bisect_left(instants, True, key=lambda instant: asked.kept_at(instant) is None)
    return instants[place]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The commits that an outlook is about."""

    roots: Roots
    data: tuple[str, ...]
    records: tuple[str, ...]

    def kept_at(self, instant: datetime) -> str | None:
        """Returns the reason why any of the commits is kept at `instant`, or None."""
        roots = self.roots.at(instant)
        decision = decide(roots)
        for commit_id in self.data:
            if commit_id in decision.active:
                return decision.active[commit_id]
        if any(commit_id in decision.recorded for commit_id in self.records):
            return _reaching(roots, decision, self.records)
        return None

    def related(self) -> list[Commit]:
        """Returns the commits that decide how long these commits stay: the commits themselves and
        all their descendants."""
        children: dict[str, list[Commit]] = {}
        for commit in self.roots.commits:
            for parent_id in commit.parent_ids:
                children.setdefault(parent_id, []).append(commit)
        asked = {*self.data, *self.records}
        found = {c.commit_id: c for c in self.roots.commits if c.commit_id in asked}
        waiting = list(found)
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child.commit_id not in found:
                    found[child.commit_id] = child
                    waiting.append(child.commit_id)
        return list(found.values())


def _reaching(roots: Roots, decision: Decision, commit_ids: Iterable[str]) -> str:
    """Returns in words why a record stays."""
    asked = frozenset(commit_ids)
    for commit_id in sorted(asked):
        if commit_id in decision.active:
            return decision.active[commit_id]
    for ref in roots.refs:
        if ref.commit_id in asked:
            return f"{ref.kind} {ref.name} points at it"
    return "a ref or a kept commit has it in its history"


def _refs_end(roots: Roots, near: Iterable[Commit]) -> Iterator[datetime]:
    """Yields the instants at which relevant refs are gone: refs on a commit in `near`, and, if the
    policy has a rule for tags, all tags."""
    ids = {commit.commit_id for commit in near}
    tags_count = roots.policy is not None and roots.policy.tags is not None

    def has_a_say(ref: Ref) -> bool:
        return ref.commit_id in ids or (tags_count and ref.kind == "tag")

    for ref in roots.refs:
        if ref.expires_at is not None and has_a_say(ref):
            yield from _later(roots.now, ref.expires_at, roots.trash_time)


def _instants(roots: Roots, near: Iterable[Commit]) -> Iterator[datetime]:
    """Yields the other instants at which the decision may change."""
    periods = _periods(roots)
    for commit in near:
        yield from _later(roots.now, commit.created_at)
        if commit.leased_until is not None:
            yield from _later(roots.now, commit.leased_until)
        if commit.commit_id in roots.holds_end:
            yield from _later(roots.now, roots.holds_end[commit.commit_id])
        for period in periods:
            yield from _later(roots.now, commit.created_at, period)


def _later(now: datetime, instant: datetime, period: timedelta = timedelta()) -> Iterator[datetime]:
    """Yields `instant + period`, if it is later than `now` and a valid date."""
    try:
        end = instant + period
    except OverflowError:
        return
    if end > now:
        yield end


def _periods(roots: Roots) -> set[timedelta]:
    """Returns the periods of all rules."""
    policy = roots.policy
    if policy is None:
        return set()
    rules = [policy.default, policy.tags, *policy.branches.values()]
    return {rule.keep_within for rule in rules if rule is not None and rule.keep_within is not None}
