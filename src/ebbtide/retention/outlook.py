"""Finds how long commits stay if nothing happens: the first instant at which nothing keeps them.

For a later instant, `decide` is called with the roots as they will be then. Its result changes at
few instants: when a ref is gone, when a hold or lease ends, and when a rule's period ends for a
commit or its child. While the refs are the same, the kept commits only become fewer, because
counting rules do not depend on the clock. When a ref is gone, a commit that its rule had expired
may be kept again: by the default rule, as a dangling commit, or by the rule for tags. Each interval
between two such instants is therefore searched on its own.

Not for: addresses, or protections of addresses other than commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Decision, Roots, decide


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
