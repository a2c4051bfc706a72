"""Measures the collection of a Delta table, by Ebbtide and by the vacuum of other programs.

    python -m benchmarks.delta [--files 200000 --engines duckdb spark --peers deltalake vacuum]
                               [--spark DIR] [--directory DIR]

Makes a table of hand-written commits over hard links of one small Parquet file, in 100 partitions.
Of its files, 3 % were removed 20 days ago and 2 % are left from writers that died: these go. 2 %
were removed 2 days ago, and 1 % are of writers at work: these stay. The programs take turns, each
in fresh processes, on a copy of the table: first a dry run, then the deletes. Then the files are
compared with those that must be there.

The peer `vacuum` is Spark's VACUUM with the package delta-spark, which needs a PySpark of its own.
The option `--spark` or the variable EBBTIDE_TEST_DELTA_SPARK names its Python environment, which is
made if it is absent. Without a name the peer is left out. The jars come from Maven Central, before
anything is measured.

The processor seconds are those of the whole tree of processes, and the memory is its peak, with
shared pages counted once (PSS). To delete a hard link frees nothing on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks import measuring, results
from benchmarks.measuring import Measured, measure, mib

DAY: Final = 86_400
PARTITIONS: Final = 100
COMMITS: Final = 20
LINKS_MAX: Final = 30_000
"""The most links to a file of a table, and as many of its copy; ext4 has no more than 65,000."""
RETENTION_HOURS: Final = 7 * 24
STEPS: Final = ("dry run", "collect")
SPARK_VARIABLE: Final = "EBBTIDE_TEST_DELTA_SPARK"
NEEDED: Final = ("delta-spark==4.4.0", "pyspark==4.2.0", "setuptools")
"""The packages of the environment of the peer `vacuum`."""

DELTALAKE: Final = f"""
import json, sys
from deltalake import DeltaTable
found = DeltaTable(sys.argv[1]).vacuum(
    retention_hours={RETENTION_HOURS}, dry_run=sys.argv[2] == "dry run", full=True
)
print(json.dumps(len(found)))
"""
VACUUM: Final = """
import os, sys
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
builder = (
    SparkSession.builder.master(f"local[{os.cpu_count()}]")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.driver.memory", "4g").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "8").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
    .config("spark.databricks.delta.snapshotPartitions", "4")
    .config("spark.databricks.delta.vacuum.parallelDelete.enabled", "true")
)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
dry = " DRY RUN" if sys.argv[2] == "dry run" else ""
print(spark.sql(f"VACUUM delta.`{sys.argv[1]}`{dry}").count())
spark.stop()
"""
LOAD: Final = (
    "from delta import configure_spark_with_delta_pip as c; from pyspark.sql import SparkSession; "
    "c(SparkSession.builder.master('local[1]')).getOrCreate().stop()"
)
"""Fetches the jars, which is not measured."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of files of a table: in all, and by what became of them."""

    files: int

    @property
    def removed(self) -> int:
        """Removed 20 days ago."""
        return self.files * 3 // 100

    @property
    def left(self) -> int:
        """Never named by a commit, and old."""
        return self.files * 2 // 100

    @property
    def lately(self) -> int:
        """Removed 2 days ago."""
        return self.files * 2 // 100

    @property
    def young(self) -> int:
        """Not yet named by a commit."""
        return self.files // 100

    @property
    def added(self) -> int:
        """Named by a commit."""
        return self.files - self.left - self.young


def name_of(kind: str, number: int) -> str:
    """Returns the address of a file."""
    return f"p={number % PARTITIONS:02d}/part-{number:08d}-{kind}.c000.snappy.parquet"


def build(path: Path, shape: Shape) -> frozenset[str]:
    """Makes the table at `path`. Returns the addresses that a vacuum must delete."""
    for number in range(PARTITIONS):
        (path / f"p={number:02d}").mkdir(parents=True)
    names = [name_of("added", number) for number in range(shape.added)]
    orphans = [name_of("left", number) for number in range(shape.left)]
    link(path, [*names, *orphans], days=45)
    link(path, [name_of("young", number) for number in range(shape.young)], days=0)
    gone, lately = names[: shape.removed], names[-shape.lately :]
    write_log(path, [*batched(names, -(-len(names) // COMMITS))], [(20, gone), (2, lately)])
    return frozenset(gone) | frozenset(orphans)


def batched(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yields the names in order, so many at a time."""
    return (names[at : at + size] for at in range(0, len(names), size))


def link(path: Path, names: Sequence[str], *, days: int) -> None:
    """Makes the files, all with the same content and date."""
    at = time.time() - days * DAY
    for some in batched(names, LINKS_MAX):
        first = path / some[0]
        pq.write_table(pa.table({"id": [1]}), first)
        os.utime(first, (at, at))
        for each in some[1:]:
            os.link(first, path / each)


def write_log(
    path: Path, added: Sequence[Sequence[str]], removed: list[tuple[int, list[str]]]
) -> None:
    """Writes the commits: the files that are added, from 40 days ago on, and those that are removed
    some days ago. Each tenth commit gets a checkpoint, as Spark makes them."""
    log = path / "_delta_log"
    log.mkdir()
    schema = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("p", "string"))
    ]
    head = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "3f6b6f8e-0a54-4f0e-9a53-8d5c2f1b7a10",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": schema}),
                "partitionColumns": ["p"],
                "configuration": {},
                "createdTime": milliseconds(41),
            }
        },
    ]
    commits = [
        (40 - number, (*(head if number == 0 else ()), *map(add_of, names)))
        for number, names in enumerate(added)
    ]
    commits += [(days, tuple(remove_of(each, days) for each in names)) for days, names in removed]
    for version, (days, actions) in enumerate(commits):
        info = {"commitInfo": {"timestamp": milliseconds(days), "operation": "WRITE"}}
        file = log / f"{version:020d}.json"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in (info, *actions)))
        at = time.time() - days * DAY
        os.utime(file, (at, at))
        if version and version % 10 == 0:
            DeltaTable(str(path)).create_checkpoint()


def milliseconds(days: float) -> int:
    """Returns the time so many days ago, in milliseconds since 1970."""
    return int((time.time() - days * DAY) * 1000)


def add_of(name: str) -> dict[str, Any]:
    """Returns the action that adds a file."""
    return {
        "add": {
            "path": quote(name, safe="/="),
            "partitionValues": {"p": name[2:4]},
            "size": 500,
            "modificationTime": milliseconds(45),
            "dataChange": True,
            "stats": '{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1}}',
        }
    }


def remove_of(name: str, days: int) -> dict[str, Any]:
    """Returns the action that removed a file some days ago."""
    return {
        "remove": {
            "path": quote(name, safe="/="),
            "deletionTimestamp": milliseconds(days),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {"p": name[2:4]},
            "size": 500,
        }
    }


def files(path: Path) -> frozenset[str]:
    """Returns the data files of a table."""
    return frozenset(
        f"{folder.name}/{each.name}"
        for folder in os.scandir(path)
        if folder.name.startswith("p=")
        for each in os.scandir(folder.path)
    )


Program = Callable[[Path, str], Measured]
"""Carries out a step (of STEPS) on a table."""


def ours(engine: str) -> Program:
    """Returns Ebbtide on an engine."""

    def run(table: Path, step: str) -> Measured:
        words = ["plan"] if step == "dry run" else ["run", "--quarantine", "none", "--yes"]
        common = [f"delta:{table}", "--engine", engine, "--allow-share", "--json"]
        return measure([measuring.PROGRAM, "gc", words[0], *common, *words[1:]])

    return run


def deltalake(table: Path, step: str) -> Measured:
    """Runs the vacuum of deltalake, of all files."""
    return measure([sys.executable, "-P", "-c", DELTALAKE, str(table), step])


def vacuum(environment: Path) -> Program:
    """Returns Spark's VACUUM, in a Python environment that is made unless it is there."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *NEEDED], check=True)
    subprocess.run([str(python), "-c", LOAD], check=True, stdout=subprocess.DEVNULL)
    return lambda table, step: measure([str(python), "-c", VACUUM, str(table), step])


def programs(options: argparse.Namespace) -> Iterator[tuple[str, Program]]:
    """Yields the programs that the options name, and that are there."""
    yield from ((f"Ebbtide, {each}", ours(each)) for each in options.engines)
    if "deltalake" in options.peers:
        yield "deltalake", deltalake
    named = options.spark or os.environ.get(SPARK_VARIABLE)
    if "vacuum" in options.peers and named:
        yield "VACUUM", vacuum(Path(named).resolve())
    elif "vacuum" in options.peers:
        print(f"VACUUM is left out: neither --spark nor {SPARK_VARIABLE} names a place")


def collect(
    directory: Path, shape: Shape, chosen: dict[str, Program], rounds: int
) -> dict[str, Any]:
    """Makes the table, lets each program collect a copy of it, and prints. Returns the figures: of
    several rounds, those with the fewest processor seconds."""
    source = directory / "table"
    started = time.monotonic()
    gone = build(source, shape)
    before = files(source)
    print(f"{len(before):,} files in {time.monotonic() - started:.0f} s, {len(gone):,} to delete")
    found: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        # Each round begins with another program.
        names = [*chosen][number % len(chosen) :] + [*chosen][: number % len(chosen)]
        for name in names:
            copy = directory / "copy"
            subprocess.run(["cp", "-al", str(source), str(copy)], check=True)
            os.sync()
            for step in STEPS:
                measured = chosen[name](copy, step)
                check(name, step, before - (gone if step == "collect" else set()), files(copy))
                keep(found, f"{name}, {step}", measured)
            shutil.rmtree(copy)
    return {"files": shape.files, "deleted": len(gone), "runs": found}


def keep(found: dict[str, dict[str, float]], name: str, measured: Measured) -> None:
    """Prints figures, and keeps them unless there are better ones of the same name."""
    figures = {
        "seconds": measured.seconds,
        "cpu_seconds": measured.cpu_seconds,
        "peak_mib": mib(measured.peaks.tree),
    }
    print(
        f"{name:<28}{figures['seconds']:>8.1f} s{figures['cpu_seconds']:>8.1f} processor s"
        f"{figures['peak_mib']:>8.0f} MiB, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    known = found.get(name)
    if known is None or figures["cpu_seconds"] < known["cpu_seconds"]:
        found[name] = figures


def check(name: str, step: str, wanted: Set[str], found: Set[str]) -> None:
    """Ends the program if a step left other files than it must."""
    many, few = wanted - found, found - wanted
    if many or few:
        shown = sorted(many | few)[:3]
        raise SystemExit(
            f"{name}, {step}: {len(many):,} deleted too many, {len(few):,} too few: {shown}"
        )


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--engines", nargs="*", default=["duckdb", "spark"])
    peers = ["deltalake", "vacuum"]
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers)
    parser.add_argument("--spark", type=Path, metavar="DIR", help="for the peer vacuum")
    parser.add_argument("--rounds", type=int, default=1, help="the best figures of so many count")
    parser.add_argument("--directory", type=Path, help="make the tables here, and remove them")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Reads the arguments and measures."""
    options = parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=options.directory) as temporary:
        chosen = dict(programs(options))
        figures = collect(Path(temporary), Shape(options.files), chosen, options.rounds)
    results.save(options, figures)


if __name__ == "__main__":
    main()
