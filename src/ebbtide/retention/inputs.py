"""The input of a selection in one form: history, refs, and branches with their rules.

Not for: deciding anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ebbtide.model import Commit, Ref
from ebbtide.retention.dates import to_utc
from ebbtide.retention.forest import Forest, History
from ebbtide.retention.policy import Policy
from ebbtide.retention.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchHead:
    """A branch, the position of its own commit, and its rule. The rule is None if none applies."""

    name: str
    position: int
    rule: Rule | None


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
            BranchHead(name=ref.name, position=position, rule=lookup.rule(ref.name))
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

    def tagged(self) -> list[tuple[str, int]]:
        """Returns each tag's name, and the position of its own commit."""
        return [
            (ref.name, position)
            for ref, position in zip(self.refs, self.positions, strict=True)
            if ref.kind == "tag"
        ]
