"""Retention policies in two forms, days for each branch as in lakeFS and the full policy; and the
rules for protected branches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.refs.policies import DayRules

DAYS_MAX = 36_500


class BranchDays(Wire):
    """The number of days for which the commits of one branch keep their data."""

    branch_id: Text
    retention_days: int


class DaysAnswer(Wire):
    """A policy in days: a default, and the days of single branches."""

    default_retention_days: int
    branches: list[BranchDays]

    @classmethod
    def of(cls, rules: DayRules) -> DaysAnswer:
        """Makes the answer for the rules, with the branches sorted by name."""
        branches = [
            BranchDays(branch_id=name, retention_days=days)
            for name, days in sorted(rules.branches.items())
        ]
        return cls(default_retention_days=rules.default_days, branches=branches)

    def rules(self) -> DayRules:
        """Returns the rules. Raises InvalidInput `invalid_policy` if a branch has two rules."""
        branches: dict[str, int] = {}
        for rule in self.branches:
            if rule.branch_id in branches:
                raise InvalidInput(
                    "invalid_policy", f"branch {rule.branch_id!r} has two rules: keep one of them"
                )
            branches[rule.branch_id] = rule.retention_days
        return DayRules(self.default_retention_days, branches)


class PolicyDocument(Wire):
    """A policy in the JSON form of `ebbtide retention`."""

    policy: dict[Text, Any]


class PolicyAnswer(Wire):
    """The policy. After a change, `unmatched` lists the patterns of the policy that match no
    branch."""

    policy: dict[str, Any]
    unmatched: list[str] | None = None


class ProtectionRule(Wire):
    """A rule: a glob for the names of protected branches."""

    pattern: Text


routes = Routes("policies")

_SETTINGS = "/repositories/{repository:segment}/settings"


@routes.add("GET", _SETTINGS + "/gc_rules", Role.READER)
def get_gc_rules(repository: Segment, served: ServedDep) -> DaysAnswer:
    """Returns the policy as days; fails if days cannot express it (`policy_not_in_days`)."""
    return DaysAnswer.of(served.repository(repository).retention.get_days())


@routes.add("PUT", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def set_gc_rules(repository: Segment, asked: DaysAnswer, served: ServedDep) -> Response:
    """Sets a policy of days. A policy that days cannot express is not replaced
    (`policy_not_in_days`)."""
    served.repository(repository).retention.set_days(asked.rules())
    return Response(status_code=204)


@routes.add("DELETE", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def delete_gc_rules(repository: Segment, served: ServedDep) -> Response:
    """Removes a policy of days. Without a policy no commit expires."""
    served.repository(repository).retention.unset_days()
    return Response(status_code=204)


@routes.add("GET", _SETTINGS + "/retention", Role.READER)
def get_retention(repository: Segment, served: ServedDep) -> PolicyAnswer:
    """Returns the policy in full."""
    policy = served.repository(repository).retention.get()
    if policy is None:
        raise NotFound("policy_not_found", "the repository has no retention policy")
    return PolicyAnswer(policy=policy.to_mapping())


@routes.add("PUT", _SETTINGS + "/retention", Role.ADMIN)
def set_retention(repository: Segment, asked: PolicyDocument, served: ServedDep) -> PolicyAnswer:
    """Sets the policy."""
    retention = served.repository(repository).retention
    unmatched = retention.set(asked.policy)
    policy = retention.get()
    return PolicyAnswer(
        policy={} if policy is None else policy.to_mapping(), unmatched=list(unmatched)
    )


@routes.add("DELETE", _SETTINGS + "/retention", Role.ADMIN, status=204)
def delete_retention(repository: Segment, served: ServedDep) -> Response:
    """Removes the policy. Without a policy no commit expires."""
    served.repository(repository).retention.unset()
    return Response(status_code=204)


@routes.add("GET", _SETTINGS + "/branch_protection", Role.READER)
def get_branch_protection(
    repository: Segment, served: ServedDep, response: Response
) -> list[ProtectionRule]:
    """Returns the rules. Their version is in the header `ETag`, which is empty without rules."""
    rules = served.repository(repository).protection.get()
    response.headers["ETag"] = rules.etag
    return [ProtectionRule(pattern=pattern) for pattern in rules.patterns]


@routes.add("PUT", _SETTINGS + "/branch_protection", Role.ADMIN, status=204)
def set_branch_protection(
    repository: Segment,
    asked: list[ProtectionRule],
    served: ServedDep,
    if_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Replaces the rules. With `If-Match`, the present rules must have this `ETag`."""
    served.repository(repository).protection.set(
        [rule.pattern for rule in asked],
        only_if=None if if_match is None else if_match.strip().strip('"'),
    )
    return Response(status_code=204)
