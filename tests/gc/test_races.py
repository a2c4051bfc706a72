"""Users bring data back while a run is under way: lakeFS issue 1932 leaves open what happens, the
fence does not. Each operation meets a point of the run on a line of history of its own.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

from ebbtide.gc.report import RunReport
from tests.gc.lines import (
    AFTER_PLAN,
    BEFORE_FENCE,
    POINTS,
    Known,
    Line,
    Outcome,
    Reader,
    at_points,
    attempt,
    check_commit,
    check_gone,
    check_refs,
    make_line,
)
from tests.gc.operations import NEEDS_EXPIRED, OPERATIONS, POLICY, Operation, longer_period
from tests.support.randomized import randomized
from tests.support.world import World

MEETINGS = [(operation, point) for operation in OPERATIONS for point in POINTS]
TRIED = 20
"""How many of them one run meets."""
EXPIRED = ("lost", "side")
"""The files of a line that only expired commits have."""


@randomized("operations at points of a run")
def test_operations_at_points_of_a_run(tmp_path: Path, seed: int) -> None:
    with closing(World(tmp_path, settings={"range_entries_target": 2})) as world:
        world.keep(**POLICY)
        initial = world.lake.commits.resolve("main")
        known = Known()
        known.note(initial, {})
        meetings = dict(enumerate(Random(seed).sample(MEETINGS, TRIED)))
        lines = [make_line(world, known, f"line{n}", initial=initial) for n in meetings]
        untouched = make_line(world, known, "untouched", initial=initial)
        outcomes: dict[int, Outcome] = {}

        def act(at: str) -> None:
            for number, (operation, point) in meetings.items():
                if point == at:
                    outcomes[number] = attempt(operation, lines[number])

        planned = world.collector().plan()
        act(AFTER_PLAN)
        later = {point: partial(act, point) for point in POINTS if point != AFTER_PLAN}
        report = world.collector(observer=at_points(later)).sweep(planned.run_id)
        check_report(report)
        contents = world.contents()
        assert set(untouched.held("kept", "fresh", "young")) <= contents
        assert not set(untouched.held(*EXPIRED)) & contents
        for number, (operation, point) in meetings.items():
            check_outcome(world, lines[number], operation, point, outcomes[number], report)
        check_all(world, known)

        # The next run collects what the races left behind.
        world.swept()
        check_all(world, known)
        assert world.swept().counts["candidate"].objects == 0


def check_report(report: RunReport) -> None:
    counts = report.counts
    assert report.state == "swept", report.error
    assert counts["missing"].objects == counts["failed"].objects == 0
    assert counts["deleted"].objects + counts["revived"].objects == counts["candidate"].objects
    assert set(report.deleted_kinds) >= {"tree", "range", "object"}


def check_outcome(
    world: World, line: Line, operation: Operation, point: str, outcome: Outcome, report: RunReport
) -> None:
    reader, what = Reader(world), (operation.__name__, point)
    if operation in NEEDS_EXPIRED:
        # Before the fence all that is needed again is kept, and later nothing is.
        comes_back = bool(set(line.held(*EXPIRED)) & world.contents())
        assert comes_back == (point in BEFORE_FENCE), what
    for commit_id in (line.head, line.young, line.fresh):
        assert check_commit(reader, commit_id, line.known_of(commit_id)), what
    if operation in NEEDS_EXPIRED and point not in BEFORE_FENCE:
        check_gone(outcome.error, report.run_id)
        return
    assert outcome.error is None, what
    if operation is longer_period and point not in BEFORE_FENCE:
        # What is closed stays so; a longer period is for what is still there.
        assert not reader.commit(line.old).is_intact
        return
    for ref, expected in outcome.reads.items():
        assert reader.contents(ref) == expected, what


def check_all(world: World, known: Known) -> None:
    """Each ref reads back, and each commit does so whole or was let go by a run that is named."""
    reader = Reader(world)
    check_refs(reader, known)
    for commit_id, contents in known.contents.items():
        check_commit(reader, commit_id, contents)
