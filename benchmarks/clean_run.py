"""A clean run over many real, small files on a local directory, against the bare storage.

    .venv/bin/python benchmarks/clean_run.py [--files 200000 --commits 1000 --branches 20]

Builds a store through its own API. This takes a while, and is not part of the figure. Then runs
`ebbtide gc run` as a program of its own. Prints the wall time with Spark's start, the peak memory
of the driver's process and of Spark's, and the ratio to the bare storage. The bare storage is the
time to list the same tree and delete as many files, with only the operating system's calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject

SEED = 20_240_607
YEAR = timedelta(days=365)
KEEP = timedelta(days=30)


@dataclass(slots=True)
class Peaks:
    """The peak resident memory, in bytes, of the program itself and of the JVM that it started."""

    python: int = 0
    jvm: int = 0

    def sample(self, process: psutil.Process) -> None:
        """Looks at the process and its children now."""
        with contextlib.suppress(psutil.Error):
            self.python = max(self.python, process.memory_info().rss)
            for child in process.children(recursive=True):
                if child.name() == "java":
                    self.jvm = max(self.jvm, child.memory_info().rss)


def build(directory: Path, *, files: int, commits: int, branches: int) -> Repository:
    """Makes a year of history. Commits overwrite and add files, and every third one deletes some.
    Branches leave main at even intervals."""
    rng = random.Random(SEED)
    store = Store.init(directory, settings=Settings(lease_ttl="0s", trash_time="0s"))
    lake = store.create_repository("lake")
    names = ["main", *(f"branch-{number:02d}" for number in range(1, branches))]
    paths: dict[str, list[str]] = {"main": []}
    start = datetime.now(UTC) - YEAR
    per_commit = files // commits
    for number in range(commits):
        name = names[number * branches // commits]
        if number and rng.random() < 0.6:
            name = "main"
        if name not in paths:
            lake.branches.create(name, "main")
            paths[name] = list(paths["main"])
        mine = paths[name]
        fresh = [f"table-{rng.randrange(50):02d}/{number:05d}-{i:04d}" for i in range(per_commit)]
        old = rng.sample(mine, min(len(mine), per_commit // 2))
        lake.objects.put_many(name, uploads(fresh[: per_commit // 2] + old))
        if number % 3 == 2:
            gone = rng.sample(mine, min(len(mine), per_commit // 4))
            lake.objects.delete_many(name, sorted(set(gone) - set(old)))
            paths[name] = mine = sorted(set(mine) - (set(gone) - set(old)))
        mine += fresh[: per_commit // 2]
        lake.commits.commit(name, f"commit {number}", date=start + YEAR * number / commits)
    lake.retention.set({"default": "30d"})
    return lake


def uploads(paths: list[str]) -> Iterator[NewObject]:
    """Yields small files, each with its own content."""
    for path in paths:
        yield NewObject(path, f"{path} {random.random()}".encode())


def collect(directory: Path) -> tuple[dict[str, Any], float, Peaks]:
    """Runs the program. Returns its report, its wall time in seconds, and its peak memory."""
    command = [
        *(str(Path(sys.executable).with_name("ebbtide")), "--store", str(directory)),
        *("gc", "run", "lake", "--yes", "--quarantine", "none", "--json"),
        *("--grace", "1s", "--unsafe", "--allow-share"),
    ]
    environment = {**os.environ, "EBBTIDE_LEASE_TTL": "0s", "EBBTIDE_TRASH_TIME": "0s"}
    peaks = Peaks()
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        process = psutil.Process(program.pid)
        while program.poll() is None:
            peaks.sample(process)
            time.sleep(0.1)
        assert program.stdout is not None
        report = json.loads(program.stdout.read())
    return report, time.monotonic() - started, peaks


def bare_storage(directory: Path, *, deleted: int) -> float:
    """Returns the seconds to list the storage and delete as many files, without anything else."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for number in range(deleted):
            (Path(scratch) / str(number)).write_bytes(b"x" * 40)
        started = time.monotonic()
        waiting = [str(directory)]
        while waiting:
            for entry in os.scandir(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
        for number in range(deleted):
            (Path(scratch) / str(number)).unlink()
        return time.monotonic() - started


def main() -> None:
    """Builds the store, runs the program, compares and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--commits", type=int, default=1_000)
    parser.add_argument("--branches", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="build here and leave it there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = options.keep or Path(temporary) / "store"
        started = time.monotonic()
        build(directory, files=options.files, commits=options.commits, branches=options.branches)
        print(f"built in {time.monotonic() - started:.0f} s")
        time.sleep(2)  # the grace is one second
        report, seconds, peaks = collect(directory)
        limit = bare_storage(directory / "storage", deleted=report["deleted_count"])
        print(f"state {report['state']}, {report['commits']}")
        for name in ("listed", "live", "candidate", "deleted"):
            print(f"  {name:<10}{report[f'{name}_count']:>10,} files")
        for name, spent in report["seconds"].items():
            print(f"  {name:<20}{spent:>8.2f} s")
        megabytes = f"Python {peaks.python / 2**20:.0f} MiB, JVM {peaks.jvm / 2**20:.0f} MiB"
        print(f"wall time, Spark's start included: {seconds:.1f} s")
        print(f"peak memory: {megabytes}")
        print(f"bare listing and deleting: {limit:.1f} s, ratio {seconds / limit:.1f}")


if __name__ == "__main__":
    main()
