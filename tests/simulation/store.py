"""The store as a stage of histories."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.gc.report import RunReport
from ebbtide.purge.purger import Purges
from ebbtide.store.reclaimer import Reclaimer
from tests.simulation.acting import Act
from tests.simulation.histories import Step
from tests.simulation.knowledge import Checker, Known
from tests.simulation.leaving import require_none_left
from tests.simulation.looking import require_all_readable
from tests.simulation.operations import perform
from tests.simulation.projects import check_all
from tests.simulation.scheduler import Scheduler, Violation
from tests.simulation.simulation import Simulation, simulating
from tests.simulation.stage import Stage
from tests.simulation.vocabulary import STORE
from tests.simulation.world import SETTLED, Process, State, World, open_world


class StoreStage(Stage[Known]):
    """Servers and programs over one database and one bucket."""

    vocabulary = STORE

    world: World

    @property
    def empty(self) -> State:
        return self.world.empty

    def knowing(self) -> Known:
        return Known()

    def perform(self, step: Step, known: Known) -> object:
        """See `Stage.perform`. Processes 0 and 1 are servers, any other is one of its own."""
        world = self.world
        is_server = step.process < len(world.servers)
        process = world.servers[step.process] if is_server else Process(world, world.database)
        act = Act(
            world=world,
            known=known,
            process=process,
            number=step.number,
            numbers=step.numbers,
        )
        try:
            answer = perform(step.name, act)
        except EbbtideError as error:
            act.check(error)
            raise
        act.check(None)
        return answer

    def check(self, known: Known) -> None:
        Checker(self.world, known).check()

    def check_end(self, known: Known) -> None:
        """See `Stage.check_end`: repositories can be used."""
        Checker(self.world, known).check_owners()

    def settle(self, known: Known) -> None:
        if not known.copied_run:
            checker = Checker(self.world, known)
            if not known.purged_paths:
                for repository_id in known.repositories:
                    require_all_readable(checker, repository_id)
                    check_all(checker, Process(self.world, self.world.database).lake())
            clean_up(self.world, self.world.scheduler, checker)


def clean_up(world: World, scheduler: Scheduler, checker: Checker) -> None:
    """Let all times run out, and collect. Raises Violation for what is left or does not end."""
    process = Process(world, world.database)
    _end_purges(process, checker.known)
    late = world.bucket.late
    # Two incremental runs delete all but what was written too late: that waits for a clean run.
    for mode, may_stay in (("auto", None), ("auto", late), ("clean", set[str]())):
        world.clock.now += SETTLED
        process = Process(world, world.database)
        Reclaimer(process.store).once()
        for report in _last_runs(process, mode):
            scheduler.tell(f"in the end {report.run_id} {report.state} {report.error}")
            if report.state != "swept":
                raise Violation("end", f"the last run is {report.state}: {report.error}")
        checker.check()
        if may_stay is not None:
            require_none_left(checker, may_stay)


def _end_purges(process: Process, known: Known) -> None:
    """Whoever began a purge goes on with it."""
    purges = Purges(process.store)
    for purge_id in known.purges:
        try:
            purges.carry_out(purge_id)
        except EbbtideError:
            continue  # ended, refused, or of a repository that is no more


def _last_runs(process: Process, mode: str) -> Iterator[RunReport]:
    """Of the repository, and of one that is gone."""
    remover = process.remover()
    if remover is not None:
        yield remover.run()
    try:
        collector = process.collector(mode=mode)
    except EbbtideError:
        return
    yield collector.run()


@contextmanager
def open_simulation() -> Iterator[Simulation]:
    """A simulation of the store in memory."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=place) as directory,
        open_world(Path(directory)) as world,
        simulating(StoreStage(world)) as made,
    ):
        yield made
