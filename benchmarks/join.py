"""Measures the anti-join of a plan by itself: listed keys less kept keys, in Parquet.

    python -m benchmarks.join [--listed 20] [--kept 35] [--left 1.4] [--directory DIR]
        [--ways ours native duckdb none] [--partitions 64]

The three numbers are in millions. Each way is a program of its own, from its start to its end, and
must find the same number of rows:

    ours     as a plan does it: Python reads parts in Spark's tasks, Spark joins
    native   Spark reads Parquet itself, with a shuffled hash join and the best settings that were
             found; the difference is the cost of the way through Python
    none     the code of `ours`, in one process without Spark
    duckdb   DuckDB, on as many threads as there are cores; it exchanges nothing

Keys are random, in files of a million rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import measuring, results

ROWS: Final = 1_000_000
WAYS: Final = ("ours", "native", "none", "duckdb")
LISTED: Final = pa.schema([("key", pa.int64()), ("part", pa.int32()), ("row", pa.int32())])
KEPT: Final = pa.schema([("key", pa.int64())])
MEMORY: Final = "8g"


def make(directory: Path, listed: int, kept: int, left: int) -> None:
    """Writes both sides, unless they exist: `left` of the listed keys are not kept."""
    done = directory / "done"
    if done.exists():
        return
    rng = np.random.default_rng(1)
    for side in ("listed", "kept"):
        (directory / side).mkdir(parents=True, exist_ok=True)
    # Odd keys are kept and even ones are not, so that the number left is exact.
    common = listed - left
    kept_keys = rng.integers(-(2**62), 2**62, kept, dtype=np.int64) * 2 + 1
    listed_keys = np.concatenate(
        [kept_keys[:common], rng.integers(-(2**62), 2**62, left, dtype=np.int64) * 2]
    )
    rng.shuffle(listed_keys)
    rng.shuffle(kept_keys)
    for number, start in enumerate(range(0, listed, ROWS)):
        keys = listed_keys[start : start + ROWS]
        rows = np.arange(len(keys), dtype=np.int32)
        parts = np.full(len(keys), number, np.int32)
        table = pa.table([keys, parts, rows], schema=LISTED)
        _write(directory / "listed" / f"{number:05d}.parquet", table)
    for number, start in enumerate(range(0, kept, ROWS)):
        table = pa.table([kept_keys[start : start + ROWS]], schema=KEPT)
        _write(directory / "kept" / f"{number:05d}.parquet", table)
    done.touch()


def _write(target: Path, table: pa.Table) -> None:
    pq.write_table(table, target, compression="zstd", use_dictionary=False)


def ours(directory: Path, partitions: int, *, spark: bool = True) -> int:
    """Returns the number of rows that are left, by a plan's own engines."""
    from ebbtide.gc.candidates import NOT_COMMITTED
    from ebbtide.gc.engines.base import Batches, Engine
    from ebbtide.gc.engines.duckdb import DuckEngine

    engine: Engine = DuckEngine()
    if spark:
        from ebbtide.gc.engines.spark.engine import SparkEngine
        from ebbtide.gc.engines.spark.session import launch

        session = launch(master="local[*]", driver_memory=MEMORY).session()
        engine = SparkEngine(lambda: session)
    files = {side: sorted(map(str, (directory / side).iterdir())) for side in ("listed", "kept")}
    engine.expect(partitions * 500_000)

    def read(name: str) -> Batches:
        yield from pq.read_table(name, use_threads=False).to_batches(50_000)

    def count(batches: Batches) -> Batches:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch([pa.array([rows], pa.int64())], schema=KEPT)

    listed = engine.rows(files["listed"], read, LISTED)
    kept = engine.rows(files["kept"], read, KEPT)
    found = engine.query(NOT_COMMITTED, store=listed, committed=kept).map(count, KEPT).collect()
    return sum(found.column("key").to_pylist())  # type: ignore[arg-type]


def native(directory: Path, partitions: int) -> int:
    """Returns the number of rows that are left, by Spark's own reader and join."""
    from ebbtide.gc.engines.spark.session import launch

    spark = launch(
        master="local[*]",
        driver_memory=MEMORY,
        conf={
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "true",
            "spark.sql.codegen.factoryMode": "FALLBACK",
        },
    ).session()
    listed = spark.read.parquet(str(directory / "listed"))
    kept = spark.read.parquet(str(directory / "kept"))
    return listed.join(kept.hint("shuffle_hash"), "key", "left_anti").count()


def in_duckdb(directory: Path, partitions: int) -> int:
    """Returns the number of rows that are left, by DuckDB."""
    import duckdb

    del partitions
    with duckdb.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM read_parquet($listed) ANTI JOIN read_parquet($kept) USING (key)",
            {side: str(directory / side / "*.parquet") for side in ("listed", "kept")},
        ).fetchone()
    assert row is not None
    return int(row[0])


DO: Final[dict[str, Callable[[Path, int], int]]] = {
    "ours": ours,
    "native": native,
    "none": lambda directory, partitions: ours(directory, partitions, spark=False),
    "duckdb": in_duckdb,
}


def measure(way: str, directory: Path, partitions: int) -> dict[str, float]:
    """Runs the join in one way, as a program. Returns the seconds of the program and of the join,
    and the peak memory of all its processes in MiB."""
    command = [*measuring.itself("join"), "--do", way]
    command += ["--directory", str(directory), "--partitions", str(partitions)]
    started = time.monotonic()
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        while program.poll() is None:
            peak = max(peak, _memory(program.pid))
            time.sleep(0.1)
        assert program.stdout is not None
        told: dict[str, float] = json.loads(program.stdout.read().splitlines()[-1])
    return told | {
        "program_seconds": round(time.monotonic() - started, 1),
        "peak_mib": round(peak / 2**20),
    }


def _memory(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        return sum(process.memory_info().rss for process in processes)
    except psutil.Error:
        return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listed", type=float, default=20.0)
    parser.add_argument("--kept", type=float, default=35.0)
    parser.add_argument("--left", type=float, default=1.4)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--do", choices=WAYS)
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measures the given ways; or, with `--do`, carries out one of them."""
    given = parsed(arguments)
    if given.do is not None:
        started = time.monotonic()
        left = DO[given.do](given.directory, given.partitions)
        print(json.dumps({"left": left, "seconds": round(time.monotonic() - started, 1)}))
        return
    with tempfile.TemporaryDirectory(prefix="ebbtide-join-") as made:
        directory = given.directory or Path(made)
        counts = [int(each * 1e6) for each in (given.listed, given.kept, given.left)]
        make(directory, *counts)
        found = {}
        for way in given.ways:
            found[way] = measure(way, directory, given.partitions)
            print(f"{way:8} {found[way]}", flush=True)
            if found[way]["left"] != counts[2]:
                raise SystemExit(f"{way}: another number of rows than {counts[2]:,}")
        if {"ours", "native"} <= found.keys():
            ratio = found["ours"]["seconds"] / found["native"]["seconds"]
            print(f"ours / native: {ratio:.2f}")
        shape = dict(zip(("listed", "kept", "left"), counts, strict=True))
        results.save(given, {**shape, "ways": found})


if __name__ == "__main__":
    main()
