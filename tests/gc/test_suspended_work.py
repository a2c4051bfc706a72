"""Work that began before a run and ends in it or after it.

One run: every operation here has stopped half-way when it begins. Some go on between plan and
sweep, the others when the sweep is over. The grace is zero: it is not what protects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest

from ebbtide.gc.report import RunReport
from ebbtide.store.commits import committing, merging
from ebbtide.store.context import RepositoryContext
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import Uploads
from tests.gc.lines import (
    Contents,
    Known,
    Line,
    Outcome,
    Reader,
    check_commit,
    check_gone,
    check_refs,
    make_line,
)
from tests.gc.operations import POLICY
from tests.gc.suspended import Suspended, slow_content, stop_before
from tests.support.world import World

pytestmark = pytest.mark.xdist_group("suspended work")

Moment = Literal["before the fence", "after the run"]
MOMENTS: tuple[Moment, ...] = ("before the fence", "after the run")

LEASE = timedelta(hours=1)
TRASH = timedelta(days=1)
SETTINGS: dict[str, Any] = {"range_entries_target": 2, "lease_ttl": LEASE, "trash_time": TRASH}


def merge(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of a commit that is dangling and expired."""
    lake.commits.merge(line.dangling, line.name)
    return {line.name: line.known_of(line.head) | line.held("side")}


def revert(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of the deletion of a file."""
    lake.commits.revert(line.name, line.deleting)
    return {line.name: line.known_of(line.head) | line.held("lost")}


def copy(line: Line, lake: Repository) -> dict[str, Contents]:
    """From an expired commit."""
    lake.objects.copy(line.name, line.path("copy"), line.old, line.path("lost"))
    copied = {line.path("copy"): line.path("lost").encode()}
    return {line.name: line.known_of(line.head) | copied}


def sign(line: Line, lake: Repository) -> dict[str, Contents]:
    """A locator of a file that only an expired commit has."""
    lake.locators.sign_path(line.old, line.path("lost"))
    return {line.old: line.known_of(line.old)}


def upload(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of a file in two pieces."""
    (path,) = line.held("upload")
    lake.objects.put(line.name, path, slow_content(path.encode()))
    return {line.name: line.known_of(line.head) | line.held("upload")}


def commit(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of a file; the other ranges are the parent's."""
    for path, data in line.held("zz").items():
        lake.objects.put(line.name, path, data)
    made = lake.commits.commit(line.name, "while a run goes on")
    parent = lake.context.tree_of(lake.commits.get(line.head))
    assert set(lake.context.tree_of(made).ranges) & set(parent.ranges)
    return {line.name: line.known_of(line.head) | line.held("zz")}


def listing(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of a commit whose tree goes."""
    found = {entry.path for entry in lake.objects.walk(line.dangling)}
    assert found == set(line.known_of(line.dangling))
    return {}


def reading(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of an object of a commit whose tree goes."""
    assert lake.objects.get(line.dangling, line.path("side")) == line.path("side").encode()
    return {}


def comparing(line: Line, lake: Repository) -> dict[str, Contents]:
    """Of a commit whose tree goes, with its parent."""
    changes = lake.commits.diff(line.deleting, line.dangling)
    assert [change.path for change in changes] == [line.path("side")]
    return {}


@dataclass(frozen=True, slots=True)
class Work:
    """What stops where; `needs_expired`: when the run is over, it is told that data has gone."""

    operation: Callable[[Line, Repository], dict[str, Contents]]
    place: str
    needs_expired: bool

    @property
    def name(self) -> str:
        """For branches and ids of tests."""
        return f"{self.operation.__name__}-at-{self.place.strip('_')}"


WORKS = (
    Work(merge, "publish", True),
    Work(merge, "merge_trees", True),
    Work(merge, "tree_of", True),
    Work(revert, "publish", True),
    Work(revert, "merge_trees", True),
    Work(copy, "_stage", True),
    Work(sign, "tree_of", True),
    Work(listing, "tree_of", True),
    Work(reading, "tree_of", True),
    Work(comparing, "tree_of", True),
    Work(upload, "content", False),
    Work(upload, "_stage", False),
    Work(commit, "publish", False),
    Work(commit, "tree_of", False),
)


@dataclass(slots=True)
class Run:
    """The run, and what became of what it met."""

    world: World
    known: Known
    lines: dict[str, Line]
    report: RunReport
    reader: Reader
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The run, when it and everything else is over."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (committing, "publish"),
            (merging, "publish"),
            (merging, "merge_trees"),
            (RepositoryContext, "tree_of"),
            (Uploads, "_stage"),
        ):
            stop_before(patch, owner, name)
        made = make_run(tmp_path_factory.mktemp("run"))
    yield made
    made.world.close()


def make_run(directory: Path) -> Run:
    """Stop everything half-way, plan, let half of it go on, sweep, let the rest go on."""
    world = World(directory, settings=SETTINGS)
    world.keep(**POLICY)
    known = Known()
    initial = world.lake.commits.resolve("main")
    names = [f"{work.name}-{number}" for work in WORKS for number in range(len(MOMENTS))]
    lines = {name: make_line(world, known, name, initial=initial) for name in names}
    world.clock.advance(2 * TRASH)
    for name, line in lines.items():
        if name.startswith("commit"):
            line.head = line.save(name, 1, put=[f"many/{number}" for number in range(9)])
    other = Reader(world)
    started = {
        (work.name, moment): Suspended(
            work.place, partial(work.operation, lines[f"{work.name}-{number}"], other.lake)
        ).start()
        for work in WORKS
        for number, moment in enumerate(MOMENTS)
    }
    outcomes: dict[tuple[str, str], Outcome] = {}

    planned = world.collector(grace=timedelta(0), unsafe=True).plan()
    assert planned.state == "planned"
    for key, suspended in started.items():
        if key[1] == MOMENTS[0]:
            outcomes[key] = suspended.finish()
    sweeper = world.collector(grace=timedelta(0), unsafe=True)
    report = sweeper.sweep(planned.run_id)
    for key, suspended in started.items():
        if key[1] == MOMENTS[1]:
            outcomes[key] = suspended.finish()
    return Run(world, known, lines, report, Reader(world), outcomes)


def test_the_run_ends_well(run: Run) -> None:
    counts = run.report.counts
    assert run.report.state == "swept"
    assert counts["missing"].objects == counts["failed"].objects == 0
    assert set(run.report.deleted_kinds) >= {"tree", "range", "object"}


def test_suspended_work(run: Run) -> None:
    for work, moment in product(WORKS, MOMENTS):
        outcome = run.outcomes[work.name, moment]
        if work.needs_expired and moment == "after the run":
            check_gone(outcome.error, run.report.run_id)
            continue
        assert outcome.error is None, work.name
        for ref, expected in outcome.reads.items():
            assert run.reader.contents(ref) == expected, (work.name, moment)


def test_every_commit_and_ref(run: Run) -> None:
    check_refs(run.reader, run.known)
    for commit_id, contents in run.known.contents.items():
        check_commit(run.reader, commit_id, contents)
