"""The curve of retention: what each period, and each count, would keep and delete.

All points come from one listing, one reading and one mark. The figures of a point are those of a
plan with the policy of the point. Definitions: docs/design/034-usage.md. Not for: policies that
differ in more than one rule (`gc.whatif`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, split_by
from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import WithUnnamed
from ebbtide.gc.candidates import by_part, placed, rows_at, uncommitted
from ebbtide.gc.engines.base import Batches, Engine, Query, Relation, answers_of
from ebbtide.gc.keys import rows_of
from ebbtide.gc.labels import LabelledMark, LabelledTrees
from ebbtide.gc.parts import ANSWERS_SCHEMA, Answers, Count, PartRows, count_of
from ebbtide.gc.planner import Planner, Surveyed
from ebbtide.gc.store import INVENTORY_SCHEMA, latest_micros, micros_of, sized
from ebbtide.gc.uncommitted import write_unseen
from ebbtide.model import Commit
from ebbtide.retention.decision import Roots
from ebbtide.retention.policy import Policy
from ebbtide.retention.selection import kept_under

Axis = Literal["period", "count"]

PERIODS: Final = tuple(
    timedelta(days=days)
    for days in (1, 2, 3, 5, 7, 10, 14, 20, 30, 45, 60, 90, 120, 180, 270, 365, 540, 730)
)
COUNTS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000)

_BITS: Final = 8
_MASK: Final = (1 << _BITS) - 1
"""A label has the levels of three axes, in so many bits each: periods, counts, and the present
policy. An axis has fewer points than _MASK."""

LEVELS: Final = Query(
    f"""
    SELECT /*+ SHUFFLE_HASH(c, u) */ s.part, s.row, c.level, u.protected
    FROM {{store}} s
    LEFT JOIN (
        SELECT key, CAST(
            MIN(label & {_MASK}) + MIN(label & {_MASK << _BITS}) + MIN(label & {1 << 2 * _BITS})
            AS INT) AS level
        FROM {{committed}} GROUP BY key
    ) c ON s.key = c.key
    LEFT JOIN (
        SELECT key, bool_or(protected) AS protected FROM {{uncommitted}} GROUP BY key
    ) u ON s.judged = u.key
    WHERE c.level IS NULL OR c.level > 0
    """,
    make_schema(
        ("part", pa.int32()), ("row", pa.int32()), ("level", pa.int32()), ("protected", pa.bool_())
    ),
)
"""The listed files that some point does not keep, with their levels; null if no point keeps a
file. The levels of an axis are compared on their own."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point: its policy, and the figures of a plan with it.

    `counts` are by class, as those of a plan, and `classes` has the bytes of its candidates by
    storage class. `lost_count` counts the commits that the present policy keeps and this one
    expires; `regained_count` the opposite.
    """

    axis: Axis | None  # None for the present policy
    label: str
    policy: Mapping[str, Any] | None
    counts: Mapping[str, Count]
    classes: Mapping[str, int]
    active_count: int
    lost_count: int
    regained_count: int

    @property
    def reclaimable(self) -> Count:
        """The count of all candidates."""
        return self.counts["candidate"]


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of both axes, the strictest first, and the present policy.

    `rule` is the pattern of the rule that changes. `present_label` is the label of the point of
    `points` that is the present policy, or None if none is.
    """

    repository: str
    now: datetime
    grace_seconds: float
    rule: str
    listed: Count
    present: Point
    points: tuple[Point, ...]
    warnings: tuple[str, ...] = ()

    def on(self, axis: Axis) -> tuple[Point, ...]:
        """Returns the points of an axis."""
        return tuple(point for point in self.points if point.axis == axis)

    def is_present(self, point: Point) -> bool:
        """Whether a point is the present policy."""
        return point.policy == self.present.policy


@dataclass(frozen=True, slots=True)
class _Asked:
    """A point to compute."""

    axis: Axis
    label: str
    policy: Policy


def curve_of(planner: Planner, rule: str | None = None) -> Curve:
    """Returns the curve of the rule for a pattern, by default that of `Policy.chosen_pattern`.

    Raises InvalidInput `invalid_argument` in mode rewrite, and if no branch has the pattern;
    Refused as a plan does, except for missing files of kept commits.
    """
    engine, repository = planner.engine, planner.repository
    read = planner.survey()
    roots = read.basis.roots
    names = [ref.name for ref in roots.refs if ref.kind == "branch"]
    rule = (roots.policy or Policy()).chosen_pattern(rule, names)
    asked = list(_asked(roots.policy, rule))
    with planner.steps("reach"):
        levels = _Levels.of(roots, asked)
        needs = _needs(roots, levels)
    with planner.steps("subtract"):
        mark = LabelledMark(engine, read.files, needs, _Lowest(), index=read.index)
        found = _subtracted(engine, repository, read, mark.live())
    totals = _Totals(read.listed.total, found)
    present = totals.point(None, "present", roots.policy, levels, 2, 0)
    numbers: dict[str, int] = {}
    points: list[Point] = []
    for each in asked:
        number = numbers[each.axis] = numbers.get(each.axis, -1) + 1
        axis = 0 if each.axis == "period" else 1
        policy = each.policy.with_holds(roots.holds)
        points.append(totals.point(each.axis, each.label, policy, levels, axis, number))
    return Curve(
        repository=repository.identity.repository_name,
        now=roots.now,
        grace_seconds=planner.options.grace.total_seconds(),
        rule=rule,
        listed=read.listed.total,
        present=present,
        points=tuple(points),
        warnings=read.basis.decision.warnings,
    )


def _asked(present: Policy | None, pattern: str) -> Iterator[_Asked]:
    """Yields the points of both axes, the strictest first. The period and the count of the present
    rule are points too."""
    if present is not None and present.mode == "rewrite":
        raise InvalidInput(
            "invalid_argument",
            "the policy is of mode rewrite, where no period and no count decides: there is no "
            "curve. 'ebbtide expire REPO … --dry-run' shows what a cut of the history would free",
        )
    policy = Policy() if present is None else present
    rule = policy.rule_of(pattern)
    periods = {*PERIODS} | ({rule.keep_within} if rule.keep_within else set())
    for period in sorted(periods):
        changed = replace(rule, keep_within=period)
        yield _Asked("period", format_duration(period), policy.with_rule(pattern, changed))
    counts = {*COUNTS} | ({rule.keep_last} if rule.keep_last else set())
    for count in sorted(counts):
        changed = replace(rule, keep_within=None, keep_last=count)
        yield _Asked("count", str(count), policy.with_rule(pattern, changed))


@dataclass(frozen=True, slots=True)
class _Levels:
    """For each commit the levels of its data on the three axes: the number of points that do not
    keep it, from the strictest on. A commit that all points keep has level 0. `sizes` are the
    numbers of points, and `active` and `lost` have figures for each point."""

    data: Mapping[str, tuple[int, int, int]]
    sizes: tuple[int, int, int]
    active: list[list[int]]
    lost: list[list[int]]

    @classmethod
    def of(cls, roots: Roots, asked: Sequence[_Asked]) -> _Levels:
        """Selects the commits at each point, on one history."""
        policies: list[Policy | None] = [each.policy.with_holds(roots.holds) for each in asked]
        kept = kept_under(roots.commits, roots.refs, [roots.policy, *policies], roots.now)
        ids, present = kept.ids, np.frombuffer(next(kept.flags), np.bool_)
        periods = sum(each.axis == "period" for each in asked)
        sizes = (periods, len(asked) - periods, 1)
        levels = np.zeros((3, len(ids)), np.int64)
        levels[2] = ~present
        active: list[list[int]] = [[], [], [int(present.sum())]]
        lost: list[list[int]] = [[], [], [0]]
        before = [np.zeros(len(ids), np.bool_)] * 2
        for number, flags in enumerate(kept.flags):
            own = np.frombuffer(flags, np.bool_)
            axis = 0 if number < periods else 1
            assert not (before[axis] & ~own).any(), "a longer period keeps less than a shorter one"
            before[axis] = own
            levels[axis] += ~own
            active[axis].append(int(own.sum()))
            lost[axis].append(int((present & ~own).sum()))
        found = {name: (a, b, c) for name, a, b, c in zip(ids, *levels.tolist(), strict=True)}
        return cls(found, sizes, active, lost)

    def records(self, commits: Sequence[Commit], starts: Sequence[str]) -> dict[str, list[int]]:
        """Returns the levels of the commits' own files. `starts` are the commits that refs point
        at: whatever they reach stays at each point."""
        parents = {commit.commit_id: commit.parent_ids for commit in commits}
        found = {name: list(self.sizes) for name in parents}
        for axis in range(3):
            by_level: dict[int, list[str]] = {0: [each for each in starts if each in parents]}
            for name, levels in self.data.items():
                by_level.setdefault(levels[axis], []).append(name)
            seen: set[str] = set()
            for level in sorted(by_level):
                waiting = by_level[level]
                while waiting:
                    name = waiting.pop()
                    if name in seen:
                        continue
                    seen.add(name)
                    found[name][axis] = level
                    waiting += [each for each in parents[name] if each in parents]
        return found


def _packed(levels: Sequence[int]) -> int:
    return levels[0] | levels[1] << _BITS | levels[2] << 2 * _BITS


def _unpacked(label: int) -> tuple[int, int, int]:
    return label & _MASK, label >> _BITS & _MASK, label >> 2 * _BITS


class _Lowest:
    """Labels of levels: something is kept from the lowest level on of all that need it."""

    def merged(self, labels: Sequence[int]) -> int:
        """Returns the lowest level on each axis."""
        return _packed([min(axis) for axis in zip(*map(_unpacked, labels), strict=True)])


def _needs(roots: Roots, levels: _Levels) -> LabelledTrees:
    """Returns the labels of all trees and companions that some point keeps."""
    merging = _Lowest()
    records: dict[str, int] = {}
    data: dict[str, int] = {}
    companions: dict[str, int] = {}
    own = levels.records(roots.commits, [ref.commit_id for ref in roots.refs])
    never = _packed(levels.sizes)

    def add(found: dict[str, int], name: str, label: int) -> None:
        if label != never:
            found[name] = merging.merged([found[name], label]) if name in found else label

    for commit in roots.commits:
        label = _packed(own[commit.commit_id])
        for address in roots.companions.get(commit.commit_id, ()):
            add(companions, address, label)
        if commit.tree_id in roots.tree_checksums:  # otherwise an operator gave the tree up
            add(records, commit.tree_id, label)
            add(data, commit.tree_id, _packed(levels.data[commit.commit_id]))
    return LabelledTrees(records, data, roots.tree_checksums, companions, roots.lenient_trees)


def _subtracted(
    engine: Engine, repository: RepositoryFormat, read: Surveyed, live: Relation
) -> Answers:
    """Returns the counts of files that some point does not keep, by class and by level."""
    given = read.relations
    if not isinstance(repository, WithUnnamed):
        return _counted(engine, read, live, writes=False)
    live = live.kept()
    found = _counted(engine, read, live, writes=True)
    unseen = write_unseen(repository, given.folder, found.parts, name="uncommitted/unseen")
    if not unseen:
        return found
    more = replace(given, protected=[*given.protected, *unseen])
    return _counted(engine, replace(read, relations=more), live, writes=False)


def _counted(engine: Engine, read: Surveyed, live: Relation, *, writes: bool) -> Answers:
    """Counts the files of each class and level. If it `writes`, also writes the old unprotected
    ones."""
    given = read.relations
    folder, inventory, storage, cutoff = given.folder, given.inventory, given.storage, given.cutoff
    engine.expect(rows_of([*inventory, *given.protected]))
    left = engine.query(
        LEVELS,
        store=placed(engine, folder, inventory, kinds=given.kinds),
        committed=live,
        uncommitted=uncommitted(engine, folder, given.protected),
    )

    def judge(batches: Batches) -> Batches:
        answer = PartRows()
        for number, places in by_part(batches):
            rows = rows_at(folder, inventory[number], places, INVENTORY_SCHEMA)
            is_protected = np.asarray(pc.fill_null(places.column("protected"), pa.scalar(False)))
            rows = sized(storage, rows, ~is_protected)
            dates = rows.column("last_modified")
            is_young = (latest_micros(dates) >= micros_of(cutoff)) | np.asarray(pc.is_null(dates))
            names = np.where(is_protected, "protected", np.where(is_young, "young", "candidate"))
            _tell(rows, names, places.column("level"), answer)
            if writes:
                unheld = rows.filter(pa.array(names == "candidate"))
                answer.wrote(folder, f"levels/part-{number:05d}.parquet", unheld, relation="levels")
        yield answer.batch()

    tasks = engine.tasks_for(rows_of(inventory))
    return answers_of(left.map(judge, ANSWERS_SCHEMA, by=("part", "row"), tasks=tasks))


def _tell(rows: pa.Table, names: Any, levels: pa.ChunkedArray[Any], answer: PartRows) -> None:
    """Counts rows by class, level and storage class."""
    never = _packed((_MASK, _MASK, 1))
    filled: Any = levels.fill_null(pa.scalar(never, pa.int32()))
    classes: Any = rows.column("storage_class").fill_null(pa.scalar("", pa.string()))
    groups: Any = pc.binary_join_element_wise(
        pa.array(names, pa.string()), filled.cast(pa.string()), classes, "|"
    )
    for group, own in split_by(rows.append_column("group", groups), "group"):
        name, kind = group.split("|", 1)
        answer.counted(count_of(own), of=name, kind=kind)


class _Totals:
    """Adds up counts by level."""

    def __init__(self, listed: Count, found: Answers) -> None:
        self._listed = listed
        self._rows = [
            (each.of, _unpacked(int(each.kind.split("|")[0])), each.kind.split("|")[1], each.count)
            for each in found.counts
        ]

    def point(
        self,
        axis: Axis | None,
        label: str,
        policy: Policy | None,
        levels: _Levels,
        place: int,
        number: int,
    ) -> Point:
        """Returns point `number` of the axis at `place`."""
        counts = dict.fromkeys(("protected", "young", "candidate"), Count())
        classes: dict[str, int] = {}
        for name, level, storage_class, count in self._rows:
            if level[place] <= number:
                continue  # live at this point
            counts[name] += count
            if name == "candidate":
                classes[storage_class] = classes.get(storage_class, 0) + count.bytes_total
        left = sum(counts.values(), Count())
        live = replace(self._listed - left, sized=self._listed.sized)
        active, lost = levels.active[place][number], levels.lost[place][number]
        present = levels.active[2][0]
        return Point(
            axis=axis,
            label=label,
            policy=None if policy is None else policy.to_mapping(),
            counts={"live": live, **counts},
            classes=classes,
            active_count=active,
            lost_count=lost,
            regained_count=active - (present - lost),
        )
