"""Users bring data back while a run is under way: lakeFS issue 1932 leaves open what happens, the
fence does not.

Every operation meets every point of a run, each on a line of history of its own, all in one run;
of those that are drawn, where not all are to be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from ebbtide.gc.report import RunReport
from tests.gc.lines import (
    AFTER_PLAN,
    BEFORE_FENCE,
    POINTS,
    Known,
    Line,
    Operation,
    Outcome,
    Reader,
    at_points,
    attempt,
    check_commit,
    check_gone,
    check_refs,
    make_line,
)
from tests.gc.operations import (
    NEEDS_EXPIRED,
    OPERATIONS,
    POLICY,
    longer_period,
    read_of_an_old_commit,
)
from tests.support.copies import OpenedWorld
from tests.support.templates import copy_store
from tests.support.world import World

pytestmark = pytest.mark.xdist_group("races")

UNTOUCHED = "untouched"
"""A line that nobody touches: what the run does where there is no race."""

EXPIRED = ("lost", "side")
"""The files of a line that only expired commits have."""


def named(operation: Operation) -> str:
    """For the ids of tests."""
    return operation.__name__


@dataclass(slots=True)
class Race:
    """One run that all operations at all points interfered with."""

    world: World
    known: Known
    report: RunReport
    reader: Reader
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)


Meeting = tuple[Operation, str]
"""An operation, and the point of a run at which it is done."""


@pytest.fixture(scope="module")
def race(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Race]:
    """The run, when it is over, with what the tests of this session ask about."""
    here = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params for item in here if hasattr(item, "callspec")]
    found = {(each["operation"], each["point"]) for each in asked}
    every = [(operation, point) for operation in OPERATIONS for point in POINTS]
    meetings = [each for each in every if each in found]
    raced = make_race(tmp_path_factory.mktemp("race"), meetings or every)
    yield raced
    raced.world.close()


def make_race(directory: Path, meetings: Sequence[Meeting]) -> Race:
    """Plan, sweep, and do operations at points of that."""
    world = World(directory, settings={"range_entries_target": 2})
    world.keep(**POLICY)
    known = Known()
    initial = world.lake.commits.resolve("main")
    known.note(initial, {})
    lines: dict[tuple[str, str], Line] = {}
    outcomes: dict[tuple[str, str], Outcome] = {}
    for operation, point in meetings:
        name = f"{named(operation)}-{[*POINTS].index(point)}"
        lines[named(operation), point] = make_line(world, known, name, initial=initial)
    lines[UNTOUCHED, ""] = make_line(world, known, UNTOUCHED, initial=initial)

    def act(at: str) -> None:
        for operation, point in meetings:
            if point == at:
                key = named(operation), point
                outcomes[key] = attempt(operation, lines[key])

    planned = world.collector().plan()
    assert planned.state == "planned"
    act(AFTER_PLAN)
    later = {point: partial(act, point) for point in POINTS if point != AFTER_PLAN}
    report = world.collector(observer=at_points(later)).sweep(planned.run_id)
    return Race(world, known, report, Reader(world), lines, outcomes)


def test_the_run_ends_well(race: Race) -> None:
    counts = race.report.counts
    assert race.report.state == "swept"
    assert {*race.outcomes, (UNTOUCHED, "")} == set(race.lines)
    assert counts["missing"].objects == counts["failed"].objects == 0
    assert counts["deleted"].objects + counts["revived"].objects == counts["candidate"].objects
    assert set(race.report.deleted_kinds) >= {"tree", "range", "object"}


def test_what_nobody_touches_goes(race: Race) -> None:
    contents = race.world.contents()
    line = race.lines[UNTOUCHED, ""]
    assert set(line.held("kept", "fresh", "young")) <= contents
    assert not set(line.held(*EXPIRED)) & contents


@pytest.mark.drawn("operations at points of a run")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
def test_operation_at_point(race: Race, operation: Operation, point: str) -> None:
    line, outcome = race.lines[named(operation), point], race.outcomes[named(operation), point]
    if operation in NEEDS_EXPIRED:
        # Before the fence all that is needed again is kept, and later nothing is.
        comes_back = point in BEFORE_FENCE and operation is not read_of_an_old_commit
        assert bool(set(line.held(*EXPIRED)) & race.world.contents()) == comes_back
    own = [
        commit_id
        for commit_id, contents in race.known.contents.items()
        if any(path.startswith(f"{line.name}/") for path in contents)
    ]
    assert len(own) >= 6
    intact = {id_ for id_ in own if check_commit(race.reader, id_, race.known.contents[id_])}
    assert intact >= {line.head, line.young, line.fresh}, "and no other is half there"
    if operation in NEEDS_EXPIRED and point not in BEFORE_FENCE:
        check_gone(outcome.error, race.report.run_id)
        return
    assert outcome.error is None
    if operation is longer_period and point not in BEFORE_FENCE:
        # What is closed stays so; a longer period is for what is still there.
        assert not race.reader.commit(line.old).is_intact
        return
    for ref, expected in outcome.reads.items():
        assert race.reader.contents(ref) == expected


def test_every_ref_reads_back(race: Race) -> None:
    check_refs(race.reader, race.known)


def test_the_next_run_finishes(race: Race, tmp_path: Path) -> None:
    """It collects what the races left behind."""
    copy_store(race.world.directory / "store", tmp_path / "store")
    world = OpenedWorld(tmp_path, now=race.world.now)
    report = world.collect()
    assert report.state == "swept"
    reader = Reader(world)
    check_refs(reader, race.known)
    for commit_id, contents in race.known.contents.items():
        check_commit(reader, commit_id, contents)
    assert world.collect().counts["candidate"].objects == 0
    world.close()
