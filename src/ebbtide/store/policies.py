"""The retention settings of a repository: its policy, and the holds on commits.

Not for: deciding which commits a policy keeps (`ebbtide.retention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ebbtide.errors import NotFound
from ebbtide.retention.lifecycle import state_at
from ebbtide.retention.policy import Policy
from ebbtide.store.context import RepositoryContext
from ebbtide.store.days import DayRules
from ebbtide.store.metadata.branches import list_branches
from ebbtide.store.metadata.commits import Hold, delete_hold, insert_hold, list_holds
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.repositories import read_policy, write_policy
from ebbtide.store.names import check_text
from ebbtide.store.revisions import resolve

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
        parsed = policy if isinstance(policy, Policy) else Policy.parse(policy)
        with self._context.changing() as tx:
            write_policy(tx, self._repository_id, parsed.to_mapping())
            now = tx.now()
            # A trashed branch keeps its rule until it is gone.
            names = [
                row.name
                for row in list_branches(tx, self._repository_id)
                if state_at(row.expires_at, trash_time=self._context.trash_time, now=now).is_root
            ]
        return parsed.unmatched(names)

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
        """Sets a policy of days, if there is no policy, or another one of days.

        A policy with other rules is not overwritten: a client that knows only days cannot have seen
        it.

        Raises InvalidInput `invalid_policy`, `invalid_duration` or `invalid_name`; Conflict
        `policy_not_in_days`.
        """
        policy = rules.to_policy()
        with self._context.changing("exclusive") as tx:
            self._require_days(tx)
            write_policy(tx, self._repository_id, policy.to_mapping())

    def unset_days(self) -> None:
        """Removes a policy of days. Raises Conflict `policy_not_in_days`."""
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
        """Holds the commit that `ref` names until it is released. Replaces an earlier hold on it.

        Raises NotFound, Gone `commit_expired`, InvalidInput `invalid_argument`.
        """
        check_text("the reason", reason, bytes_max=REASON_BYTES_MAX)
        with self._context.changing() as tx:
            commit = resolve(tx, self._repository_id, ref).commit
            commit.require_intact()
            hold = Hold(commit.commit_id, reason, tx.now())
            insert_hold(tx, self._repository_id, hold)
        return hold

    def release(self, ref: str) -> None:
        """Releases the hold on the commit that `ref` names. Raises NotFound `hold_not_found`."""
        with self._context.changing() as tx:
            commit = resolve(tx, self._repository_id, ref).commit
            if not delete_hold(tx, self._repository_id, commit.commit_id):
                raise NotFound("hold_not_found", f"there is no hold on commit {commit.commit_id}")

    def holds(self) -> list[Hold]:
        """Returns all holds, the oldest first."""
        with self._metadata.snapshot() as tx:
            return list_holds(tx, self._repository_id)
