"""What administrators do with a repository without a database: runs and undos, copies and moves.

Not for: the embedded store, whose database knows the place of its storage (`operations`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from ebbtide.errors import NotFound
from ebbtide.gc.collector import Collector
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.report import RunReport
from tests.simulation.bucket import COPY_PREFIX, LAKE_PREFIX, ON_COPY, SimulatedBucket
from tests.simulation.choosing import Chances, Nothing
from tests.simulation.scheduler import Scheduler, Violation

COPY: Final = COPY_PREFIX.rstrip("/")


@dataclass(slots=True)
class KnownRuns:
    """The runs that answers named. `aside` are those that were to move aside what they take,
    `copied_aside` those of them that the copy has too; None without a copy."""

    runs: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    copied_aside: list[str] | None = None


class RepositoryWorld(Protocol):
    """A world with a repository, and perhaps a copy of it."""

    scheduler: Scheduler
    bucket: SimulatedBucket

    def collector(self, *, on_copy: bool = False, **options: Any) -> Collector:
        """The collector of the repository, or of its copy."""

    def copy(self) -> None:
        """What the repository has beside its files is copied too."""


@dataclass(slots=True, kw_only=True)
class RunAct(Chances):
    """An operation of a run under way."""

    world: RepositoryWorld
    known: KnownRuns
    quarantine: timedelta

    def planned(self, plan: Plan | RunReport) -> None:
        """A plan is there."""
        self.known.runs.append(plan.run_id)

    @abstractmethod
    def told(self, report: RunReport) -> str:
        """What a run said, and whether that may be."""

    @property
    def options(self) -> dict[str, Any]:
        """Those of this run."""
        return {"quarantine": (None, self.quarantine)[self.numbers[0] % 2]}


A = TypeVar("A", bound=RunAct)


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
    """Plan alone."""
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
    """Undo a run."""
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


OPERATIONS: Final[Mapping[str, Callable[[Any], object]]] = {
    "run": run,
    "run aside": run_aside,
    "plan": plan,
    "sweep": sweep,
    "undo": undo,
    "purge aside": purge_aside,
    "copy repository": copy_repository,
    ON_COPY: on_copy,
    "move": move,
}

INSTEAD: Final[Mapping[str, str]] = {
    "sweep": "run aside",
    "undo": "run aside",
    "purge aside": "run aside",
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
