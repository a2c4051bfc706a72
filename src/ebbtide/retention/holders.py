"""All that keeps each commit: every ref, hold and rule, where `reasons` gives only the strongest.

The rules are those of `reasons`: a commit is active exactly if it has a holder. Sets of holders are
whole numbers, used as bits: bit n is holder n. Histories of many refs have few different sets, and
equal sets are one object.

Not for: files (`gc.usage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self

from ebbtide.model import Commit, Ref
from ebbtide.retention.dates import to_utc
from ebbtide.retention.forest import NO_PARENT, Forest
from ebbtide.retention.policy import KEEP_ALL, PERIODS, Policy, Rule
from ebbtide.retention.reasons import SelectionInput
from ebbtide.retention.rule_parts import (
    NO_RUNG,
    PERIOD_NUMBER,
    kept_tagged,
    period_ladders,
    window_start,
)

HolderKind = Literal[
    "branch", "tag", "collection", "hold", "lease", "future", "dangling", "protection"
]
LEASES: Final = "leases"
FUTURE: Final = "commits dated in the future"
DANGLING: Final = "dangling commits"


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps commits or files. The name is that of a ref, the commit of a hold, the reason of a
    protection, or says which commits are meant. `in_trash`: a ref that is deleted, and can be
    restored."""

    kind: HolderKind
    name: str
    in_trash: bool = False

    @classmethod
    def of(cls, ref: Ref, now: datetime) -> Self:
        """Returns the holder that a ref is."""
        return cls(ref.kind, ref.name, ref.is_in_trash(now))


@dataclass(frozen=True, slots=True)
class HeldCommits:
    """The holders, and for each commit the sets of holders of its data and of its own files.

    `data` has the active commits alone. `records` also has the commits that a ref or an active
    commit reaches.
    """

    holders: tuple[Holder, ...]
    data: dict[str, int]
    records: dict[str, int]


def holders_of(
    commits: Iterable[Commit], refs: Iterable[Ref], policy: Policy, now: datetime
) -> HeldCommits:
    """Returns the holders of each commit under `policy`, as of `now`. The arguments are those of
    `select_commits`, and so are the errors."""
    known = tuple(refs)
    inputs = SelectionInput.of(commits, known, policy, now)
    finder = _Finder(inputs)
    finder.find()
    history = inputs.history
    data = finder.data
    records = list(data)
    for ref in known:
        position = history.index.get(ref.commit_id)
        if position is not None:
            records[position] |= finder.bit(Holder.of(ref, now))
    _pass_to_parents(inputs, records)
    ids = [commit.commit_id for commit in history.commits]
    return HeldCommits(
        tuple(finder.numbers),
        {commit_id: bits for commit_id, bits in zip(ids, data, strict=True) if bits},
        {commit_id: bits for commit_id, bits in zip(ids, records, strict=True) if bits},
    )


def _pass_to_parents(inputs: SelectionInput, bits: list[int]) -> None:
    """Adds to each commit the holders of all its descendants, along all parents."""
    history = inputs.history
    is_done = False
    while not is_done:
        is_done = True
        for position in range(len(bits) - 1, -1, -1):
            own = bits[position]
            if not own:
                continue
            for parent_id in history.commits[position].parent_ids:
                above = history.index.get(parent_id)
                if above is None or bits[above] | own == bits[above]:
                    continue
                bits[above] = bits[above] | own if bits[above] else own
                # Only first parents are sure to come before their children.
                is_done = is_done and above < position


class _Finder:
    """Collects the holders of the data of each commit."""

    def __init__(self, inputs: SelectionInput) -> None:
        self._inputs = inputs
        self._forest: Forest = inputs.forest
        self.numbers: dict[Holder, int] = {}
        self.data = [0] * len(inputs.history.commits)

    def bit(self, holder: Holder) -> int:
        """Returns the set of this holder alone."""
        return 1 << self.numbers.setdefault(holder, len(self.numbers))

    def _hold(self, position: int, bits: int) -> None:
        """Adds holders to a commit, unless it is closed. Hypothetical commits have none."""
        if position >= len(self.data) or self._forest.tombstoned[position]:
            return
        before = self.data[position]
        if before | bits != before:
            self.data[position] = before | bits if before else bits

    def find(self) -> None:
        """Finds all holders, in the mode of the policy."""
        inputs, policy = self._inputs, self._inputs.policy
        for ref, position in zip(inputs.refs, inputs.positions, strict=True):
            if ref.kind != "tag" or policy.tags is None:
                self._hold(position, self.bit(Holder.of(ref, inputs.now)))
        for commit_id in sorted(policy.holds):
            found = inputs.history.index.get(commit_id)
            if found is not None:
                self._hold(found, self.bit(Holder("hold", commit_id)))
        self._find_leased_and_future()
        if policy.mode == "rewrite":
            self._find_reached()
            return
        self._find_windows()
        self._find_counted()
        if policy.tags is not None:
            self._find_tagged(policy.tags)

    def _find_leased_and_future(self) -> None:
        now = self._inputs.now
        for position, commit in enumerate(self._inputs.history.commits):
            lease = commit.leased_until
            if lease is not None and to_utc(lease, what=f"lease of {commit.commit_id}") > now:
                self._hold(position, self.bit(Holder("lease", LEASES)))
            if self._forest.created_at[position] > now:
                self._hold(position, self.bit(Holder("future", FUTURE)))

    def _find_reached(self) -> None:
        reached = [0] * len(self.data)
        for ref, position in zip(self._inputs.refs, self._inputs.positions, strict=True):
            reached[position] |= self.bit(Holder.of(ref, self._inputs.now))
        _pass_to_parents(self._inputs, reached)
        for position, bits in enumerate(reached):
            self._hold(position, bits)

    def _heads(self) -> Iterator[tuple[int, Rule, int]]:
        """Yields position, rule and holder of each branch, and of each dangling head's hypothetical
        child. All dangling heads are one holder."""
        for head in self._inputs.branches:
            rule = KEEP_ALL if head.rule is None else head.rule
            yield head.position, rule, self.bit(Holder.of(head.ref, self._inputs.now))
        default = self._inputs.policy.default
        rule = KEEP_ALL if default is None else default
        for child in self._forest.dangling_children():
            yield child, rule, self.bit(Holder("dangling", DANGLING))

    def _find_windows(self) -> None:
        """Passes the heads of each different window from children to parents."""
        heads: dict[datetime, list[tuple[int, int]]] = {}
        for position, rule, bit in self._heads():
            start = window_start(rule, self._inputs.now)
            if start is not None:
                heads.setdefault(start, []).append((position, bit))
        created_at, parent = self._forest.created_at, self._forest.parent
        for start, own in heads.items():
            passing = [0] * len(parent)
            for position, bit in own:
                passing[position] |= bit
            for position in self._forest.children_first():
                bits, above = passing[position], parent[position]
                if not bits:
                    continue
                if above != NO_PARENT:
                    passing[above] = passing[above] | bits if passing[above] else bits
                if created_at[position] >= start:
                    self._hold(position, bits)
                    if above != NO_PARENT:  # it was the head when the window opened
                        self._hold(above, bits)

    def _find_counted(self) -> None:
        heads = list(self._heads())
        for position, rule, bit in heads:
            self._hold_last(position, rule.keep_last or 0, bit)
        for period in PERIODS:
            counts = [(position, rule.period_count(period) or 0) for position, rule, _ in heads]
            if not any(count for _, count in counts):
                continue
            ladders = period_ladders(self._forest, counts, PERIOD_NUMBER[period])
            for (position, count), (_, _, bit) in zip(counts, heads, strict=True):
                rung = ladders.top[position] if count else NO_RUNG
                while rung != NO_RUNG and count > 0:
                    held = ladders.commits[rung]
                    self._hold_all(held[:count], bit)
                    count -= len(held)
                    rung = ladders.below[rung]

    def _hold_all(self, positions: Sequence[int], bit: int) -> None:
        for position in positions:
            self._hold(position, bit)

    def _hold_last(self, position: int, count: int, bit: int) -> None:
        """Holds the first commits of a main ancestry that are not closed."""
        while position != NO_PARENT and count:
            if not self._forest.tombstoned[position]:
                self._hold(position, bit)
                count -= 1
            position = self._forest.parent[position]

    def _find_tagged(self, rule: Rule) -> None:
        """Holds the tagged commits that the rule for tags keeps, by each tag on them."""
        inputs, tags = self._inputs, dict[int, list[Ref]]()
        for tag, position in inputs.tagged():
            tags.setdefault(position, []).append(tag)
        commits = [inputs.history.commits[position] for position in tags]
        intact = [commit for commit in commits if not commit.tombstoned]
        for commit_id, _ in kept_tagged(intact, rule, inputs.now):
            position = inputs.history.index[commit_id]
            for tag in tags[position]:
                self._hold(position, self.bit(Holder.of(tag, inputs.now)))
