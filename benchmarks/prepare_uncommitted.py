"""Measures the preparation of all uncommitted data: many staged objects on many branches.

    .venv/bin/python -m benchmarks.prepare_uncommitted [--objects 5000000 --branches 1000]
        [--directory DIR] [--database-url URL]

Fills the database of a store with staged rows. This takes a while, and is not part of the figure. A
directory that was filled before is used again. Then a fresh process opens the store, reads all
uncommitted data and writes it as Parquet parts. Prints the ratio to the bare database: the same
addresses, fetched through the driver alone and thrown away.

With a URL of PostgreSQL the database must be empty, or the one with which the directory was filled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import measuring, results
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.uncommitted import write_protected
from ebbtide.ids import descending_id
from ebbtide.model import ONE_MICROSECOND
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from ebbtide.store.content.layout import new_object_address
from ebbtide.store.database.dialects import database_file
from ebbtide.store.database.engine import Transaction
from ebbtide.store.embedded import Store
from ebbtide.store.refs.ref_rows import BranchRow, insert_branch
from ebbtide.store.repository import Repository

SEED = 20_240_607
START = datetime(2024, 6, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROUNDS = 10
"""The number of turns in which each branch is written to: rows of a branch are not all
neighbours."""
SLICE_OBJECTS = 50_000
ROWS_PER_FETCH = 50_000
REPOSITORY = "lake"
STAGED_COLUMNS = (
    *("repository_id", "token", "path", "address"),
    *("size_bytes", "checksum", "mtime", "content_type", "metadata"),
)
"""The written columns of staged rows. The others are about shared and replaced addresses, and there
are none."""


def fill(directory: Path, database_url: str | None, *, objects: int, branches: int) -> None:
    """Makes a store whose branches have `objects` staged rows, without their files."""
    with Store.init(directory, settings=Settings(database_url=database_url)) as store:
        lake = store.create_repository(REPOSITORY)
        rng = random.Random(SEED)
        tokens = [f"{rng.getrandbits(128):032x}" for _ in range(branches)]
        main = lake.branches.get("main")
        for number, token in enumerate(tokens):
            with store.metadata.transaction() as tx:
                name = f"branch-{number:05d}"
                row = BranchRow(
                    branch_id=f"{number:032x}",
                    name=name,
                    commit_id=main.commit_id,
                    staging_token=token,
                    created_at=START,
                    expires_at=None,
                )
                insert_branch(tx, lake.info.repository_id, row)
        for turn in range(ROUNDS):
            with store.metadata.transaction() as tx:
                insert_staged(tx, rows(lake, tokens, rng, turn=turn, objects=objects))


def rows(
    lake: Repository, tokens: list[str], rng: random.Random, *, turn: int, objects: int
) -> Iterator[tuple[Any, ...]]:
    """Yields the staged rows of one turn, in the order of STAGED_COLUMNS."""
    instant = START + timedelta(hours=turn)
    first, last = objects * turn // ROUNDS, objects * (turn + 1) // ROUNDS
    per_branch = -(-(last - first) // len(tokens))
    slice_id = ""
    for number in range(first, last):
        if (number - first) % SLICE_OBJECTS == 0:
            slice_id = descending_id(instant)
        instant += timedelta(microseconds=rng.randrange(1, 5000))
        yield (
            lake.info.repository_id,
            tokens[(number - first) // per_branch],
            f"tables/table-{rng.randrange(50):02d}/part-{number:08d}.parquet",
            new_object_address(slice_id, number),
            rng.randrange(1 << 30),
            f"{rng.getrandbits(256):064x}",
            (instant - EPOCH) // ONE_MICROSECOND,
            "application/octet-stream",
            "{}",
        )


def insert_staged(tx: Transaction, values: Iterator[tuple[Any, ...]]) -> None:
    """Inserts staged rows directly through the driver, which is the fastest way."""
    names = ", ".join(STAGED_COLUMNS)
    cursor: Any = tx.connection.connection.cursor()  # the driver's own
    if tx.in_process:
        marks = ", ".join("?" for _ in STAGED_COLUMNS)
        cursor.execute("PRAGMA cache_size = -2000000")
        cursor.executemany(f"INSERT INTO staged ({names}) VALUES ({marks})", values)
    else:
        with cursor.copy(f"COPY staged ({names}) FROM STDIN") as copy:
            for row in values:
                copy.write_row(row)


def prepare(directory: Path, database_url: str | None, target: Path) -> dict[str, Any]:
    """Opens the store, reads the uncommitted data and writes its parts. Returns the figures. Called
    in a process of its own."""
    started = time.monotonic()
    with Store.open(directory, settings=Settings(database_url=database_url)) as store:
        lake = store.repository(REPOSITORY)
        folder = RunFolder(open_storage(str(target)), "run/")
        repository = EmbeddedRepository(lake.context, store_id=store.store_id)
        with repository.reading(datetime.now(UTC)) as reading:
            parts = write_protected(folder, reading.protected(), name="uncommitted")
        seconds = time.monotonic() - started
        sizes = [(target / "run" / str(part.name)).stat().st_size for part in parts]
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
        "rows": [part.rows for part in parts],
        "sizes": sizes,
        "rss_bytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def bare_select(directory: Path, database_url: str | None) -> tuple[float, int]:
    """Fetches the same addresses without anything else. Returns the seconds and the number."""
    query = "SELECT address FROM staged"
    started = time.monotonic()
    count = 0
    if database_url is None or database_url.startswith("sqlite"):
        with Store.open(directory, settings=Settings(database_url=database_url)) as store:
            file = database_file(store.metadata.engine)
        assert file is not None
        started = time.monotonic()
        lite = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        lite_cursor = lite.execute(query)
        while found := lite_cursor.fetchmany(ROWS_PER_FETCH):
            count += len(found)
        lite.close()
    else:
        plain = database_url.replace("postgresql+psycopg:", "postgresql:")
        with psycopg.connect(plain) as server, server.cursor("bare") as cursor:
            cursor.execute(query)
            while batch := cursor.fetchmany(ROWS_PER_FETCH):
                count += len(batch)
    return time.monotonic() - started, count


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objects", type=int, default=5_000_000)
    parser.add_argument("--branches", type=int, default=1_000)
    parser.add_argument("--directory", type=Path, help="the store: filled if it is not there")
    parser.add_argument("--database-url", help="PostgreSQL; without it, SQLite in the directory")
    parser.add_argument("--only", choices=("prepare", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Fills the store, prepares in a process of its own, compares and prints."""
    options = parsed(arguments)
    if options.only == "prepare":
        print(json.dumps(prepare(options.directory, options.database_url, options.target)))
        return
    if options.only == "bare":
        print(json.dumps(bare_select(options.directory, options.database_url)))
        return
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory = options.directory or Path(temporary) / "store"
        if not directory.exists():
            started = time.monotonic()
            fill(
                directory,
                options.database_url,
                objects=options.objects,
                branches=options.branches,
            )
            print(f"filled in {time.monotonic() - started:.0f} s")
        found = report(directory, options.database_url, Path(temporary) / "target")
    results.save(options, found)


def report(directory: Path, database_url: str | None, target: Path) -> dict[str, Any]:
    """Measures and prints. Returns the figures."""
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    figures = in_fresh_process("prepare", directory, database_url, target)
    limit, expected = in_fresh_process("bare", directory, database_url, target)
    seconds, count = figures["seconds"], sum(figures["rows"])
    if count != expected:
        raise SystemExit(f"{count:,} addresses, not {expected:,}")
    print(f"{count:,} addresses in {seconds:.1f} s ({figures['cpu_seconds']:.1f} s of processor)")
    print(f"  {count / seconds:,.0f} a second, peak {figures['rss_bytes_max'] / 2**20:.0f} MiB")
    for rows_count, size in zip(figures["rows"], figures["sizes"], strict=True):
        print(f"  part of {rows_count:>9,} rows, {size / 1e6:5.1f} MB")
    print(f"bare SELECT of the addresses: {limit:.1f} s, ratio {seconds / limit:.1f}")
    return {"addresses": count, "limit_seconds": limit, **figures}


def in_fresh_process(
    what: str, directory: Path, database_url: str | None, target: Path
) -> Any:  # what the step prints, from JSON
    """Runs one step in a process of its own, so that its memory is its own. Returns its output."""
    command = [*measuring.itself("prepare_uncommitted"), "--only", what]
    command += ["--directory", str(directory), "--target", str(target)]
    if database_url is not None:
        command += ["--database-url", database_url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
