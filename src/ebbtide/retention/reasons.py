"""Why each active commit is kept: finds everything that keeps it, and gives one reason in words.

The marks are made here: each function marks the commits that one reason keeps. Together they cover
all rules that a policy can have.

Reasons are stored as two small numbers for each commit, and written as text on request: a history
of a million commits would otherwise need a million sentences. If several reasons apply, the one
with the smallest code is given. `Code` is ordered from strong to weak.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from itertools import compress
from operator import attrgetter
from typing import Final

from ebbtide.durations import format_duration
from ebbtide.model import Commit, Ref, RefKind
from ebbtide.retention.dates import instant_text, span_text, to_utc
from ebbtide.retention.forest import Forest, History, reached_from
from ebbtide.retention.policy import KEEP_ALL, PERIODS, Period, Policy, Rule
from ebbtide.retention.rule_parts import (
    PERIOD_NUMBER,
    Headcount,
    Windows,
    kept_by_window,
    kept_last,
    kept_of_ladders,
    kept_tagged,
    period_ladders,
    period_name,
    window_start,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchHead:
    """A branch, the position of its own commit, and its rule. The rule is None if none applies."""

    ref: Ref
    position: int
    rule: Rule | None

    @property
    def name(self) -> str:
        """The name of the branch."""
        return self.ref.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionInput:
    """The input of a selection. `refs` are the refs that keep data. `positions` and `branches` have
    the order of `refs`."""

    policy: Policy
    now: datetime
    history: History
    refs: tuple[Ref, ...]
    positions: tuple[int, ...]
    forest: Forest
    branches: tuple[BranchHead, ...]

    @classmethod
    def of(
        cls, commits: Iterable[Commit], refs: Iterable[Ref], policy: Policy, now: datetime
    ) -> SelectionInput:
        """Builds the input. Raises InvalidInput and Refused as `select_commits` does."""
        history = History.of(commits)
        # Sorted, so that the reason does not depend on the order of the refs.
        known = tuple(
            sorted(
                (ref for ref in refs if ref.keeps_data),
                key=lambda ref: (ref.kind, ref.name, ref.commit_id),
            )
        )
        positions = tuple(history.index_of(ref) for ref in known)
        lookup = policy.lookup()
        branches = tuple(
            BranchHead(ref=ref, position=position, rule=lookup.rule(ref.name))
            for ref, position in zip(known, positions, strict=True)
            if ref.kind == "branch"
        )
        forest = Forest.of(history, {head.position for head in branches})
        return cls(
            policy=policy,
            now=to_utc(now, what="now"),
            history=history,
            refs=known,
            positions=positions,
            forest=forest,
            branches=branches,
        )

    def under(self, policy: Policy) -> SelectionInput:
        """Returns the same input with another policy."""
        lookup = policy.lookup()
        branches = tuple(replace(head, rule=lookup.rule(head.name)) for head in self.branches)
        return replace(self, policy=policy, branches=branches)

    def tagged(self) -> list[tuple[Ref, int]]:
        """Returns each tag, and the position of its own commit."""
        return [
            (ref, position)
            for ref, position in zip(self.refs, self.positions, strict=True)
            if ref.kind == "tag"
        ]


class Code(IntEnum):
    """The kinds of reasons, the strongest first. `TOMBSTONED` and `EXPIRED` are no reasons."""

    TOMBSTONED = 0
    HEAD = 1
    TAG = 2
    COLLECTION = 3
    HELD = 4
    LEASED = 5
    FUTURE = 6
    REACHED = 7
    BRANCH_RULE = 10
    DANGLING_RULE = 20
    TAG_RULE = 30
    EXPIRED = 255


class RulePart(IntEnum):
    """The part of a rule that keeps a commit. It is added to `BRANCH_RULE` or `DANGLING_RULE`.

    After `PERIOD` one more part follows for each of `PERIODS`.
    """

    WITHIN = 0
    OPENING = 1
    LAST = 2
    PERIOD = 3


_ACTIVE: Final = bytes(Code.TOMBSTONED < code < Code.EXPIRED for code in range(256))
"""For each code 1 if it is a reason to keep a commit, and 0 otherwise."""


class Marks:
    """The strongest reason found so far for each position of a forest, and the source of the
    reason.

    The source is an index. The code says into which list: refs, branches, dangling heads or
    `sentences`. `by_rules` has 1 for each position that a rule keeps as it is written: by a period,
    a count or a time, and not as the head before.
    """

    __slots__ = ("by_rules", "code", "sentences", "source")

    def __init__(self, forest: Forest) -> None:
        lost, expired = int(Code.TOMBSTONED), int(Code.EXPIRED)
        self.code = bytearray([lost if gone else expired for gone in forest.tombstoned])
        self.source = array("i", bytes(4 * len(self.code)))
        self.sentences: list[str] = []
        self.by_rules = b""

    def mark_sources(self, sources: Iterable[int], code: int) -> None:
        """Marks each position whose source is not negative."""
        for position, source in enumerate(sources):
            if source >= 0:
                self.mark(position, code, source)

    def mark(self, position: int, code: int, source: int) -> None:
        """Marks the commit with this reason, unless it is closed or has a stronger one."""
        present = self.code[position]
        if code < present or (code == present and source < self.source[position]):
            self.code[position] = code
            self.source[position] = source

    def active(self) -> bytes:
        """Returns 1 for each position with a reason to keep the commit, and 0 for all others."""
        return bytes(self.code).translate(_ACTIVE)


class Reasons(Mapping[str, str]):
    """The active commits: id → reason, each after its first parent."""

    __slots__ = ("_active", "_inputs", "_marks")

    def __init__(self, marks: Marks, inputs: SelectionInput) -> None:
        self._inputs = inputs
        self._marks = marks
        # The hypothetical children of dangling heads come behind the commits.
        self._active = marks.active()[: len(inputs.history.commits)]

    def __len__(self) -> int:
        return self._active.count(1)

    def __iter__(self) -> Iterator[str]:
        kept = compress(self._inputs.history.commits, self._active)
        return map(attrgetter("commit_id"), kept)

    def __contains__(self, commit_id: object) -> bool:
        position = self._inputs.history.index.get(commit_id)  # type: ignore[call-overload]
        return position is not None and bool(self._active[position])

    def __getitem__(self, commit_id: str) -> str:
        position = self._inputs.history.index[commit_id]
        if not self._active[position]:
            raise KeyError(commit_id)
        return _reason_text(self._inputs, self._marks, position)


def _reason_text(inputs: SelectionInput, marks: Marks, position: int) -> str:
    code, source = marks.code[position], marks.source[position]
    commit = inputs.history.commits[position]
    if code >= Code.TAG_RULE:
        return marks.sentences[source]
    if code >= Code.DANGLING_RULE:
        return _dangling_text(inputs, source, code - Code.DANGLING_RULE, commit)
    if code >= Code.BRANCH_RULE:
        return _branch_text(inputs.branches[source], code - Code.BRANCH_RULE, commit, inputs.now)
    if code == Code.HELD:
        reason = inputs.policy.holds[commit.commit_id]
        return f"held: {reason}" if reason else "held"
    if code == Code.LEASED and commit.leased_until is not None:
        return f"leased until {instant_text(commit.leased_until)}"
    if code == Code.FUTURE:
        return f"dated {instant_text(commit.created_at)}, which is after now"
    ref = inputs.refs[source]
    lead = {Code.HEAD: "head of ", Code.REACHED: "reached from "}.get(Code(code), "")
    return f"{lead}{ref.text(inputs.now)}"


def _branch_text(head: BranchHead, part: int, commit: Commit, now: datetime) -> str:
    where, rule = head.ref.text(now), head.rule
    if rule is None:
        return f"on {where}, to which no rule applies, so that everything on it is kept"
    if rule.keep_all:
        return f"on {where}, where everything is kept"
    if part == RulePart.WITHIN:
        age = span_text(now - commit.created_at)
        return f"on {where}, created {age} before now, within its {_period(rule)}"
    if part == RulePart.OPENING:
        return f"was the head of {where} when its {_period(rule)} window opened"
    if part == RulePart.LAST:
        return f"one of the last {rule.keep_last} of {where}"
    newest, count = _newest(rule, part, commit)
    return f"{newest} on {where} ({count})"


def _dangling_text(inputs: SelectionInput, source: int, part: int, commit: Commit) -> str:
    rule = inputs.policy.default
    head = inputs.history.commits[inputs.forest.dangling_heads[source]]
    lead = "dangling"
    if commit.commit_id != head.commit_id:
        lead = f"in the history of dangling commit {head.commit_id}"
    if rule is None:
        return f"{lead}, and there is no default rule, so that it is kept"
    if rule.keep_all:
        return f"{lead}, and the default is to keep everything"
    if part == RulePart.WITHIN:
        age = span_text(inputs.now - commit.created_at)
        return f"{lead}, created {age} before now, within the default rule's {_period(rule)}"
    if part == RulePart.OPENING:
        return f"{lead}, was the head when the default rule's {_period(rule)} window opened"
    if part == RulePart.LAST:
        return f"{lead}, one of the last {rule.keep_last} (default rule)"
    newest, count = _newest(rule, part, commit)
    return f"{lead}, {newest} (default rule, {count})"


def _period(rule: Rule) -> str:
    return "" if rule.keep_within is None else format_duration(rule.keep_within)


def _newest(rule: Rule, part: int, commit: Commit) -> tuple[str, str]:
    period = PERIODS[part - RulePart.PERIOD]
    name = period_name(period, commit.created_at.astimezone(UTC))
    return f"newest of {name}", f"keep_{period} {rule.period_count(period)}"


_REF_CODES: dict[RefKind, Code] = {
    "branch": Code.HEAD,
    "tag": Code.TAG,
    "collection": Code.COLLECTION,
}


def mark_all(inputs: SelectionInput) -> Marks:
    """Returns the marks of all kept commits, in the mode of the input's policy."""
    marks = Marks(inputs.forest)
    if inputs.policy.mode == "rewrite":
        _mark_reached(inputs, marks)
    else:
        _mark_rules(inputs, marks)
    _mark_refs(inputs, marks)
    _mark_holds(inputs, marks)
    _mark_leases_and_future(inputs, marks)
    return marks


def _mark_rules(inputs: SelectionInput, marks: Marks) -> None:
    windows = _windows(inputs)
    for code, each in windows:
        marks.mark_sources(each.within, code + RulePart.WITHIN)
    _mark_last(inputs, marks)
    for offset, period in enumerate(PERIODS):
        _mark_period(inputs, marks, period, RulePart.PERIOD + offset)
    _mark_tags_by_rule(inputs, marks)
    marks.by_rules = marks.active()
    for code, each in windows:
        marks.mark_sources(each.opening, code + RulePart.OPENING)


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


def _windows(inputs: SelectionInput) -> list[tuple[Code, Windows]]:
    """Returns what the periods keep: those of branches, and the default rule's on dangling
    commits."""
    now = inputs.now
    branches = [
        (head.position, window_start(_effective(head.rule), now)) for head in inputs.branches
    ]
    default_start = window_start(_effective(inputs.policy.default), now)
    dangling = [(child, default_start) for child in inputs.forest.dangling_children()]
    groups = ((Code.BRANCH_RULE, branches), (Code.DANGLING_RULE, dangling))
    return [(code, kept_by_window(inputs.forest, heads)) for code, heads in groups]


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
    tag_at = {position: tag for tag, position in reversed(inputs.tagged())}
    commits = [inputs.history.commits[position] for position in tag_at]
    intact = [commit for commit in commits if not commit.tombstoned]
    for commit_id, why in kept_tagged(intact, rule, inputs.now):
        position = inputs.history.index[commit_id]
        marks.sentences.append(f"{tag_at[position].text(inputs.now)}, {why}")
        marks.mark(position, Code.TAG_RULE, len(marks.sentences) - 1)
