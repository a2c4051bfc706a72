"""A policy as the fields of a form: its mode, a row for each rule, and its holds.

The form and the JSON are two ways to write one policy. Not for: HTML, or the checks of a policy
(`retention.policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.retention.policy import (
    COUNTS,
    PARTS,
    Policy,
    Rule,
    RuleMapping,
    invalid_policy,
    parse_rule_text,
)
from ebbtide.text import escaped

BRANCH_RULES_MAX: Final = 50
"""A policy with more rules for branches is edited as JSON only."""
BLANK_RULES: Final = 1
KEEP: Final = "keep"


@dataclass(frozen=True, slots=True)
class RuleFields:
    """The fields of one rule, as texts. `parts` has the text of each part that is not empty;
    `keep_all` is the field that keeps everything."""

    parts: Mapping[str, str] = field(default_factory=dict)
    keep_all: bool = False

    @property
    def is_blank(self) -> bool:
        """Whether nothing is written in the fields."""
        return not self.parts and not self.keep_all

    @classmethod
    def of(cls, rule: Rule | None) -> RuleFields:
        """Returns the fields of a rule; blank fields for None."""
        mapping = {} if rule is None else rule.to_mapping()
        if mapping == KEEP:
            return cls(keep_all=True)
        parts = {"keep_within": mapping} if isinstance(mapping, str) else mapping
        return cls({name: str(part) for name, part in parts.items()})

    @classmethod
    def read(cls, get: Callable[[str], str], prefix: str) -> RuleFields:
        """Returns the fields whose names begin with `prefix`. `get` returns a field's text."""
        parts = {name: get(f"{prefix}-{name}").strip() for name in PARTS}
        return cls(
            {name: part for name, part in parts.items() if part}, get(f"{prefix}-{KEEP}") == "yes"
        )

    def written(self, key: str) -> RuleMapping:
        """Returns the rule in JSON, which `Policy.parse` checks. The field of the period also takes
        a rule as the command line does, such as `keep_last:3` or `keep`.

        Raises InvalidInput `invalid_policy` for a rule that keeps everything and has other parts,
        and for a part that is given twice.
        """
        text = self.parts.get("keep_within", "")
        counts: dict[str, str | int] = {
            name: _number(part) for name, part in self.parts.items() if name in COUNTS
        }
        if self.keep_all or text == KEEP:
            if counts or text not in ("", KEEP):
                problem = "the rule keeps everything: clear its other fields, or do not keep all"
                raise invalid_policy(key, problem)
            return KEEP
        rule = parse_rule_text(text)
        if isinstance(rule, str):
            return counts | {"keep_within": rule} if rule else counts
        for name in rule.keys() & counts:
            raise invalid_policy(f"{key}.{name}", "it is given twice: clear one of the fields")
        return rule | counts


KEPT: Final = RuleFields(keep_all=True)
"""The fields of a rule that keeps everything."""


@dataclass(frozen=True, slots=True)
class PolicyFields:
    """The fields of a policy. `branches` are rows of a pattern and its rule, in order. `holds` has
    a line for each hold: the commit id, and the reason."""

    mode: str = "age"
    default: RuleFields = field(default_factory=RuleFields)
    tags: RuleFields = KEPT
    branches: tuple[tuple[str, RuleFields], ...] = ()
    holds: str = ""

    @classmethod
    def read(cls, get: Callable[[str], str]) -> PolicyFields:
        """Returns the fields of a form. Rows without a pattern and without a rule are left out.
        Raises InvalidInput `invalid_argument` for too many rows."""
        text = get("branch-rows") or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 4):
            raise InvalidInput(
                "invalid_argument",
                "the form is damaged: reload the page, and write the rules again",
            )
        rows = [
            (get(f"branch-{number}-pattern").strip(), RuleFields.read(get, f"branch-{number}"))
            for number in range(int(text))
        ]
        return cls(
            mode=get("mode"),
            default=RuleFields.read(get, "default"),
            tags=RuleFields.read(get, "tags"),
            branches=tuple(row for row in rows if row[0] or not row[1].is_blank),
            holds=get("holds").replace("\r\n", "\n"),
        )

    @classmethod
    def of(cls, policy: Policy | None) -> PolicyFields | None:
        """Returns the fields of a policy. Returns None if the form cannot show it: if it has more
        than BRANCH_RULES_MAX rules for branches, or texts that a field would change, such as
        several lines."""
        if policy is None:
            return cls()
        found = cls(
            mode=policy.mode,
            default=RuleFields.of(policy.default),
            tags=KEPT if policy.tags is None else RuleFields.of(policy.tags),
            branches=tuple((name, RuleFields.of(rule)) for name, rule in policy.branches.items()),
            holds="\n".join(f"{name} {why}".rstrip() for name, why in policy.holds.items()),
        )
        texts = [*policy.branches, *policy.holds, *policy.holds.values()]
        if len(found.branches) > BRANCH_RULES_MAX:
            return None
        if any(text != escaped(text).strip() for text in texts):
            return None
        try:
            return found if found.policy() == policy else None
        except InvalidInput:
            return None

    def policy(self) -> Policy:
        """Returns the policy. Raises InvalidInput `invalid_policy`, `invalid_duration`."""
        written: dict[str, Any] = {"mode": self.mode, "holds": self._holds()}
        branches: dict[str, RuleMapping] = {}
        for pattern, rule in self.branches:
            if pattern in branches:
                raise invalid_policy(
                    f"branches.{pattern}", "two rows have this pattern: clear one of them"
                )
            branches[pattern] = rule.written(f"branches.{pattern}")
        written["branches"] = branches
        if not self.default.is_blank:
            written["default"] = self.default.written("default")
        if not self.tags.is_blank:
            written["tags"] = self.tags.written("tags")
        return Policy.parse_given(written)

    def _holds(self) -> dict[str, str]:
        lines = [line.strip() for line in self.holds.split("\n")]
        pairs = (line.partition(" ") for line in lines if line)
        return {commit_id: reason.strip() for commit_id, _, reason in pairs}

    @property
    def rows(self) -> tuple[tuple[str, RuleFields], ...]:
        """The rows for branches, and BLANK_RULES rows to write in."""
        return (*self.branches, *[("", RuleFields())] * BLANK_RULES)


def _number(text: str) -> Any:  # a part of a rule, right or wrong
    """Returns the number of a count; any other text as it is, which `Policy.parse` refuses."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text
