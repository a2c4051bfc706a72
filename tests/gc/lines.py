"""Lines of history side by side in one repository, so that one run meets many races at once.

A run costs seconds, a line a few milliseconds. Lines share nothing but the initial commit, and an
operation touches its own line alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ebbtide.errors import EbbtideError, Gone
from ebbtide.gc.steps import Event, Observer
from ebbtide.store.content.cache import ContentCache
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.repository import Repository
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


@dataclass(slots=True)
class Known:
    """What every commit of a test must hold, by commit."""

    contents: dict[str, Contents] = field(default_factory=dict)

    def note(self, commit_id: str, contents: Contents) -> str:
        self.contents[commit_id] = dict(contents)
        return commit_id


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
        """The branch that `dangling` was made on."""
        return f"{self.name}-side"

    def path(self, name: str) -> str:
        """A path of this line alone; what is put there is the path itself."""
        return f"{self.name}/{name}"

    def held(self, *names: str) -> Contents:
        return {self.path(name): self.path(name).encode() for name in names}

    def save(
        self, branch: str, days_ago: float, *, put: Iterable[str] = (), delete: Iterable[str] = ()
    ) -> str:
        before = self.known.contents.get(self.lake.commits.resolve(branch), {})
        added = self.held(*put)
        removed = [self.path(name) for name in delete]
        commit_id = self.world.save(branch, days_ago=days_ago, put=added, delete=removed)
        after = {path: data for path, data in before.items() if path not in removed}
        return self.known.note(commit_id, after | added)

    def known_of(self, commit_id: str) -> Contents:
        return self.known.contents[commit_id]


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
    """An observer that acts at several points, once at each."""
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
        """Everything that a ref shows, each object read and checked."""
        return {
            entry.path: self.lake.objects.get(ref, entry.path)
            for entry in self.lake.objects.walk(ref)
        }

    def heads(self) -> dict[str, str]:
        found = {branch.name: branch.commit_id for branch in self.lake.branches.list()}
        return found | {tag.name: tag.commit_id for tag in self.lake.tags.list()}

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
    for name, commit_id in reader.heads().items():
        assert reader.commit(commit_id).is_intact, name
        if commit_id in known.contents:
            assert reader.contents(commit_id) == known.contents[commit_id], name
        else:
            reader.contents(commit_id)
        for record in commits.log(name):
            if record.forgotten_by is not None:
                continue
            for parent_id in record.parent_ids:
                if reader.commit(parent_id).forgotten_by is None:
                    list(commits.diff(parent_id, record.commit_id))
