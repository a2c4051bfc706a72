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
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import results
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
        with suppress(psutil.NoSuchProcess, OSError):
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            # A child that has ended, and for which nobody has waited, has no memory.
            for high in (line.split()[1] for line in lines if line.startswith("VmHWM")):
                found[f"{child.name()} ({number})"] = int(high) / 1024
    return found


@contextmanager
def measured(what: str) -> Iterator[dict[str, float]]:
    """Prints what a block takes. Yields its figures, which are complete when it has ended."""
    found: dict[str, float] = {}
    start, began = processor_seconds(), time.monotonic()
    yield found
    found["cpu_seconds"] = processor_seconds() - start
    found["seconds"] = time.monotonic() - began
    print(
        f"{what}: {found['cpu_seconds']:.1f} processor seconds, {found['seconds']:.1f} s, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def check(report: RunReport, deleted: int | None = None) -> None:
    """Prints the steps of a plan or sweep. Ends the program if it failed, or if it deleted another
    number of files."""
    if report.error is not None:
        raise SystemExit(str(report.error))
    print("  " + ", ".join(f"{step} {spent:.1f} s" for step, spent in report.seconds.items()))
    if deleted is not None:
        count = report.counts["deleted"].objects
        if count != deleted:
            raise SystemExit(f"{count:,} files deleted, not {deleted:,}")
        print(f"  {count:,} files deleted")


def collect(directory: Path, master: str, deleted: int | None = None) -> dict[str, Any]:
    """Lists and plans; also sweeps, if the number of files that it must delete is given. Returns
    the figures."""
    engine = make_engine(SETTINGS, master, Hidden())
    found: dict[str, Any] = {"master": master}
    with Store.open(directory, settings=SETTINGS, clock=LateClock()) as store:
        context = store.repository("lake").context
        next(iter(context.storage.list()))  # loads what the first listing loads
        with measured("listing alone") as found["listing"]:
            found["files"] = sum(batch.num_rows for batch in context.storage.list())
        options = RunOptions.of(SETTINGS, grace=timedelta(hours=1), mode="clean")
        repository = EmbeddedRepository(context, store_id=store.store_id)
        collector = Collector(repository, engine=engine, options=options)
        with measured(f"plan of {found['files']:,} files, --master {master}") as found["plan"]:
            planned = collector.plan()
        check(planned)
        if deleted is not None:
            with measured(f"sweep, --master {master}") as found["sweep"]:
                swept = collector.sweep(planned.run_id)
            check(swept, deleted)
            found["deleted"] = deleted
    found["peaks_mib"] = peaks_mib()
    print(
        "  peak memory: " + ", ".join(f"{of} {m:.0f} MiB" for of, m in found["peaks_mib"].items())
    )
    return found


def in_process(directory: Path, master: str, deleted: int | None = None) -> dict[str, Any]:
    """Runs `collect` in a new process. Ends the program if it fails."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(collect, directory, master, deleted).result()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collections", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--ended", type=int, default=10)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--master")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Reads the arguments and measures."""
    asked = parsed(arguments)
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        directory = Path(scratch) / "store"
        with (
            Store.init(directory, settings=SETTINGS) as store,
            measured(f"making {asked.collections:,} collections of {asked.blocks} blocks"),
        ):
            fill(store.create_repository("lake"), asked.collections, asked.blocks, asked.ended)
        runs = {"the first plan": in_process(directory, NO_SPARK)}
        if asked.master is not None:
            runs["a plan on Spark"] = in_process(directory, asked.master)
        ended = -(-asked.collections // asked.ended)
        deleted = ended * (asked.blocks + OWN_FILES)
        runs["a plan and its sweep"] = in_process(directory, NO_SPARK, deleted)
    results.save(asked, {"collections": asked.collections, "blocks": asked.blocks, "runs": runs})


if __name__ == "__main__":
    main()
