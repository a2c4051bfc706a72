"""Finds the versions that need one file, for explanations. Not for: deciding or deleting."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.formats.delta.actions import ADD, CDC
from ebbtide.formats.delta.layout import DeltaLayout, adds_of, column_of, read_range, tree_of
from ebbtide.formats.delta.tables import TableState
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Decision, Roots, decide
from ebbtide.storage import Storage

_COMMITS_AT_ONCE: Final = 200
_KEPT_SHOWN: Final = 3
"""The most kept versions of an interval that are named with their reasons."""


@dataclass(frozen=True, slots=True)
class FileHistory:
    """The history of one address in one table."""

    storage: Storage
    layout: DeltaLayout
    table: TableState
    address: str

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yields the first and the last version of each interval of versions that need the file.
        Raises Refused as a run does, if the log cannot be read."""
        for first, last in self.table.log.rows():
            numbers = [each.number for each in self.table.versions if first <= each.number <= last]
            if not numbers:
                continue
            events = defaultdict[int, list[dict[str, Any]]](list)
            for row in self._rows(numbers[0], last):
                events[max(row["version"], numbers[0])].append(row)
            live, since = set[tuple[Any, ...]](), None
            for number in [*numbers, last + 1]:
                is_needed = False
                for row in sorted(events[number], key=lambda row: (row["version"], row["kind"])):
                    key = tuple(row[name] for name in ("path", "storage", "vector", "offset"))
                    live.discard(key)
                    if row["kind"] == ADD:
                        live.add(key)
                    is_needed |= row["kind"] == CDC and row["version"] == number
                is_needed |= bool(live) and number <= last
                if is_needed and since is None:
                    since = number
                if not is_needed and since is not None:
                    yield since, number - 1
                    since = None

    def _rows(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        """Yields the actions that name the address, from the base of the first version on."""
        prefix = self.table.prefix
        state, _, _ = self.layout.state(self.storage, prefix, first)
        starts = range(first + 1, last + 1, _COMMITS_AT_ONCE)
        ends = (min(start + _COMMITS_AT_ONCE - 1, last) for start in starts)
        ranges = (adds_of(prefix, a, b) for a, b in zip(starts, ends, strict=True))
        for node in (state, *ranges):
            actions = read_range(self.storage, node)
            yield from actions.filter(self._names(actions)).to_pylist()

    def _names(self, actions: pa.Table) -> Any:
        places, prefix = self.layout.places, self.table.prefix
        asked = pa.scalar(self.address, pa.string())
        by_path: Any = pc.equal(places.addresses(prefix, column_of(actions, "path")), asked)
        vectors = [
            None if row["storage"] is None else places.vector_address(prefix, **row)
            for row in actions.select(["storage", "vector"]).to_pylist()
        ]
        by_vector: Any = pc.equal(pa.array(vectors, pa.string()), asked).fill_null(False)
        return pc.or_(by_path, by_vector)


def belongs(commit: Commit, table: TableState) -> bool:
    """Whether a commit is a version of a table."""
    return tree_of(commit.tree_id)[0] == table.prefix


def in_words(table: TableState, needing: Mapping[int, Commit], decision: Decision) -> Iterator[str]:
    """Yields each interval of versions that need a file, with the commits at its ends, and with the
    versions that stay and their reasons. `needing` has the versions by their numbers."""
    operations = {each.number: each.operation for each in table.versions}
    for first, last in _intervals(sorted(needing)):
        which = f"version {first} needs" if first == last else f"versions {first} to {last} need"
        text = f"{which} it"
        if first != table.versions[0].number and operations[first] is not None:
            text += f", since {operations[first]}"
        if operations.get(last + 1) is not None:
            text += f"; version {last + 1} ({operations[last + 1]}) does not"
        own = ((number, needing[number].commit_id) for number in range(last, first - 1, -1))
        kept = [(number, decision.active[each]) for number, each in own if each in decision.active]
        shown = [f"{number} ({reason})" for number, reason in kept[:_KEPT_SHOWN]]
        if len(kept) > _KEPT_SHOWN:
            shown.append(f"{len(kept) - _KEPT_SHOWN} more")
        yield f"{text}; the policy keeps {', '.join(shown) or 'none of them'}"


def _intervals(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last of each run of ascending numbers without a gap."""
    start = 0
    for place, number in enumerate(numbers, 1):
        if place == len(numbers) or numbers[place] != number + 1:
            yield numbers[start], number
            start = place


def unkept_since(
    roots: Roots, name: str, commits: Collection[Commit], decision: Decision
) -> datetime | None:
    """Returns the instant since which the policy has kept none of some versions of one table, whose
    branch has this name. Returns None if it keeps one.

    The log tells which version was the newest at each instant, so that the present policy can be
    asked what it would have kept then. In such a line, a version that went never comes back.
    """
    if any(each.commit_id in decision.active for each in commits):
        return None
    trees = {tree_of(each.tree_id)[0] for each in commits}
    line = [each for each in roots.commits if tree_of(each.tree_id)[0] in trees]
    places = {each.commit_id: place for place, each in enumerate(line)}
    last = max(places[each.commit_id] for each in commits)
    rule = None if roots.policy is None else roots.policy.lookup().rule(name)
    period = None if rule is None else rule.keep_within
    instants = {each.created_at for each in line[last:]}
    if period is not None:
        instants |= {each.created_at + period for each in line}
    later = sorted(each for each in instants if line[last].created_at <= each <= roots.now)

    def is_unkept(instant: datetime) -> bool:
        known = [each for n, each in enumerate(line) if n <= last or each.created_at <= instant]
        head = Ref(name, "branch", known[-1].commit_id)
        before = replace(roots, now=instant, refs=(head,), commits=tuple(known))
        active = decide(before).active
        return not any(each.commit_id in active for each in commits)

    place = bisect_left(later, True, key=is_unkept)
    return later[place] if place < len(later) else None
