"""Why each active commit is kept: one reason for each, in words.

Reasons are stored as two small numbers for each commit, and written as text on request: a history
of a million commits would otherwise need a million sentences. If several reasons apply, the one
with the smallest code is given. `Code` is ordered from strong to weak.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from itertools import compress
from operator import attrgetter
from typing import Final

from ebbtide.durations import format_duration
from ebbtide.model import Commit
from ebbtide.retention.dates import instant_text, span_text
from ebbtide.retention.forest import Forest
from ebbtide.retention.inputs import BranchHead, SelectionInput
from ebbtide.retention.periods import period_name
from ebbtide.retention.rules import PERIODS, Rule


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
    `sentences`.
    """

    __slots__ = ("code", "sentences", "source")

    def __init__(self, forest: Forest) -> None:
        lost, expired = int(Code.TOMBSTONED), int(Code.EXPIRED)
        self.code = bytearray([lost if gone else expired for gone in forest.tombstoned])
        self.source = array("i", bytes(4 * len(self.code)))
        self.sentences: list[str] = []

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
    return f"{lead}{ref.kind} {ref.name}"


def _branch_text(head: BranchHead, part: int, commit: Commit, now: datetime) -> str:
    where, rule = f"branch {head.name}", head.rule
    if rule is None:
        return f"on {where}, to which no rule applies, so that everything on it is kept"
    if rule.keep_all:
        return f"on {where}, whose rule keeps everything"
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
        return f"{lead}, and the default rule keeps everything"
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
