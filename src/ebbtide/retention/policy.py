"""A retention policy as a value: its rules, how it is read and written, and the rule for a branch.

Not for: deciding which commits are kept (`selection`). Nothing here reads a commit or a clock.
Sources: lakeFS issue 1932 and its comments (a default, a period per branch, globs, units); restic's
`forget` for the counting parts of a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from ebbtide.durations import format_duration, parse_duration, require_clear
from ebbtide.errors import InvalidInput
from ebbtide.strict_json import read_document
from ebbtide.text import shown

Period = Literal["hourly", "daily", "weekly", "monthly", "yearly"]

PERIODS: Final[tuple[Period, ...]] = ("hourly", "daily", "weekly", "monthly", "yearly")
COUNTS: Final = ("keep_last", *(f"keep_{period}" for period in PERIODS))
PARTS: Final = ("keep_within", *COUNTS)

RuleMapping = str | dict[str, str | int]
"""A rule in JSON."""

Mode = Literal["age", "rewrite"]
KEYS: Final = ("default", "branches", "tags", "holds", "mode")
MODES: Final[tuple[Mode, ...]] = ("age", "rewrite")
PATTERN_CHARACTERS_MAX: Final = 255
"""The maximal length of a branch's name."""
EVERY_BRANCH: Final = "*"
"""This pattern of `branches` is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule for one line of history. It keeps every commit that one of its parts keeps.

    `keep_all` stands alone: with it, the rule keeps everything.
    """

    keep_within: timedelta | None = None
    keep_last: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    keep_monthly: int | None = None
    keep_yearly: int | None = None
    keep_all: bool = False

    def period_count(self, period: Period) -> int | None:
        """Returns how many hours, days, … keep their newest commit; None if this part is absent."""
        return self.counts().get(f"keep_{period}")

    def counts(self) -> dict[str, int]:
        """Returns the counting parts that are present, in the order of `COUNTS`."""
        found = {name: getattr(self, name) for name in COUNTS}
        return {name: count for name, count in found.items() if count is not None}

    def describe(self) -> str:
        """Returns the rule for people: `7d`, `keep_last 3, keep_monthly 12`, or `keep`."""
        if self.keep_all:
            return "keep"
        parts = [] if self.keep_within is None else [format_duration(self.keep_within)]
        parts += [f"{name} {count}" for name, count in self.counts().items()]
        return ", ".join(parts)

    def to_mapping(self) -> RuleMapping:
        """Returns the rule in JSON, which `parse_rule` reads back."""
        if self.keep_all:
            return "keep"
        counts = self.counts()
        if self.keep_within is None:
            return dict(counts)
        period = format_duration(self.keep_within)
        return {"keep_within": period, **counts} if counts else period


KEEP_ALL: Final = Rule(keep_all=True)


def invalid_policy(key: str, problem: str) -> InvalidInput:
    """Returns the error for a problem with the value at `key`. The caller raises it."""
    return InvalidInput("invalid_policy", f"policy: {key}: {problem}", key=key)


def parse_rule_text(text: str) -> str | dict[str, str | int]:
    """Returns the JSON of a rule such as `keep_last:3,keep_within:7d`. Text without parts stays as
    it is. Raises InvalidInput `invalid_policy` for a part that is given twice."""
    if ":" not in text:
        return text
    parts: dict[str, str | int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        if name in parts:
            raise InvalidInput("invalid_policy", f"the rule {shown(text)} has {name!r} twice")
        parts[name] = int(value) if value.isascii() and value.isdigit() else value
    return parts


def parse_rule(value: object, *, key: str) -> Rule:
    """Parses a rule in JSON: a duration, "keep", or a mapping of parts.

    `key` is the rule's place in the policy, for the message. Raises InvalidInput `invalid_policy`
    or `invalid_duration`.
    """
    if value == "keep":
        return KEEP_ALL
    if isinstance(value, str):
        return Rule(keep_within=_parse_period(value, key=key))
    if not isinstance(value, Mapping):
        raise invalid_policy(
            key,
            f'{value!r:.60} is not a rule: write a duration such as "7d", "keep", or a mapping '
            'such as {"keep_within": "7d", "keep_last": 3}',
        )
    return _parse_parts(value, key=key)


def _parse_parts(parts: Mapping[object, object], *, key: str) -> Rule:
    if not parts:
        raise invalid_policy(
            key, f'the rule is empty: give any of {", ".join(PARTS)}, or write "keep"'
        )
    for name in parts:
        if name not in PARTS:
            raise invalid_policy(
                f"{key}.{name}", f"unknown key {name!r}: a rule may have {', '.join(PARTS)}"
            )
    counts: dict[str, Any] = {  # arguments of Rule
        name: _parse_count(parts[name], key=f"{key}.{name}") for name in COUNTS if name in parts
    }
    period = None
    if "keep_within" in parts:
        period = _parse_period(parts["keep_within"], key=f"{key}.keep_within")
    return Rule(keep_within=period, **counts)


def _parse_period(value: object, *, key: str) -> timedelta:
    try:
        period = parse_duration(value)
    except InvalidInput as error:
        raise InvalidInput(error.kind, f"policy: {key}: {error.message}", key=key) from error
    if not period:
        raise InvalidInput(
            "invalid_duration",
            f"policy: {key}: a period of zero is not a rule: give a longer one, or to keep the "
            'newest commit alone write {"keep_last": 1}',
            key=key,
        )
    return period


def _parse_count(value: object, *, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid_policy(
            key, f"{value!r:.60} is not a count: write a whole number of 1 or more, or leave it out"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The retention policy of a repository. Make one with `Policy.parse`, which checks it.

    `branches` maps a name or glob to its rule. `tags` is None if tags keep their commits. `holds`
    maps a commit id to the reason for its hold, which may be empty. `mode` says how commits expire:
    by age, or by rewriting history.
    """

    default: Rule | None = None
    branches: Mapping[str, Rule] = field(default_factory=dict, hash=False)
    tags: Rule | None = None
    holds: Mapping[str, str] = field(default_factory=dict, hash=False)
    mode: Mode = "age"

    @classmethod
    def parse(cls, mapping: object) -> Policy:
        """Parses a policy in JSON, such as `{"default": "7d", "branches": {…}}`.

        Raises InvalidInput `invalid_policy` or `invalid_duration`, naming the key at fault.
        """
        written = _string_keys(mapping, key="policy")
        for name in written:
            if name not in KEYS:
                raise invalid_policy(
                    name, f"unknown key {name!r}: a policy may have {', '.join(KEYS)}"
                )
        branches = _parse_branches(written.get("branches", {}))
        default = branches.pop(EVERY_BRANCH, None)
        if "default" in written:
            if default is not None:
                raise invalid_policy(
                    "default", 'the branches pattern "*" is the default: give one of the two'
                )
            default = parse_rule(written["default"], key="default")
        tags = _parse_tags(written.get("tags", "keep"))
        if default is None and not branches and tags is None:
            raise invalid_policy(
                "default", 'no rule is given: write one such as {"default": "30d"}, or "keep"'
            )
        holds = parse_holds(written.get("holds", {}))
        mode = _parse_mode(written.get("mode", "age"))
        return cls(default=default, branches=branches, tags=tags, holds=holds, mode=mode)

    @classmethod
    def parse_given(cls, mapping: object) -> Policy:
        """Parses a policy that a user wrote, as `parse` does, and refuses periods that could mean
        months, such as `1m`. Stored policies are read by `parse`, and may have them.

        Raises InvalidInput `invalid_policy` or `invalid_duration`, naming the key at fault.
        """
        policy = cls.parse(mapping)
        _require_clear_periods(mapping, key="")
        return policy

    @classmethod
    def parse_text(cls, text: str, *, what: str) -> Policy:
        """Parses a policy that a user wrote: JSON, or one rule for all branches. `what` is the
        subject of the message about broken JSON. Raises as `parse_given`."""
        if text.lstrip().startswith(("{", "[")):
            return cls.parse_given(read_document(text, kind="invalid_policy", what=what))
        return cls.parse_given({"default": parse_rule_text(text.strip())})

    def describe(self) -> str:
        """Returns the policy for people, on one line: `30d; main: keep_last 3; tags: keep`."""
        parts = [f"{name.strip('()')}: {rule}" for name, rule in self.rules()]
        parts += [f"{len(self.holds)} held"] if self.holds else []
        parts += [f"mode {self.mode}"] if self.mode != "age" else []
        return "; ".join(parts).removeprefix("default: ")

    def rules(self) -> list[tuple[str, str]]:
        """Returns each rule for people: the branches that it is for, and the rule."""
        default = "keep" if self.default is None else self.default.describe()
        rows = [("default", default)]
        rows += [(pattern, self.branches[pattern].describe()) for pattern in sorted(self.branches)]
        return [*rows, ("(tags)", "keep" if self.tags is None else self.tags.describe())]

    def to_mapping(self) -> dict[str, object]:
        """Returns the policy in JSON. `parse` reads it back to an equal policy."""
        written: dict[str, object] = {"mode": self.mode}
        if self.default is not None:
            written["default"] = self.default.to_mapping()
        if self.branches:
            written["branches"] = {
                pattern: self.branches[pattern].to_mapping() for pattern in sorted(self.branches)
            }
        written["tags"] = "keep" if self.tags is None else self.tags.to_mapping()
        if self.holds:
            written["holds"] = dict(sorted(self.holds.items()))
        return written

    def with_holds(self, holds: Mapping[str, str]) -> Policy:
        """Returns this policy with more holds. A hold on a held commit replaces the earlier
        reason."""
        return replace(self, holds={**self.holds, **parse_holds(holds)})

    def rule_of(self, pattern: str) -> Rule:
        """Returns the rule for a pattern, or for all other branches; one without a period and
        without counts if there is none, or if it keeps everything."""
        own = self.default if pattern == EVERY_BRANCH else self.branches.get(pattern)
        return Rule() if own is None or own.keep_all else own

    def with_rule(self, pattern: str, rule: Rule) -> Policy:
        """Returns this policy with another rule for a pattern."""
        if pattern == EVERY_BRANCH:
            return replace(self, default=rule)
        return replace(self, branches={**self.branches, pattern: rule})

    def chosen_pattern(self, given: str | None, branch_names: Sequence[str]) -> str:
        """Returns the pattern that is given. Without one, returns that of the default rule, or if
        each branch has another rule, as tables of Delta may, the pattern that most branches have.

        Raises InvalidInput `invalid_argument` if no branch matches the pattern.
        """
        if given is None:
            found = Counter(map(self.lookup().pattern, branch_names))
            if EVERY_BRANCH in found or not found:
                return EVERY_BRANCH
            return min(found, key=lambda pattern: (-found[pattern], pattern))
        if given != EVERY_BRANCH and Policy(branches={given: Rule()}).unmatched(branch_names):
            raise InvalidInput(
                "invalid_argument",
                f"no branch matches {given!r}: name a branch, a pattern such as 'user-*', or '*' "
                "for the default rule",
            )
        return given

    def unmatched(self, branch_names: Iterable[str]) -> tuple[str, ...]:
        """Returns the patterns that match none of the branches, sorted.

        A pattern whose branches all fall under other patterns still matches, and is not returned.
        """
        names = set(branch_names)
        return tuple(
            pattern
            for pattern in sorted(self.branches)
            if pattern not in names and not any(fnmatchcase(name, pattern) for name in names)
        )

    def lookup(self) -> RuleLookup:
        """Returns the lookup of rules by branch name. Build it once for many branches."""
        globs = [pattern for pattern in self.branches if _is_glob(pattern)]
        globs.sort(key=lambda pattern: (-len(pattern), pattern))
        return RuleLookup(
            exact=self.branches,
            globs=tuple(globs),
            default=self.default,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLookup:
    """Finds the rule of a branch: by its exact name, else by the longest glob, else the default.

    Of two globs of the same length, the one that sorts first wins. The order in which a policy is
    written therefore never matters.
    """

    exact: Mapping[str, Rule]
    globs: tuple[str, ...]
    default: Rule | None

    def rule(self, branch_name: str) -> Rule | None:
        """Returns the rule of a branch, or None if no rule applies and everything on it is kept."""
        return self.exact.get(self.pattern(branch_name), self.default)

    def pattern(self, branch_name: str) -> str:
        """Returns the pattern whose rule is the branch's."""
        if branch_name in self.exact:
            return branch_name
        matching = (each for each in self.globs if fnmatchcase(branch_name, each))
        return next(matching, EVERY_BRANCH)


def parse_holds(value: object) -> dict[str, str]:
    """Parses holds: a list of commit ids, or a mapping of commit id to reason.

    Raises InvalidInput `invalid_policy`.
    """
    if isinstance(value, list | tuple):
        pairs = [(commit_id, "") for commit_id in value]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise invalid_policy(
            "holds", "write a list of commit ids, or a mapping of commit id to reason"
        )
    for commit_id, reason in pairs:
        if not isinstance(commit_id, str) or not commit_id:
            raise invalid_policy("holds", f"{commit_id!r:.60} is not a commit id: write a string")
        if not isinstance(reason, str):
            raise invalid_policy(
                f"holds.{commit_id}", f"{reason!r:.60} is not a reason: write a string"
            )
    return dict(pairs)


def _parse_branches(value: object) -> dict[str, Rule]:
    written = _string_keys(value, key="branches")
    if "" in written:
        raise invalid_policy("branches", "an empty name matches no branch: write a name or a glob")
    for name in written:
        if len(name) > PATTERN_CHARACTERS_MAX:
            raise invalid_policy(
                "branches",
                f"{name:.40}… has {len(name):,} characters: no branch has more than "
                f"{PATTERN_CHARACTERS_MAX}",
            )
    return {name: parse_rule(rule, key=f"branches.{name}") for name, rule in written.items()}


def _parse_tags(value: object) -> Rule | None:
    rule = parse_rule(value, key="tags")
    return None if rule.keep_all else rule


def _parse_mode(value: object) -> Mode:
    for mode in MODES:
        if value == mode:
            return mode
    raise invalid_policy("mode", f"{value!r:.60} is not a mode: write {' or '.join(MODES)}")


def _require_clear_periods(value: object, *, key: str) -> None:
    """Raises InvalidInput `invalid_duration` if a rule has a period that could mean months."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name != "holds":
                _require_clear_periods(each, key=f"{key}.{name}" if key else str(name))
        return
    try:
        require_clear(value)
    except InvalidInput as error:
        raise InvalidInput(error.kind, f"policy: {key}: {error.message}", key=key) from error


def _string_keys(value: object, *, key: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise invalid_policy(key, f"{value!r:.60} is not a mapping: write {{name: rule}}")
    for name in value:
        if not isinstance(name, str):
            raise invalid_policy(key, f"the key {name!r:.60} is not text: write names as strings")
    return dict(value)


def _is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")
