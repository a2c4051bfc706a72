"""Measures plans, expiry and deletes of an Iceberg table, by Ebbtide and by other programs.

    python -m benchmarks.iceberg [--files 200000 --snapshots 500] [--spark DIR] [--directory DIR]

Writes a table (`iceberg_table`), which takes a while and is not part of the figures. In turns, on
the same table, each program lists the orphans: Ebbtide on both of its engines, Spark's procedure
`remove_orphan_files`, and a plain script on PyIceberg. Then Ebbtide and the procedures each expire
all snapshots but the newest one, and delete its orphans. For that, each has the table as it was, at
the same place: hard links of the same files.

Spark's procedures need an environment of their own: a directory with `bin/python` that has PySpark
4.1, and with two jars of Maven, `iceberg-spark-runtime-4.1_2.13` 1.12.0 and `sqlite-jdbc`. The
option `--spark` or the variable EBBTIDE_TEST_ICEBERG_SPARK names it. Without one they are left out.

Fails unless each program finds exactly the planted orphans, and leaves exactly the files that the
newest snapshot needs. Prints the wall time, the processor seconds and the peak memory of each
program with all its processes, from its start to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks import iceberg_peers, measuring, results
from benchmarks.iceberg_table import NAME, TABLE, Lake, Writer, local
from benchmarks.measuring import Measured, measure, mib
from ebbtide.arrow import texts

SPARK_VARIABLE: Final = "EBBTIDE_TEST_ICEBERG_SPARK"
PROCEDURES: Final = "Spark's procedures"
SCRIPT: Final = "a script on PyIceberg"
PLAN, DELETE = "list orphans", "expire and delete"
REPOSITORY: Final = f"iceberg:{NAME}"


@dataclass(slots=True)
class Table:
    """The figures of each program at each step, of all rounds."""

    found: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def add(self, step: str, program: str, *parts: Measured) -> None:
        """Adds and prints the figures of a program, which may have several commands."""
        peaks = max((each.peaks for each in parts), key=lambda each: each.tree)
        sums = (sum(each.seconds for each in parts), sum(each.cpu_seconds for each in parts))
        whole = Measured(sums[0], peaks, "", sums[1])
        self.found.setdefault((step, program), []).append(whole)
        print(
            f"{step:<20}{program:<24}{sums[0]:>8.1f} s{sums[1]:>8.1f} processor s"
            f"{mib(peaks.tree):>8,.0f} MiB   load {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Returns the medians, each beside that of Spark's procedures at the same step."""
        rows = []
        for (step, program), some in self.found.items():
            seconds = statistics.median(each.seconds for each in some)
            row = {
                "step": step,
                "program": program,
                "seconds": seconds,
                "cpu_seconds": (cpu := statistics.median(each.cpu_seconds for each in some)),
                "peak_mib": mib(max(each.peaks.tree for each in some)),
            }
            if theirs := self.found.get((step, PROCEDURES)):
                row["ratio"] = cpu / statistics.median(each.cpu_seconds for each in theirs)
                row["seconds_ratio"] = seconds / statistics.median(e.seconds for e in theirs)
            rows.append(row)
        return rows


@dataclass(slots=True)
class Programs:
    """Runs the programs on a table."""

    lake: Lake
    spark: Path | None
    engines: Sequence[str]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Ebbtide: the settings of the catalog for PyIceberg."""
        prefix = f"PYICEBERG_CATALOG__{NAME.upper()}__"
        given = {"URI": self.lake.uri, "WAREHOUSE": f"file://{self.lake.warehouse}", "TYPE": "sql"}
        return os.environ | {prefix + name: value for name, value in given.items()}

    def ours(self, *words: str) -> Measured:
        """Runs a command of Ebbtide."""
        return measure([measuring.PROGRAM, *words, "--json"], self.environment)

    def peer(self, what: str) -> Measured:
        """Runs a peer."""
        place = [what, str(self.lake.warehouse), self.lake.uri, TABLE]
        if what == "script":
            return measure([*measuring.itself("iceberg_peers"), *place])
        assert self.spark is not None
        program = [str(self.spark / "bin" / "python"), str(Path(iceberg_peers.__file__))]
        return measure([*program, *place, ":".join(map(str, self.spark.glob("*.jar")))])

    def plans(self) -> Iterator[tuple[str, Callable[[], tuple[Measured, set[str]]]]]:
        """Yields the name of each program, and what runs it: the figures, and the orphans that it
        found."""

        def theirs(what: str) -> tuple[Measured, set[str]]:
            measured = self.peer(what)
            paths = (local(each.removeprefix("file:")) for each in json.loads(measured.output))
            return measured, {str(each.relative_to(self.lake.warehouse)) for each in paths}

        def mine(engine: str) -> tuple[Measured, set[str]]:
            measured = self.ours("gc", "plan", REPOSITORY, "--engine", engine)
            run = Path(json.loads(measured.output)["run_path"].removeprefix("file://"))
            parts = run.glob("candidates/**/*.parquet")
            found = {
                address
                for each in parts
                for address in texts(pq.read_table(each).column("address"))
            }
            shutil.rmtree(self.lake.warehouse / "_ebbtide")
            return measured, found

        if self.spark is not None:
            yield PROCEDURES, lambda: theirs("procedures")
        yield SCRIPT, lambda: theirs("script")
        for each in self.engines:
            yield f"Ebbtide, {each}", lambda engine=each: mine(engine)  # type: ignore[misc]

    def deletes(self) -> Iterator[tuple[str, Callable[[], list[Measured]]]]:
        """Yields the name of each program that expires and deletes, and what runs it: the figures
        of its commands."""

        def mine(engine: str) -> list[Measured]:
            deleting = ("--engine", engine, "--quarantine", "none", "--yes")
            expired = self.ours("expire", REPOSITORY, "--yes")
            return [expired, self.ours("gc", "run", REPOSITORY, *deleting)]

        if self.spark is not None:
            yield PROCEDURES, lambda: [self.peer("maintain")]
        for each in self.engines:
            yield f"Ebbtide, {each}", lambda engine=each: mine(engine)  # type: ignore[misc]


def linked(source: Path, target: Path) -> None:
    """Copies a directory as hard links."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-al", str(source), str(target)], check=True)


def check(program: str, found: set[str], expected: set[str]) -> None:
    """Ends the program unless the files are those that are expected."""
    if found != expected:
        more, fewer = sorted(found - expected), sorted(expected - found)
        raise SystemExit(
            f"{program}: {len(more):,} too many, {len(fewer):,} too few: {(more + fewer)[:3]}"
        )


def compare(lake: Lake, programs: Programs, *, rounds: int) -> Table:
    """Runs all programs in turns, and checks what each does. Returns their figures."""
    table = Table()
    for _ in range(rounds):
        for program, run in programs.plans():
            measured, found = run()
            check(program, found, lake.orphans)
            table.add(PLAN, program, measured)
    before = lake.files()
    kept = lake.directory / "kept"
    linked(lake.warehouse, kept)
    shutil.copyfile(lake.catalog, lake.directory / "kept.db")
    for _ in range(rounds):
        for program, delete in programs.deletes():
            parts = delete()
            # Whoever expires snapshots writes a new metadata file.
            left = lake.files()
            check(program, left & before, before - lake.orphans - lake.freed)
            table.add(DELETE, program, *parts)
            linked(kept, lake.warehouse)
            shutil.copyfile(lake.directory / "kept.db", lake.catalog)
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000, help="data files of all snapshots")
    parser.add_argument("--snapshots", type=int, default=500)
    parser.add_argument("--engines", nargs="+", default=["spark", "duckdb"], help="of Ebbtide")
    parser.add_argument("--spark", type=Path, metavar="DIR", help="for Spark's procedures")
    parser.add_argument("--rounds", type=int, default=1, help="of which the medians count")
    parser.add_argument("--directory", type=Path, help="build here, in place of TMPDIR")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds the table, runs all programs, compares and prints."""
    options = parsed(arguments)
    named = options.spark or os.environ.get(SPARK_VARIABLE)
    spark = Path(named).resolve() if named else None
    if spark is None:
        print(
            f"Spark's procedures are left out: neither --spark nor {SPARK_VARIABLE} names a place"
        )
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=options.directory) as scratch:
        lake = Lake(Path(scratch))
        started = time.monotonic()
        Writer(lake).build(options.files, options.snapshots)
        counted = {"files": len(lake.files()), "orphans": len(lake.orphans)}
        counted |= {"freed": len(lake.freed), "snapshots": options.snapshots}
        print(
            f"{counted['files']:,} files, {counted['orphans']:,} orphans, {counted['freed']:,} for "
            f"expired snapshots alone, written in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        table = compare(lake, Programs(lake, spark, options.engines), rounds=options.rounds)
    results.save(options, {**counted, "rows": table.rows()})


if __name__ == "__main__":
    main()
