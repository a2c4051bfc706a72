"""Users bring data back while a run is under way: lakeFS issue 1932 leaves open what happens, the
fence does not. Each operation meets a point of the run on a line of history of its own. A line
costs a few milliseconds, and touches nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from ebbtide.errors import EbbtideError, Gone
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Event, Observer
from ebbtide.retention import Policy
from ebbtide.store.content.trees import ContentCache
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.repository import Repository
from tests.support.randomized import randomized
from tests.support.world import World

Contents = dict[str, bytes]

AFTER_PLAN = "after the plan"
"""Of the points of a run the one that no observer is called at."""

POINTS: dict[str, tuple[str, Event] | None] = {
    AFTER_PLAN: None,
    "just before the fence": ("fence", "start"),
    "just after the fence": ("fence", "end"),
    "after the recheck": ("recheck", "end"),
    "after the records went": ("forget", "end"),
    "between the deletes": ("delete object", "start"),
}
BEFORE_FENCE = frozenset(list(POINTS)[:2])


Known = dict[str, Contents]
"""What every commit of a test must hold, by commit."""


@dataclass(slots=True)
class Line:
    """A branch with a history. Under a period of 7 days `old` and `deleting` are expired, and
    `dangling` too, whose branch is gone; `fresh`, `young` and `head` are active."""

    name: str
    world: World
    known: Known
    old: str = ""
    deleting: str = ""
    fresh: str = ""
    young: str = ""
    head: str = ""
    dangling: str = ""

    @property
    def lake(self) -> Repository:
        return self.world.lake

    @property
    def side(self) -> str:
        return f"{self.name}-side"

    def path(self, name: str) -> str:
        """A path of this line alone; what is put there is the path itself."""
        return f"{self.name}/{name}"

    def held(self, *names: str) -> Contents:
        return {self.path(name): self.path(name).encode() for name in names}

    def save(
        self, branch: str, days_ago: float, *, put: Iterable[str] = (), delete: Iterable[str] = ()
    ) -> str:
        before = self.known.get(self.lake.commits.resolve(branch), {})
        added = self.held(*put)
        removed = [self.path(name) for name in delete]
        commit_id = self.world.save(branch, days_ago=days_ago, put=added, delete=removed)
        after = {path: data for path, data in before.items() if path not in removed}
        self.known[commit_id] = after | added
        return commit_id


def make_line(world: World, known: Known, name: str, *, initial: str) -> Line:
    line = Line(name, world, known)
    world.lake.branches.create(name, initial)
    line.old = line.save(name, 30, put=["kept", "lost"])
    line.deleting = line.save(name, 20, delete=["lost"])
    world.lake.branches.create(line.side, name)
    line.dangling = line.save(line.side, 18, put=["side"])
    world.lake.branches.delete(line.side)
    line.fresh = line.save(name, 15, put=["fresh"])
    line.young = line.save(name, 5, put=["young"])
    line.head = line.save(name, 4, delete=["young"])
    return line


@dataclass(slots=True)
class Outcome:
    """What became of an operation: the refs that it made readable, or its error."""

    reads: dict[str, Contents] = field(default_factory=dict)
    error: EbbtideError | None = None


Operation = Callable[[Line], dict[str, Contents]]
"""Does something on a line; what must be readable from then on, by ref."""


def attempt(operation: Operation, line: Line) -> Outcome:
    try:
        return Outcome(reads=operation(line))
    except EbbtideError as error:
        return Outcome(error=error)


def at_points(actions: Mapping[str, Callable[[], None]]) -> Observer:
    waiting = {POINTS[point]: action for point, action in actions.items()}

    def observe(step: str, event: Event) -> None:
        action = waiting.pop((step, event), None)
        if action is not None:
            action()

    return observe


class Reader:
    """Reads a repository as another process would: nothing is cached from before."""

    def __init__(self, world: World) -> None:
        context = world.lake.context
        self.lake = Repository(replace(context, cache=ContentCache(context.storage)))

    def contents(self, ref: str) -> Contents:
        return {
            entry.path: self.lake.objects.get(ref, entry.path)
            for entry in self.lake.objects.walk(ref)
        }

    def commit(self, commit_id: str) -> CommitRecord:
        return self.lake.commits.get(commit_id)


def check_commit(reader: Reader, commit_id: str, expected: Mapping[str, bytes]) -> bool:
    """A commit reads back byte for byte, or was let go by a run that is named. Whether the former.

    Nothing in between: not a missing object, and not a missing range.
    """
    record = reader.commit(commit_id)
    if record.is_intact:
        assert reader.contents(commit_id) == expected
        return True
    run_id = record.forgotten_by or record.tombstoned_by
    for path in expected:
        try:
            reader.lake.objects.get(commit_id, path)
        except Gone as error:
            check_gone(error, run_id)
        else:
            raise AssertionError(f"{path} of an expired commit can be read")
    return False


def check_gone(error: EbbtideError | None, run_id: str | None) -> None:
    assert run_id is not None
    assert isinstance(error, Gone), repr(error)
    assert error.kind == "commit_expired"
    assert error.details["run_id"] == run_id
    assert run_id in error.message


def check_refs(reader: Reader, known: Known) -> None:
    """Every ref reads back, and its history can be walked and compared with its parents."""
    commits = reader.lake.commits
    heads = {branch.name: branch.commit_id for branch in reader.lake.branches.list()}
    heads |= {tag.name: tag.commit_id for tag in reader.lake.tags.list()}
    for name, commit_id in heads.items():
        assert reader.commit(commit_id).is_intact, name
        if commit_id in known:
            assert reader.contents(commit_id) == known[commit_id], name
        else:
            reader.contents(commit_id)
        for record in commits.log(name):
            if record.forgotten_by is not None:
                continue
            for parent_id in record.parent_ids:
                if reader.commit(parent_id).forgotten_by is None:
                    list(commits.diff(parent_id, record.commit_id))


POLICY: dict[str, Any] = {"default": "7d", "branches": {"short-*": "3d"}}


def revert_of_the_deletion(line: Line) -> dict[str, Contents]:
    """The file comes back in a new commit; the commit that had it stays expired."""
    made = line.lake.commits.revert(line.name, line.deleting)
    contents = line.known[made.commit_id] = line.known[line.head] | line.held("lost")
    return {line.name: contents, made.commit_id: contents}


def branch_from_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.branches.create(f"again-{line.name}", line.old)
    return {f"again-{line.name}": line.known[line.old], line.old: line.known[line.old]}


def longer_period(line: Line) -> dict[str, Contents]:
    policy = line.lake.retention.get()
    assert policy is not None
    branches = policy.to_mapping()["branches"]
    assert isinstance(branches, dict)
    line.lake.retention.set(Policy.parse(POLICY | {"branches": branches | {line.name: "60d"}}))
    return {commit: line.known[commit] for commit in (line.old, line.deleting, line.young)}


def branch_with_a_shorter_period(line: Line) -> dict[str, Contents]:
    """Made from a living branch: what its rule lets go, the other branch keeps."""
    line.lake.branches.create(f"short-{line.name}", line.name)
    return {f"short-{line.name}": line.known[line.head]}


def tag_on_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.tags.create(f"tag-{line.name}", line.old)
    return {f"tag-{line.name}": line.known[line.old]}


def hold_on_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.retention.hold(line.old, "an audit")
    return {line.old: line.known[line.old]}


def branch_from_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """One whose record, tree and ranges were to go too."""
    line.lake.branches.create(f"again-{line.name}", line.dangling)
    return {f"again-{line.name}": line.known[line.dangling]}


def merge_of_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """Its file comes into a new commit; the commit itself stays expired."""
    made = line.lake.commits.merge(line.dangling, line.name)
    contents = line.known[made.commit_id] = line.known[line.head] | line.held("side")
    return {line.name: contents}


def copy_from_an_old_commit(line: Line) -> dict[str, Contents]:
    line.lake.objects.copy(line.name, line.path("copy"), line.old, line.path("lost"))
    copied = {line.path("copy"): line.path("lost").encode()}
    return {line.name: line.known[line.head] | copied}


def old_commit_in_a_chain(line: Line) -> dict[str, Contents]:
    """A commit is made on an old one, is expired itself at once, and its branch goes. Whoever has
    its id may still make a branch from it, unless it is closed."""
    branch = f"gone-{line.name}"
    line.lake.branches.create(branch, line.old)
    line.save(branch, 10, put=["zz-more"])
    line.lake.branches.delete(branch)
    return {}


def hard_reset_to_a_dangling_commit(line: Line) -> dict[str, Contents]:
    """The branch goes to a commit that was not in its history; what is staged is dropped."""
    line.lake.objects.put(line.name, line.path("staged"), b"")
    line.lake.commits.reset_to(line.name, line.dangling, force=True)
    return dict.fromkeys((line.name, line.dangling), line.known[line.dangling])


NEEDS_EXPIRED: tuple[Operation, ...] = (
    revert_of_the_deletion,
    branch_from_an_old_commit,
    tag_on_an_old_commit,
    hold_on_an_old_commit,
    branch_from_a_dangling_commit,
    merge_of_a_dangling_commit,
    copy_from_an_old_commit,
    old_commit_in_a_chain,
    hard_reset_to_a_dangling_commit,
)
"""Allowed before the fence, HTTP 410 behind it."""

OPERATIONS: tuple[Operation, ...] = (
    *NEEDS_EXPIRED,
    branch_with_a_shorter_period,
    longer_period,
)


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
        known: Known = {}
        known[initial] = {}
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
        assert check_commit(reader, commit_id, line.known[commit_id]), what
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
    for commit_id, contents in known.items():
        check_commit(reader, commit_id, contents)
