"""A collector run that kills its own process, or one that it works with: a program of
`tests.support.forking`.

`engine` names the engine of the run, and `action` is `plan` or `sweep`. `moment` and `where` say
when a process dies. With `start STEP` or `end STEP` the driver dies. With `before` or `after` and
an address, the process that deletes the address kills the `victim` and waits for its own end. It
does so before it calls the storage, or before it records the outcome. Deletes go one by one. A
driver that survives writes the error of its run beside the store (`ERROR_SUFFIX`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import psutil

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import deletes
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from tests.support.copies import OpenedWorld
from tests.support.engines import ENGINES
from tests.support.faulty import SharedFaultyStorage
from tests.support.histories import GRACE

WAIT_SECONDS = 120
ERROR_SUFFIX: Final = ".error"

Victim = Literal["driver", "jvm", "worker"]
"""`worker`: the process that deletes, where that is one of Spark's."""


@dataclass(frozen=True)
class Kill:
    """A picklable hook of a storage that kills the victim where the address goes."""

    driver: int
    victim: Victim
    address: str

    def __call__(self, method: str, address: str) -> None:
        if method in ("delete", "replace") and self.address in address.split():
            os.kill(self._pid(), signal.SIGKILL)
            time.sleep(WAIT_SECONDS)
            raise AssertionError(f"this process outlived the {self.victim}")

    def _pid(self) -> int:
        if self.victim == "worker":
            return os.getpid()
        if self.victim == "driver":
            return self.driver
        started = psutil.Process(self.driver).children()
        (jvm,) = (each for each in started if "java" in each.name())
        return jvm.pid


def main(
    store: str,
    now: str,
    engine: str,
    action: str,
    moment: str,
    where: str,
    victim: Victim = "driver",
) -> None:
    world = OpenedWorld(Path(store), now=datetime.fromisoformat(now))
    repository: EmbeddedRepository = world.format()
    if moment in ("before", "after"):
        kill = Kill(os.getpid(), victim, where)
        repository.storage = SharedFaultyStorage(repository.storage, **{moment: kill})
        deletes.ADDRESSES_PER_BATCH = 1  # type: ignore[misc]

    def observe(step: str, event: str) -> None:
        if (event, step) == (moment, where):
            os.kill(os.getpid(), signal.SIGKILL)

    collector = Collector(
        repository,
        engine=ENGINES[engine],
        options=RunOptions.of(world.settings, grace=GRACE),
        observer=observe,
    )
    report = collector.plan() if action == "plan" else collector.sweep()
    Path(f"{store}{ERROR_SUFFIX}").write_text(json.dumps(report.error))
