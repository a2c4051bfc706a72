"""The retention settings of a repository: its policy, and the holds on commits.

A policy can also be written in the form of lakeFS: a number of days for each branch, and one for
all others. Not for: deciding which commits a policy keeps (`ebbtide.retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.model import Hold
from ebbtide.retention.lifecycle import state_at
from ebbtide.retention.policy import Policy, Rule
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import delete_hold, insert_hold, list_holds
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_ref_name, check_text
from ebbtide.store.refs.ref_rows import list_branches
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.repositories.repository_rows import read_policy, write_policy
from ebbtide.text import shown

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class DayRules:
    """The number of days for which commits keep their data: by default, and for each branch that
    has its own number."""

    default_days: int
    branches: Mapping[str, int]

    def to_policy(self) -> Policy:
        """Returns the policy. Raises InvalidInput `invalid_policy`, `invalid_duration`,
        `invalid_name`."""
        for name in self.branches:
            check_ref_name(name)
        if any(days < 1 for days in (self.default_days, *self.branches.values())):
            raise InvalidInput("invalid_policy", "data is kept for one day or more")
        written = {name: f"{days}d" for name, days in self.branches.items()}
        return Policy.parse({"default": f"{self.default_days}d", "branches": written})

    @classmethod
    def of(cls, policy: Policy) -> DayRules:
        """Returns a policy as days. Raises Conflict `policy_not_in_days` if it has other rules."""
        if policy.tags is not None or policy.holds or policy.mode != "age":
            raise _says_more("it has other keys than default and branches")
        if policy.default is None:
            raise _says_more("it has no default")
        branches = {name: _days(name, rule) for name, rule in policy.branches.items()}
        return cls(_days("default", policy.default), branches)


def _days(name: str, rule: Rule) -> int:
    if rule.keep_within is None or rule.keep_within % DAY or rule.counts():
        raise _says_more(f"the rule of {shown(name)} is {rule.describe()}")
    if any(character in name for character in "*?["):
        raise _says_more(f"{shown(name)} is a pattern for several branches")
    return rule.keep_within // DAY


def _says_more(why: str) -> Conflict:
    return Conflict(
        "policy_not_in_days",
        f"the repository's retention policy cannot be written as days for each branch: {why}; see "
        "and set it at settings/retention, or by 'ebbtide retention'",
    )


REASON_BYTES_MAX: Final = 1024


class Retention:
    """The policy and the holds of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

    def get(self) -> Policy | None:
        """Returns the policy, or None if none is set. Holds are not in it: `holds` returns them."""
        with self._metadata.snapshot() as tx:
            stored = read_policy(tx, self._repository_id)
        return None if stored is None else Policy.parse(stored)

    def set(self, policy: Policy | Mapping[str, Any]) -> tuple[str, ...]:  # JSON
        """Sets the policy. Returns its patterns that match no branch now, and may be misspelt.

        Raises InvalidInput `invalid_policy` or `invalid_duration`.
        """
        parsed = policy if isinstance(policy, Policy) else Policy.parse_given(policy)
        with self._context.changing() as tx:
            write_policy(tx, self._repository_id, parsed.to_mapping())
            names = self._branches(tx)
        return parsed.unmatched(names)

    def change(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Sets the policy that `change` makes of the present one, in one transaction: no other
        change can come in between. Without a policy, `change` gets one without rules.

        Returns the policy that is set, and its patterns that match no branch now. Raises what
        `change` raises, and then changes nothing.
        """
        with self._context.changing("exclusive") as tx:
            stored = read_policy(tx, self._repository_id)
            changed = change(Policy() if stored is None else Policy.parse(stored))
            write_policy(tx, self._repository_id, changed.to_mapping())
            names = self._branches(tx)
        return changed, changed.unmatched(names)

    def _branches(self, tx: Transaction) -> list[str]:
        """Returns the names of the branches that have rules. A trashed branch keeps its rule until
        it is gone."""
        now = tx.now()
        return [
            row.name
            for row in list_branches(tx, self._repository_id)
            if state_at(row.expires_at, trash_time=self._context.trash_time, now=now).is_root
        ]

    def get_days(self) -> DayRules:
        """Returns the policy as days. Raises NotFound `policy_not_found`, Conflict
        `policy_not_in_days`."""
        policy = self.get()
        if policy is None:
            raise NotFound(
                "policy_not_found", "the repository has no retention policy: nothing expires"
            )
        return DayRules.of(policy)

    def set_days(self, rules: DayRules) -> None:
        """Sets a policy in days. It can only replace another policy in days.

        A policy with other rules is not overwritten: a client that knows only days cannot have read
        it.

        Raises InvalidInput `invalid_policy`, `invalid_duration` or `invalid_name`; Conflict
        `policy_not_in_days`.
        """
        policy = rules.to_policy()
        with self._context.changing("exclusive") as tx:
            self._require_days(tx)
            write_policy(tx, self._repository_id, policy.to_mapping())

    def unset_days(self) -> None:
        """Removes a policy in days. Raises Conflict `policy_not_in_days` for any other policy."""
        with self._context.changing("exclusive") as tx:
            self._require_days(tx)
            write_policy(tx, self._repository_id, None)

    def _require_days(self, tx: Transaction) -> None:
        stored = read_policy(tx, self._repository_id)
        if stored is not None:
            DayRules.of(Policy.parse(stored))

    def unset(self) -> None:
        """Removes the policy. Without a policy nothing expires."""
        with self._context.changing() as tx:
            write_policy(tx, self._repository_id, None)

    def hold(self, ref: str, reason: str) -> Hold:
        """Holds the commit that `ref` names, until `release`. Replaces an earlier hold on it.

        Raises NotFound, Gone `commit_expired`, InvalidInput `invalid_argument`.
        """
        check_text("the reason", reason, bytes_max=REASON_BYTES_MAX)
        with self._context.changing() as tx:
            commit = resolve(tx, self._repository_id, ref).commit
            commit.require_intact()
            hold = Hold(commit.commit_id, reason, tx.now())
            insert_hold(tx, self._repository_id, hold)
        return hold

    def release(self, ref: str) -> str:
        """Releases the hold on the commit that `ref` names. Returns the commit's id. Raises
        NotFound `hold_not_found`."""
        with self._context.changing() as tx:
            commit = resolve(tx, self._repository_id, ref).commit
            if not delete_hold(tx, self._repository_id, commit.commit_id):
                raise NotFound("hold_not_found", f"there is no hold on commit {commit.commit_id}")
        return commit.commit_id

    def holds(self) -> list[Hold]:
        """Returns all holds, the oldest first."""
        with self._metadata.snapshot() as tx:
            return list_holds(tx, self._repository_id)
