"""Measures a run over collections of Arvados: plan and sweep, when a share of them has ended.

    .venv/bin/python -m benchmarks.arvados [--collections 10000] [--blocks 10] [--ended 10]
        [--directory DIR]

Writes blocks of 64 random bytes and makes collections of them in this process, as the server does.
Every `--ended`-th collection is deleted, and its time in the trash passes on a clock that the
benchmark sets. Another process then plans and sweeps, with the engine that needs no Spark. Prints
its processor seconds (user and system), its peak memory, and what it deleted. Prints also the
processor seconds of listing the same storage without doing anything, as the practical limit.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import resource
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from ebbtide.clock import SystemClock
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.none import LocalEngine
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository

HOLDER = "EBBTBENCHMARK"
LATER = timedelta(hours=6)
SETTINGS = Settings(lease_ttl=timedelta(hours=1), trash_time=timedelta(0), share_max=1.0)


class LateClock(SystemClock):
    """All clocks, ahead by the same time. SQLite has the host's clock."""

    def host_now(self) -> datetime:
        """Returns this machine's time, UTC, and the time by which it is ahead."""
        return super().host_now() + LATER

    def storage_time(self, last_modified: datetime) -> datetime:
        """Returns the storage's time, UTC, and the time by which it is ahead."""
        return super().storage_time(last_modified) + LATER


def fill(lake: Repository, collections: int, blocks: int, ended: int) -> None:
    """Makes the collections, and deletes a share of them."""
    project_id = lake.projects.create("samples").project_id
    drawn = random.Random(1)
    for number in range(collections):
        locators = []
        for _ in range(blocks):
            data = drawn.randbytes(64)
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            locators.append(lake.blocks.put(md5, data, holder=HOLDER))
        text = f". {' '.join(locators)} 0:{64 * blocks}:file\n"
        made = lake.arvados_collections.create(
            project_id, f"sample {number:07d}", text, holder=HOLDER
        )
        if number % ended == 0:
            lake.arvados_collections.delete(made.listed.uuid)


def processor_seconds() -> float:
    """Returns the processor seconds of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def collect(directory: Path) -> None:
    """Plans and sweeps, and prints the figures."""
    with Store.open(directory, settings=SETTINGS, clock=LateClock()) as store:
        context = store.repository("lake").context
        next(iter(context.storage.list()))  # loads what the first listing loads
        start = processor_seconds()
        listed = sum(batch.num_rows for batch in context.storage.list())
        limit = processor_seconds() - start
        options = RunOptions.of(SETTINGS, grace=timedelta(hours=1), mode="clean")
        found = EmbeddedRepository(context, store_id=store.store_id)
        collector = Collector(found, engine=LocalEngine(), options=options)
        start = processor_seconds()
        planned = collector.plan()
        plan = processor_seconds() - start
        assert planned.error is None, planned.error
        swept = collector.sweep(planned.run_id)
        sweep = processor_seconds() - start - plan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{listed:,} files; listing them: {limit:.1f} processor seconds")
    print(f"plan: {plan:.1f} processor seconds, {plan / limit:.1f} x the listing")
    print(f"sweep: {sweep:.1f} processor seconds, {sweep / limit:.1f} x the listing")
    assert swept.error is None, swept.error
    deleted = swept.counts["deleted"]
    print(f"peak memory of the process: {peak:.0f} MiB; {deleted.objects:,} files deleted")


def main() -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collections", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--ended", type=int, default=10)
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        directory = Path(scratch) / "store"
        with Store.init(directory, settings=SETTINGS) as store:
            start, began = processor_seconds(), time.monotonic()
            fill(store.create_repository("lake"), asked.collections, asked.blocks, asked.ended)
            filled, lasted = processor_seconds() - start, time.monotonic() - began
        print(
            f"{asked.collections:,} collections of {asked.blocks} blocks: made in {filled:.0f} "
            f"processor seconds, {lasted:.0f} s"
        )
        process = multiprocessing.get_context("spawn").Process(target=collect, args=(directory,))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
