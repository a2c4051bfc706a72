"""Which commits stay: the definition, walked chain by chain, without sharing and cleverness.

Sources: lakeFS issue 1932 for periods, restic's `forget` for `keep_last`, and
docs/design/007-collections.md for what collections keep. Shares no code with the collector.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from tests.simulation.knowledge import micros
from tests.simulation.scheduler import Violation
from tests.simulation.world import LEASE, World

HOUR_MICROS: Final = 3_600_000_000
UNITS: Final = {"h": HOUR_MICROS, "d": 24 * HOUR_MICROS}


@dataclass(frozen=True, slots=True)
class Row:
    """A commit, or content of a collection."""

    parent_ids: tuple[str, ...]
    created_at: int
    closed_by: str | None
    forgotten_by: str | None
    leased_until: int
    is_content: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """What a collection has, and when it ends with all that it lies in."""

    content_ids: frozenset[str]
    ends_at: int | None
    copies: int


@dataclass(frozen=True, slots=True)
class State:
    """A repository's refs and commits. Dates are in microseconds."""

    commits: Mapping[str, Row]
    branches: tuple[tuple[str, str, int | None], ...]
    tags: tuple[tuple[str, str, int | None], ...]
    holds: frozenset[str]
    left: tuple[tuple[str, int], ...]
    kept: tuple[Kept, ...]
    policy: Mapping[str, Any]
    trash: int

    def active(self, now: datetime) -> set[str]:
        """The commits whose data stays."""
        instant, lease, trash = micros(now), LEASE // timedelta(microseconds=1), self.trash
        heads = [(name, head) for name, head, end in self.branches if _lasts(end, trash, instant)]
        found = {head for _, head in heads} | self.holds
        found |= {head for _, head, end in self.tags if _lasts(end, trash, instant)}
        # A collection may have left a content that a run forgot: no stub of it stays.
        left = {commit_id for commit_id, at in self.left if instant < at + lease}
        found |= left & self.commits.keys()
        found |= {each for each, row in self.commits.items() if instant < row.leased_until}
        for each in self.kept:
            is_signed = each.ends_at is not None and instant < each.ends_at + lease
            if each.copies and (_lasts(each.ends_at, trash, instant) or is_signed):
                found |= each.content_ids
        for name, head in heads:
            found |= set(self._kept_on(head, self._rule(name), instant))
        for head in self._loose({head for _, head in heads}):
            # As if another commit had followed it at once.
            found |= set(self._kept_on(head, self._rule(""), instant, followers=1))
        return {each for each in found if self.commits[each].closed_by is None}

    def expired(self, now: datetime) -> set[str]:
        """All others whose data has not been let go."""
        there = {each for each, row in self.commits.items() if row.closed_by is None}
        return there - self.active(now)

    def _rule(self, name: str) -> Mapping[str, Any]:
        rules: Mapping[str, Any] = self.policy.get("branches", {})
        fitting = [pattern for pattern in rules if name and fnmatchcase(name, pattern)]
        written = rules[fitting[0]] if fitting else self.policy["default"]
        return {"keep_within": written} if isinstance(written, str) else written

    def _kept_on(
        self, head: str, rule: Mapping[str, Any], now: int, *, followers: int = 0
    ) -> Iterator[str]:
        line = [*self._line(head)]
        yield from line[: max(0, rule.get("keep_last", 0) - followers)]
        if "keep_within" in rule:
            period = int(rule["keep_within"][:-1]) * UNITS[rule["keep_within"][-1]]
            for each, older in zip(line, [*line[1:], None], strict=True):
                if self.commits[each].created_at > now - period:
                    yield each
                    if older is not None:
                        yield older

    def _line(self, head: str) -> Iterator[str]:
        rest = [head]
        while rest and self._is_known(rest[0]):
            yield rest[0]
            rest = [*self.commits[rest[0]].parent_ids[:1]]

    def _is_known(self, commit_id: str) -> bool:
        row = self.commits.get(commit_id)
        return row is not None and row.forgotten_by is None

    def _loose(self, heads: set[str]) -> set[str]:
        """The ends of lines that no branch points at."""
        known = {
            each
            for each, row in self.commits.items()
            if self._is_known(each) and not row.is_content
        }
        return known - {p for each in known for p in self.commits[each].parent_ids[:1]} - heads


def _lasts(end: int | None, trash: int, now: int) -> bool:
    return end is None or now < end + trash


def read_state(world: World, repository_id: str) -> State | None:
    """A repository, as its database has it; None where no policy is set."""

    def rows(statement: str) -> list[tuple[Any, ...]]:
        given = f"{statement} WHERE repository_id = ?"
        return world.database.plain.execute(given, (repository_id,)).fetchall()

    policy = rows("SELECT policy FROM repositories")[0][0]
    if policy is None:
        return None
    commits = {
        commit_id: Row(tuple(parents.split()), made, closed, forgotten, leased or 0, bool(owner))
        for commit_id, parents, made, closed, forgotten, leased, owner in rows(
            "SELECT commit_id, parent_ids, created_at, tombstoned_by, forgotten_by, leased_until,"
            " collection_id FROM commits"
        )
    }
    return State(
        commits=commits,
        branches=tuple(rows("SELECT name, commit_id, expires_at FROM branches")),
        tags=tuple(rows("SELECT name, commit_id, expires_at FROM tags")),
        holds=frozenset(row[0] for row in rows("SELECT commit_id FROM holds")),
        left=tuple(rows("SELECT commit_id, left_at FROM reflog")),
        kept=tuple(_kept(rows)),
        policy=_parsed(policy),
        trash=world.trash // timedelta(microseconds=1),
    )


def check_forgotten(before: State, after: State, run_id: str) -> None:
    """The records that a run forgot name it, and no others changed. Raises Violation."""
    for each, row in after.commits.items():
        was = before.commits[each].forgotten_by if each in before.commits else None
        if row.forgotten_by not in (was, run_id if was is None else was):
            raise Violation("definition", f"{each} was forgotten by {row.forgotten_by}")


def check_expired(before: State, span: tuple[datetime, datetime], count: int) -> None:
    """A plan says how many commits had expired when it was made. Raises Violation."""
    least, most = (len(before.expired(each)) for each in span)
    if not least <= count <= most:
        raise Violation("definition", f"{least} to {most} commits had expired, it says {count}")


def check_closed(
    before: State,
    after: State,
    span: tuple[datetime, datetime],
    run_id: str,
    doomed: frozenset[str],
) -> None:
    """A run closed what expired until its end, and of what its plan held expired all that still
    is. Raises Violation."""
    began, ended = span
    there = {each for each, row in before.commits.items() if row.closed_by is None}
    closed = {
        each
        for each in there
        if each not in after.commits or after.commits[each].closed_by == run_id
    }
    kept, left = closed - before.expired(ended), (doomed & before.expired(began)) - closed
    if kept or left:
        raise Violation(
            "definition", f"run {run_id} closed {sorted(kept)} too early, and left {sorted(left)}"
        )


def _parsed(policy: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(policy)
    return found


def _kept(rows: Any) -> Iterable[Kept]:
    projects = {
        project_id: (parent_id, end)
        for project_id, parent_id, end in rows(
            "SELECT project_id, parent_id, expires_at FROM projects"
        )
    }
    versions: dict[str, set[str]] = {}
    for collection_id, content_id in rows(
        "SELECT collection_id, content_id FROM collection_versions"
    ):
        versions.setdefault(collection_id, set()).add(content_id)
    for collection_id, content_id, project_id, end, copies in rows(
        "SELECT collection_id, content_id, project_id, expires_at, replication_desired"
        " FROM collections"
    ):
        ends = [end]
        while project_id is not None:
            project_id, above = projects[project_id]
            ends.append(above)
        dates = [each for each in ends if each is not None]
        contents = frozenset({content_id, *versions.get(collection_id, ())})
        yield Kept(contents, min(dates, default=None), copies)
