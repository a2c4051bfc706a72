"""What a policy keeps, worked out the slow way from its definition: replay each branch's heads.

Written from lakeFS issue 1932 ("existed in the HEAD of some branch within the retention period of
that branch") and the rules in docs/retention.md. Shares no code with the implementation, not
even the parsing of policies: it reads the mapping as it is written, durations in whole days or
hours. Nothing here is meant to be fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide.model import Commit, Ref

RuleText = Any  # a policy as JSON has it: text, or a mapping of text to text or numbers

CALENDAR: Mapping[str, Callable[[datetime], tuple[int, ...]]] = {
    "keep_hourly": lambda t: (t.year, t.month, t.day, t.hour),
    "keep_daily": lambda t: (t.year, t.month, t.day),
    "keep_weekly": lambda t: t.isocalendar()[:2],
    "keep_monthly": lambda t: (t.year, t.month),
    "keep_yearly": lambda t: (t.year,),
}


@dataclass(frozen=True)
class Move:
    """The branch's head went from `before` (None at first) to `after` at the instant `at`."""

    before: str | None
    after: str
    at: datetime
    tombstoned: bool


def active_ids(
    commits: Iterable[Commit], refs: Iterable[Ref], policy: Mapping[str, Any], now: datetime
) -> set[str]:
    known = {commit.commit_id: commit for commit in commits}
    # A ref that keeps no data is one more name for a record.
    pointed = [ref for ref in refs if ref.keeps_data]
    kept = {ref.commit_id for ref in pointed if ref.kind != "tag"}
    kept |= kept_tags({ref.commit_id for ref in pointed if ref.kind == "tag"}, known, policy, now)
    kept |= set(policy.get("holds", ())) & set(known)
    for commit in known.values():
        if commit.created_at > now:
            kept.add(commit.commit_id)
        if commit.leased_until is not None and commit.leased_until > now:
            kept.add(commit.commit_id)
    for ref in pointed:
        if ref.kind == "branch":
            rule = rule_of_branch(ref.name, policy)
            kept |= kept_by_rule(replay(ref.commit_id, known), rule, now)
    default = rule_of_branch("", policy)
    for head in dangling_heads(known.values(), pointed):
        child = Move(
            before=head.commit_id, after="(child)", at=utc(head.created_at), tombstoned=False
        )
        kept |= kept_by_rule([*replay(head.commit_id, known), child], default, now)
    return {name for name in kept if name in known and not known[name].tombstoned}


def holders(
    commits: Iterable[Commit], refs: Iterable[Ref], policy: Mapping[str, Any], now: datetime
) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What keeps the data of each commit, and what keeps its own files: the names of holders."""
    known, refs = {commit.commit_id: commit for commit in commits}, list(refs)
    pointed = [ref for ref in refs if ref.keeps_data]
    tags = {ref.commit_id for ref in pointed if ref.kind == "tag"}
    kept_by = {f"{ref.kind} {ref.name}": set[str]() for ref in pointed}
    for ref in pointed:
        own = {ref.commit_id}
        if ref.kind == "tag":
            own &= kept_tags(tags, known, policy, now)
        if policy.get("mode") == "rewrite":
            own = ancestors(ref.commit_id, known)
        elif ref.kind == "branch":
            rule = rule_of_branch(ref.name, policy)
            own |= kept_by_rule(replay(ref.commit_id, known), rule, now)
        kept_by[f"{ref.kind} {ref.name}"] |= own
    for held in policy.get("holds", ()):
        kept_by[f"hold {held}"] = {held}
    kept_by["future"] = {name for name, each in known.items() if each.created_at > now}
    kept_by["lease"] = {name for name, each in known.items() if (each.leased_until or now) > now}
    heads = [ref for ref in pointed if ref.kind == "branch"]
    default = rule_of_branch("", policy)
    kept_by["dangling"] = set[str]()
    rewritten = policy.get("mode") == "rewrite"
    for head in [] if rewritten else dangling_heads(known.values(), heads):
        child = Move(
            before=head.commit_id, after="(child)", at=utc(head.created_at), tombstoned=False
        )
        kept_by["dangling"] |= kept_by_rule([*replay(head.commit_id, known), child], default, now)
    data = {name: set[str]() for name in known}
    for holder, names in kept_by.items():
        for name in names & known.keys():
            if not known[name].tombstoned:
                data[name].add(holder)
    records = {name: set(found) for name, found in data.items()}
    for ref in refs:
        records[ref.commit_id].add(f"{ref.kind} {ref.name}")
    for name in known:
        for other in list(known):
            if other in ancestors(name, known):
                records[other] |= data[name] | {
                    f"{ref.kind} {ref.name}" for ref in refs if ref.commit_id == name
                }
    return data, records


def ancestors(start: str, known: Mapping[str, Commit]) -> set[str]:
    """A commit and all that it has in its history, along all parents."""
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found.add(name)
            waiting += known[name].parent_ids
    return found


def dangling_heads(commits: Iterable[Commit], refs: Iterable[Ref]) -> list[Commit]:
    """Content of collections is no history that anybody left behind."""
    everyone = [commit for commit in commits if not commit.is_content]
    covered = {commit.parent_ids[0] for commit in everyone if commit.parent_ids}
    covered |= {ref.commit_id for ref in refs if ref.kind == "branch"}
    return [commit for commit in everyone if commit.commit_id not in covered]


def replay(head: str, known: Mapping[str, Commit]) -> list[Move]:
    """The history of the heads of a branch, oldest first, as its first parents tell it."""
    moves: list[Move] = []
    name: str | None = head
    while name is not None and name in known:
        commit = known[name]
        before = commit.parent_ids[0] if commit.parent_ids else None
        moves.insert(
            0,
            Move(
                before=before, after=name, at=utc(commit.created_at), tombstoned=commit.tombstoned
            ),
        )
        name = before
    return moves


def kept_by_rule(moves: Sequence[Move], rule: RuleText, now: datetime) -> set[str]:
    """The commits of a branch that its rule keeps, besides its own one."""
    if rule == "keep":
        return {move.after for move in moves}
    parts: dict[str, Any] = {"keep_within": rule} if isinstance(rule, str) else rule
    kept = counted([(move.after, move.at) for move in moves if not move.tombstoned], parts)
    if "keep_within" in parts:
        kept |= heads_within(moves, span(parts["keep_within"]), now)
    return kept


def counted(dated: Sequence[tuple[str, datetime]], parts: Mapping[str, Any]) -> set[str]:
    kept = {name for name, _ in dated[-parts["keep_last"] :]} if "keep_last" in parts else set()
    for name, calendar in CALENDAR.items():
        if name in parts:
            kept |= newest_of_each(dated, calendar, parts[name])
    return kept


def heads_within(moves: Sequence[Move], period: timedelta, now: datetime) -> set[str]:
    """Every commit that was the head at some instant of the period, the present one left out: what
    the head was before and after each move within the period."""
    kept: set[str] = set()
    for move in moves:
        if now - move.at < period:
            kept.add(move.after)
            if move.before is not None:
                kept.add(move.before)
    return kept


def newest_of_each(
    dated: Sequence[tuple[str, datetime]],
    calendar: Callable[[datetime], tuple[int, ...]],
    count: int,
) -> set[str]:
    """The newest of each of the `count` most recent periods; of equal dates, the later listed."""
    found: set[str] = set()
    periods = sorted({calendar(at) for _, at in dated}, reverse=True)
    for period in periods[:count]:
        newest = max(at for _, at in dated if calendar(at) == period)
        candidates = [name for name, at in dated if calendar(at) == period and at == newest]
        found.add(candidates[-1])
    return found


def kept_tags(
    tagged: set[str], known: Mapping[str, Commit], policy: Mapping[str, Any], now: datetime
) -> set[str]:
    rule = policy.get("tags", "keep")
    if rule == "keep":
        return tagged
    parts: dict[str, Any] = {"keep_within": rule} if isinstance(rule, str) else rule
    intact = [known[name] for name in tagged if not known[name].tombstoned]
    # Oldest first, and of equal dates the larger id first: the last is the one that is preferred.
    ids = sorted((commit.commit_id for commit in intact), reverse=True)
    dated = [(name, utc(known[name].created_at)) for name in ids]
    dated.sort(key=lambda pair: pair[1])
    kept = counted(dated, parts)
    if "keep_within" in parts:
        kept |= {name for name, at in dated if now - at < span(parts["keep_within"])}
    return kept


def rule_of_branch(name: str, policy: Mapping[str, Any]) -> RuleText:
    """The rule of a branch, "keep" where none applies. No branch is called "" (the default)."""
    branches = dict(policy.get("branches", {}))
    default = branches.pop("*", policy.get("default", "keep"))
    if not name:
        return default
    if name in branches:
        return branches[name]
    matching = sorted(
        (pattern for pattern in branches if matches(pattern, name)),
        key=lambda pattern: (-len(pattern), pattern),
    )
    return branches[matching[0]] if matching else default


def matches(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(matches(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    if not name:
        return False
    if pattern[0] == "[" and "]" in pattern:
        allowed, rest = pattern[1:].split("]", 1)
        return name[0] in allowed and matches(rest, name[1:])
    return pattern[0] in ("?", name[0]) and matches(pattern[1:], name[1:])


def span(text: str) -> timedelta:
    hours = {"d": 24, "h": 1, "w": 168}
    parts = re.findall(r"([0-9]+)([dhw])", text)
    assert "".join(number + unit for number, unit in parts) == text
    return timedelta(hours=sum(int(number) * hours[unit] for number, unit in parts))


def utc(instant: datetime) -> datetime:
    return instant.astimezone(UTC)
