"""One rule of a retention policy: what it keeps of one line of history, and its written form.

Not for: which branch a rule applies to (`policy`), or which commits it selects (`selection`).
Sources: lakeFS issue 1932 for the period; restic's `forget` for the counting parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from ebbtide.durations import format_duration, parse_duration
from ebbtide.errors import InvalidInput

Period = Literal["hourly", "daily", "weekly", "monthly", "yearly"]

PERIODS: Final[tuple[Period, ...]] = ("hourly", "daily", "weekly", "monthly", "yearly")
COUNTS: Final = ("keep_last", *(f"keep_{period}" for period in PERIODS))
PARTS: Final = ("keep_within", *COUNTS)

RuleMapping = str | dict[str, str | int]
"""A rule in JSON."""


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
        counts: dict[Period, int | None] = {
            "hourly": self.keep_hourly,
            "daily": self.keep_daily,
            "weekly": self.keep_weekly,
            "monthly": self.keep_monthly,
            "yearly": self.keep_yearly,
        }
        return counts[period]

    def counts(self) -> dict[str, int]:
        """Returns the counting parts that are present, in the order of `COUNTS`."""
        found = {"keep_last": self.keep_last}
        found |= {f"keep_{period}": self.period_count(period) for period in PERIODS}
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
    counts = {
        name: _parse_count(parts[name], key=f"{key}.{name}") for name in COUNTS if name in parts
    }
    period = None
    if "keep_within" in parts:
        period = _parse_period(parts["keep_within"], key=f"{key}.keep_within")
    return Rule(
        keep_within=period,
        keep_last=counts.get("keep_last"),
        keep_hourly=counts.get("keep_hourly"),
        keep_daily=counts.get("keep_daily"),
        keep_weekly=counts.get("keep_weekly"),
        keep_monthly=counts.get("keep_monthly"),
        keep_yearly=counts.get("keep_yearly"),
    )


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
