"""The peers of the bottom-line case, each as a program of its own.

    python -m benchmarks.peers common STORE        the method in common use; deletes
    python -m benchmarks.peers deletes DIR NAMES   obstore deleting files of a directory in a loop

The method in common use was written for the comparison, from published descriptions. Spark reads
every range of every active commit again, and subtracts addresses as text with EXCEPT. The driver
deletes the remaining files in pages of 1,000. Each peer prints its seconds by step, as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import LocalStore

from ebbtide.arrow import counts
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.decisions import trees_of
from ebbtide.gc.engines.spark.session import launch
from ebbtide.ids import new_id
from ebbtide.retention.decision import decide
from ebbtide.settings import Settings
from ebbtide.storage import LocalStorage, Storage
from ebbtide.store.content.layout import DATA_PREFIX, range_address, tree_address
from ebbtide.store.embedded import Store

PAGE: Final = 1_000
LOOKED_AT: Final = 100_000
TASKS: Final = 32
MEMORY: Final = "8g"
"""The memory of Spark. Ebbtide's default is too little where every address is a text."""


class Steps:
    """The seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times the block."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)


def common(directory: Path) -> dict[str, Any]:
    """Collects the store by the method in common use. Returns the seconds of each step, and the
    numbers of deleted objects and of ranges."""
    steps = Steps()
    settings = Settings(lease_ttl="0s", trash_time="0s")
    cutoff = datetime.now(UTC)
    with Store.open(directory, settings=settings) as store:
        lake = store.repository("lake")
        storage = lake.context.storage
        with steps("prepare uncommitted"):
            roots, uncommitted = _prepare(store, directory / f"common-{new_id()}.parquet")
        with steps("start Spark"):
            spark = launch(
                master="local[*]",
                driver_memory=MEMORY,
                conf={
                    # Spark assumes that the rows which a task makes of a number are as small as
                    # the number, and would broadcast them.
                    "spark.sql.autoBroadcastJoinThreshold": "-1",
                },
            ).session()
        trees = sorted(trees_of(roots, decide(roots)).data)

        def flat(
            items: list[str], read: Callable[[str], Iterator[pa.RecordBatch]], schema: str
        ) -> Any:  # a DataFrame
            shared = spark.sparkContext.broadcast(items)

            def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    for number in counts(batch.column(0)):
                        yield from read(shared.value[number])

            numbers = spark.range(0, len(items), 1, min(TASKS, max(1, len(items))))
            return numbers.mapInArrow(work, schema)

        with steps("read trees"):
            named = flat(trees, _column_of(storage, "range_id", tree_address), "range_id string")
            ranges = [row.range_id for row in named.distinct().collect()]
        live = flat(ranges, _column_of(storage, "address", range_address), "address string")
        listed = flat(
            storage.list_prefixes(DATA_PREFIX), _listing(storage, cutoff), "address string"
        )
        target = directory / f"common-{new_id()}"
        kept = spark.read.parquet(str(uncommitted))
        with steps("list, mark, subtract"):
            result = listed.subtract(live).subtract(kept)
            result.write.parquet(str(target))
        with steps("delete"):
            rows = spark.read.parquet(str(target)).toLocalIterator()
            pages = iter(lambda: [row.address for row in islice(rows, PAGE)], [])
            deleted = sum(len(storage.delete(page)) for page in pages)
        spark.stop()
        shutil.rmtree(target)
        uncommitted.unlink()
    return {"seconds": steps.seconds, "deleted": deleted, "ranges": len(ranges)}


def _prepare(store: Store, target: Path) -> tuple[Any, Path]:
    """Returns the roots, and the path of a Parquet file with the uncommitted addresses."""
    lake = store.repository("lake")
    repository = EmbeddedRepository(lake.context, store_id=store.store_id)
    with repository.reading() as reading:
        roots = reading.roots()
        tables = [table.select(["address"]) for table in reading.protected()]
    pq.write_table(pa.concat_tables(tables), target, row_group_size=500_000)
    return roots, target


def _column_of(
    storage: Storage, column: str, address_of: Callable[[str], str]
) -> Callable[[str], Iterator[pa.RecordBatch]]:
    def read(name: str) -> Iterator[pa.RecordBatch]:
        data = pa.BufferReader(storage.get(address_of(name)))
        yield from pq.read_table(data, columns=[column], use_threads=False).to_batches()

    return read


def _listing(storage: Storage, cutoff: datetime) -> Callable[[str], Iterator[pa.RecordBatch]]:
    limit = pa.scalar(cutoff, pa.timestamp("us", "UTC"))

    def read(prefix: str) -> Iterator[pa.RecordBatch]:
        for batch in storage.list(prefix):
            old = pa.compute.less(batch.column("last_modified"), limit)
            yield batch.select(["address"]).filter(old)

    return read


def deletes(directory: Path, listed: Path) -> dict[str, Any]:
    """Deletes files of a directory with obstore, a thousand at a time. The lines of the file
    `listed` are their names. Before that, the size and date of each file are read."""
    names = listed.read_text().splitlines()
    for first in range(0, len(names), LOOKED_AT):
        LocalStorage(str(directory)).sizes(names[first : first + LOOKED_AT])
    client = LocalStore(directory)
    steps = Steps()
    with steps("delete"):
        for first in range(0, len(names), PAGE):
            obstore.delete(client, names[first : first + PAGE])
    return {"seconds": steps.seconds, "deleted": len(names)}


def main(arguments: list[str] | None = None) -> None:
    """Runs the chosen peer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["common", "deletes"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("more", nargs="?", default="")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    if given.what == "common":
        found = common(given.directory)
    else:
        found = deletes(given.directory, Path(given.more))
    print(json.dumps(found | {"total_seconds": round(time.monotonic() - started, 2)}))


if __name__ == "__main__":
    main()
