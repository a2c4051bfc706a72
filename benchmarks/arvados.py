"""Measures a run over collections of Arvados: plan and sweep, when a share of them has ended.

    .venv/bin/python -m benchmarks.arvados [--collections 100000] [--blocks 10] [--ended 10]
        [--directory DIR] [--master "local[2]"]

Fills a new store below `DIR` with blocks of 64 random bytes and collections of them, straight into
tables and storage (`arvados_store`). Every `--ended`-th collection is in the trash, and its time
there passes on a clock that the benchmark sets. Then come, each in a process of its own, a plan of
a store without an address index, a plan on Spark if `--master` names one, and a plan and its sweep.
The first and the last use the engine that needs no Spark.

Prints the processor seconds (user and system, of the process and all that it started), the wall
time with the machine's load, the peak memory, and what was deleted. Prints also the processor
seconds of listing the same storage without doing anything, as the practical limit. Fails if a run
deletes another number of files than it should.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

from benchmarks.arvados_store import fill
from ebbtide.api.engines import Hidden, make_engine
from ebbtide.clock import SystemClock
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.processes import NO_SPARK
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store

LATER: Final = timedelta(hours=6)
SETTINGS: Final = Settings(lease_ttl=timedelta(hours=1), trash_time=timedelta(0), share_max=1.0)
OWN_FILES: Final = 3
"""The files of a collection besides its blocks: the manifest, and a tree of one range."""


class LateClock(SystemClock):
    """All clocks, ahead by the same time. SQLite has the host's clock."""

    def host_now(self) -> datetime:
        """Returns this machine's time, UTC, and the time by which it is ahead."""
        return super().host_now() + LATER

    def storage_time(self, last_modified: datetime) -> datetime:
        """Returns the storage's time, UTC, and the time by which it is ahead."""
        return super().storage_time(last_modified) + LATER


def processor_seconds() -> float:
    """Returns the processor seconds, user and system, of this process and of its children."""
    process = psutil.Process()
    found = [process.cpu_times()]
    found += [child.cpu_times() for child in process.children(recursive=True)]
    return sum(
        each.user + each.system + each.children_user + each.children_system for each in found
    )


def peaks_mib() -> dict[str, float]:
    """Returns the peak memory (MiB) of this process, and of each child that is alive, by name."""
    found = {"the process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    for number, child in enumerate(psutil.Process().children(recursive=True), 1):
        status = Path(f"/proc/{child.pid}/status").read_text()
        high = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        found[f"{child.name()} ({number})"] = int(high) / 1024
    return found


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Prints what a block takes."""
    start, began = processor_seconds(), time.monotonic()
    yield
    used, lasted = processor_seconds() - start, time.monotonic() - began
    print(f"{what}: {used:.1f} processor seconds, {lasted:.1f} s, load {os.getloadavg()[0]:.1f}")


def show(report: RunReport) -> None:
    """Prints the steps of a plan or sweep. Raises AssertionError if it failed."""
    assert report.error is None, report.error
    print("  " + ", ".join(f"{step} {spent:.1f} s" for step, spent in report.seconds.items()))


def collect(directory: Path, master: str, deleted: int | None) -> None:
    """Lists and plans; also sweeps, if the number of files that it must delete is given."""
    engine = make_engine(SETTINGS, master, Hidden())
    with Store.open(directory, settings=SETTINGS, clock=LateClock()) as store:
        context = store.repository("lake").context
        next(iter(context.storage.list()))  # loads what the first listing loads
        with measured("listing alone"):
            listed = sum(batch.num_rows for batch in context.storage.list())
        options = RunOptions.of(SETTINGS, grace=timedelta(hours=1), mode="clean")
        found = EmbeddedRepository(context, store_id=store.store_id)
        collector = Collector(found, engine=engine, options=options)
        with measured(f"plan of {listed:,} files, --master {master}"):
            planned = collector.plan()
        show(planned)
        if deleted is not None:
            with measured(f"sweep, --master {master}"):
                swept = collector.sweep(planned.run_id)
            show(swept)
            count = swept.counts["deleted"].objects
            assert count == deleted, (count, deleted)
            print(f"  {count:,} files deleted")
    print("  peak memory: " + ", ".join(f"{of} {mib:.0f} MiB" for of, mib in peaks_mib().items()))


def in_process(directory: Path, master: str, deleted: int | None = None) -> None:
    """Runs `collect` in a new process. Ends the program if it fails."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=collect, args=(directory, master, deleted))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(process.exitcode)


def main(arguments: list[str] | None = None) -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collections", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--ended", type=int, default=10)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--master")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        directory = Path(scratch) / "store"
        with (
            Store.init(directory, settings=SETTINGS) as store,
            measured(f"making {asked.collections:,} collections of {asked.blocks} blocks"),
        ):
            fill(store.create_repository("lake"), asked.collections, asked.blocks, asked.ended)
        in_process(directory, NO_SPARK)
        if asked.master is not None:
            in_process(directory, asked.master)
        ended = -(-asked.collections // asked.ended)
        in_process(directory, NO_SPARK, ended * (asked.blocks + OWN_FILES))


if __name__ == "__main__":
    main()
