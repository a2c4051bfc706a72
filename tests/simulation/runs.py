"""What administrators do with a repository without a database: runs and undos, copies and moves.

Not for: the embedded store, whose database knows the place of its storage (`operations`).
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import pytest

from ebbtide.errors import NotFound
from ebbtide.formats.icechunk import state
from ebbtide.formats.lakefs import needed
from ebbtide.gc import hold
from ebbtide.gc.collector import Collector
from ebbtide.gc.plan import Plan
from ebbtide.gc.report import RunReport
from tests.simulation.bucket import COPY_PREFIX, LAKE_PREFIX, ON_COPY, SimulatedBucket
from tests.simulation.choosing import Chances, Nothing, named
from tests.simulation.histories import Step
from tests.simulation.scheduler import Violation
from tests.simulation.simulation import Simulation, require_no_defect, simulating
from tests.simulation.stage import K, Stage, World
from tests.simulation.world import InPlace, NoThreads, one_thread
from tests.support.memory import opened_in_memory

COPY: Final = COPY_PREFIX.rstrip("/")


@dataclass(slots=True)
class KnownRuns:
    """The runs that answers named. `aside` are those that were to move aside what they take,
    `copied_aside` those of them that the copy has too; None without a copy."""

    runs: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    copied_aside: list[str] | None = None


class RepositoryWorld(World, Protocol):
    """A world with a repository, and perhaps a copy of it."""

    bucket: SimulatedBucket

    def collector(self, *, on_copy: bool = False, **options: Any) -> Collector:
        """The collector of the repository, or of its copy."""

    def copy(self) -> None:
        """What the repository has beside its files is copied too."""

    def token(self, length: int) -> bytes:
        """Random bytes, of each task its own."""

    def wait(self, seconds: float) -> None:
        """What a program does that waits for another one."""

    def check(self, known: Any) -> None:
        """Whether all that must be there is there. Raises Violation."""


@dataclass(slots=True, kw_only=True)
class RunAct(Chances):
    """An operation of a run under way."""

    world: RepositoryWorld
    known: KnownRuns
    quarantine: timedelta

    def planned(self, plan: Plan | RunReport) -> None:
        self.known.runs.append(plan.run_id)

    @abstractmethod
    def is_damage(self, kind: str) -> bool:
        """Whether an error of this kind says that something needed is missing or damaged."""

    def told(self, report: RunReport) -> str:
        """What a run said. Raises Violation if it finds something needed missing or damaged."""
        error = "" if report.error is None else f", {report.error}"
        kind = (report.error or {}).get("kind", "")
        require_no_defect(kind, error)
        if self.is_damage(kind):
            raise Violation("damage", f"run {report.run_id} finds damage{error}")
        return f"{report.run_id} {report.state}{error}"

    @property
    def options(self) -> dict[str, Any]:
        return {"quarantine": (None, self.quarantine)[self.numbers[0] % 2]}


def run(act: RunAct) -> object:
    """Plan and sweep."""
    options = act.options

    def confirmed(plan: Plan) -> bool:
        act.planned(plan)
        if options["quarantine"] is not None:
            act.known.aside.append(plan.run_id)
        return True

    return act.told(act.world.collector(**options).run(confirmed))


def run_aside(act: RunAct) -> object:
    """Plan, and move aside."""
    act.numbers = (1, *act.numbers[1:])
    return run(act)


def plan(act: RunAct) -> object:
    report = act.world.collector(**act.options).plan()
    if report.state == "planned":
        act.planned(report)
    return act.told(report)


def sweep(act: RunAct) -> object:
    """Sweep a plan that is there, perhaps again."""
    run_id, options = act.newest(act.known.runs, 2), act.options
    if options["quarantine"] is not None and run_id not in act.known.aside:
        act.known.aside.append(run_id)
    return act.told(act.world.collector(**options).sweep(run_id))


def undo(act: RunAct) -> object:
    return _of_quarantine(act, lambda run_id: act.world.collector().undo(run_id))


def purge_aside(act: RunAct) -> object:
    """Delete for good what a run has aside."""
    return _of_quarantine(act, lambda run_id: act.world.collector().purge(run_id))


def _of_quarantine(act: RunAct, work: Callable[[str], RunReport]) -> object:
    run_id = act.newest(act.known.aside, 2)
    try:
        return act.told(work(run_id))
    except NotFound as error:
        raise _found(error, run_id) from error


def _found(error: NotFound, run_id: str) -> Exception:
    """Whatever became of a repository's place, its runs are found."""
    if error.kind == "run_not_found":
        return Violation("place", f"run {run_id} is not found: {error.message}")
    return error


def copy_repository(act: RunAct) -> object:
    """Copy all files, and take that copy for a repository of its own."""
    world = act.world
    if any(task.kind == ON_COPY and not task.is_over for task in world.scheduler.tasks):
        return "a run over the last copy is under way"
    objects = world.bucket.objects
    for key in [key for key in objects if key.startswith(COPY_PREFIX)]:
        del objects[key]
    for key, stored in [*objects.items()]:
        if key.startswith(LAKE_PREFIX):
            objects[COPY_PREFIX + key.removeprefix(LAKE_PREFIX)] = stored
    world.copy()
    act.known.copied_aside = list(act.known.aside)
    return f"copied with {len(act.known.aside)} runs that may have files aside"


def on_copy(act: RunAct) -> object:
    """A run over the copy, or the undo or the end of a run that it has from the original."""
    if act.known.copied_aside is None:
        raise Nothing
    collector = act.world.collector(on_copy=True, **act.options)
    kind = act.numbers[1] % 4
    if kind < 2:
        return act.told(collector.run())
    run_id = act.newest(act.known.copied_aside, 2)
    try:
        return act.told(collector.undo(run_id) if kind == 2 else collector.purge(run_id))
    except NotFound as error:
        raise _found(error, run_id) from error


def move(act: RunAct) -> object:
    """The repository is found by another URL from now on, as behind another mount point."""
    return f"at s3://{act.world.bucket.move(act.number)}"


OPERATIONS: Final[Mapping[str, Callable[[Any], object]]] = named(
    *(run, run_aside, plan, sweep, undo, purge_aside),
    *(copy_repository, on_copy, move),
)

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("sweep", "undo", "purge aside"), "run aside"),
    ON_COPY: "copy repository",
}

THEMES: Final[Mapping[tuple[str, ...], int]] = {
    ("run aside", "undo"): 4,
    ("plan", "sweep", "undo"): 4,
    ("run aside", "purge aside"): 2,
    ("run",): 3,
    ("run aside", "copy repository", ON_COPY): 3,
    ("run aside", "move", "undo"): 2,
    ("plan", "move", "sweep"): 1,
}


class RepositoryStage(Stage[K]):
    """The stage of one repository without a database, and of its copy."""

    world: RepositoryWorld
    acts: ClassVar[Callable[..., RunAct]]
    operations: ClassVar[Mapping[str, Callable[[Any], object]]]

    def perform(self, step: Step, known: K) -> object:
        act = self.acts(world=self.world, known=known, number=step.number, numbers=step.numbers)
        try:
            return self.operations[step.name](act)
        except Nothing:
            vocabulary = self.vocabulary
            return self.operations[vocabulary.instead.get(step.name, vocabulary.always)](act)

    def check(self, known: K) -> None:
        self.world.check(known)

    def check_end(self, known: K) -> None:
        """Nothing but what is checked at any time."""

    def last_run(self) -> RunReport:
        """A run, and what it says."""
        report = self.world.collector().run()
        self.world.scheduler.tell(f"in the end {report.run_id} {report.state} {report.error}")
        return report

    def require_swept(self, report: RunReport, known: K) -> None:
        """The last run came to its end, and promises are kept. Raises Violation."""
        if report.state != "swept":
            raise Violation("end", f"the last run is {report.state}: {report.error}")
        self.check(known)


@contextmanager
def open_repository(stage: Stage[Any], world: RepositoryWorld) -> Iterator[Simulation]:
    """A simulation of a repository in memory. Local files lie in a directory for the time."""
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
        opened_in_memory(world.bucket.names),
        simulating(stage) as made,
    ):
        one_thread(patch, world.token, Path(directory))
        patch.setattr(state, "ThreadPoolExecutor", InPlace)
        patch.setattr(needed, "ThreadPoolExecutor", InPlace)
        patch.setattr(hold, "threading", NoThreads)
        patch.setattr(hold, "hold_storage", partial(hold.hold_storage, wait=world.wait))
        yield made
