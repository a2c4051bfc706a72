"""A run over a gone repository that kills its own process: a program of `tests.support.forking`.

`moment` and `where` are those of `killed_run`; or `rows`, where the rows of the database are about
to be deleted.
"""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from pathlib import Path

from ebbtide.gc.sweeping import outcomes
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.gc.killed_run import Kill
from tests.support.clock import ManualClock
from tests.support.faulty import SharedFaultyStorage
from tests.support.gone import gone_repository, remover
from tests.support.world import World


class LeftWorld(World):
    """The store that another world left in `directory`, of which nobody can open `lake`."""

    def __init__(self, directory: Path, *, now: datetime) -> None:
        self.clock = ManualClock(now)
        self.settings = Settings(run_heartbeat=timedelta(hours=1))
        self.directory = directory
        self.store = Store.open(directory / "store", settings=self.settings, clock=self.clock)
        self.root = directory / "store" / "storage" / "lake"


def main(store: str, now: str, repository_id: str, moment: str, where: str) -> None:
    """Run until the kill."""
    world = LeftWorld(Path(store), now=datetime.fromisoformat(now))
    repository = gone_repository(world.store, repository_id)
    if moment in ("before", "after"):
        kill = Kill(os.getpid(), "driver", where)
        repository.storage = SharedFaultyStorage(repository.storage, **{moment: kill})
        outcomes.ADDRESSES_PER_BATCH = 1  # type: ignore[misc]

    def observe(step: str, event: str) -> None:
        if (event, step) == (moment, where):
            os.kill(os.getpid(), signal.SIGKILL)

    collector = remover(world.store, repository, observer=observe)
    if moment == "rows":
        repository.drop_rows = lambda _hold: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
    collector.run()
