"""Policies in the form of lakeFS: a number of days for each branch, and one for all others.

Not for: which commits a policy keeps (`ebbtide.retention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.escaping import shown
from ebbtide.retention.policy import Policy
from ebbtide.retention.rules import Rule
from ebbtide.store.names import check_ref_name

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class DayRules:
    """The number of days for which commits keep their data: the default, and by branch."""

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
