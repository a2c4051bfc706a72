"""Lists the storage in executors, by slices and prefixes.

The result is the relation `inventory`, as Parquet parts under `inventory/` of the run's folder. Not
for: finding out which of these files are live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.escaping import shown
from ebbtide.formats.base import FOREIGN, Layout, ListingItem, Slices
from ebbtide.formats.roots import roots_among
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Answers, Counted, Part, PartRows, read_part
from ebbtide.gc.prefetching import listed
from ebbtide.gc.relations.keys import KEYS_SCHEMA, KeyArray, keys_of, with_keys
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.model import EPOCH
from ebbtide.storage import Storage
from ebbtide.storage.base import BELIEVED
from ebbtide.text import count_text

INVENTORY_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("last_modified", pa.timestamp("us", "UTC")),
    ("kind", pa.string()),
    ("slice", pa.string()),
    ("target", pa.string()),
)
"""The relation `inventory`: one row for each file.

`address` is relative to the storage root. `size_bytes` and `last_modified` (by the storage's clock)
are null if no listing has asked for them yet. `kind` is that of the format's layout. `slice` is
null for a file in no slice. `target` is the final address of a temporary file, and null for other
files. Parts may also have a column `key`, which is the key of `judged_by`.
"""

JUDGED_SCHEMA: Final = pa.schema([INVENTORY_SCHEMA.field(n) for n in ("address", "target")])
"""The columns from which `judged_by` finds the address that a row is judged by."""

LISTED: Final = "listed"
"""The name under which a listing counts files, by kind."""
UNDATED: Final = "undated"
"""The name under which tasks count files without a believable date. The `kind` is the address of
one of them, and "" for others."""
OTHER_ROOT: Final = "other root"
"""The name under which a listing counts files that show the root of another repository. In place of
a kind, the count has the address of the file."""
OTHER_ROOTS_MAX: Final = 20
"""The most roots that one task tells."""
POINTERS: Final = "pointers"
"""The relation of parts that list files of the layout's `checked_kinds`. Other parts list none."""

ROWS_PER_PART: Final = 500_000

_UNDATED_NAMED: Final = 3
"""The files that each task names for UNDATED, at most."""

UNKNOWN_MICROS: Final = 2**62
"""A number later than any date, so that a file without a date counts as young."""


def list_inventory(
    engine: Engine,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    slices: Slices,
    *,
    expected: int | None = None,
    keyed: bool = False,
) -> tuple[Answers, int]:
    """Lists the storage, without the slices that may be left out. Returns parts (INVENTORY_SCHEMA)
    and the counts of LISTED files by kind, and the number of slices that were left out because they
    are young.

    Parts and counts include foreign and system files. `expected` is the expected number of files,
    for the display of progress. With `keyed`, parts have a column `key`, for runs that use the keys
    more than once.
    """
    listing = layout.plan_listing(storage, slices, cores=engine.cores)
    items = listing.items
    # Neighbouring items have similar sizes. They go to different tasks, so that tasks are equal.
    count = min(len(items), engine.task_count)
    tasks = [items[first::count] for first in range(count)]
    at_once = engine.fetches_at_once

    def work(number: int, task: list[ListingItem], answer: PartRows) -> None:
        writer = InventoryWriter(f"part-{number:05d}", answer, folder, layout.checked_kinds)
        for batch in listed(storage, task, at_once=at_once):
            rows = classified(batch, layout)
            writer.add(with_keys(rows, judged_by(rows)) if keyed else rows)
            advance(batch.num_rows)
        writer.flush()

    engine.meter.begin("files", expected, is_about=True)
    return engine.run(tasks, work), listing.young_slices


def classified(batch: pa.RecordBatch, layout: Layout) -> pa.Table:
    """Returns a batch of a listing as rows of INVENTORY_SCHEMA. An entry that is not a regular file
    is foreign."""
    addresses = cast("pa.StringArray", batch.column("address"))
    kinds = pc.if_else(
        batch.column("regular"), layout.classify(addresses), pa.scalar(FOREIGN, pa.string())
    )
    columns: list[Any] = [  # an array for each column of INVENTORY_SCHEMA
        addresses,
        batch.column("size_bytes"),
        batch.column("last_modified"),
        kinds,
        layout.slices(addresses),
        layout.targets(addresses),
    ]
    return pa.table(columns, schema=INVENTORY_SCHEMA)


def micros_of(cutoff: datetime) -> int:
    """Returns an instant as microseconds since 1970."""
    return (cutoff - EPOCH) // timedelta(microseconds=1)


def latest_micros(last_modified: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the latest instant that each date can mean, in microseconds since 1970. A date in
    whole seconds can mean any instant of that second, and a missing date any instant."""
    micros = (
        last_modified.cast(pa.int64()).fill_null(pa.scalar(UNKNOWN_MICROS, pa.int64())).to_numpy()
    )
    return np.where(micros % 1_000_000 == 0, micros + 999_999, micros)


def tell_undated(table: pa.Table, answer: PartRows) -> None:
    """Counts the rows of INVENTORY_SCHEMA without a believable date, and names some of them."""
    start = pa.scalar(BELIEVED[1], pa.timestamp("us", "UTC"))
    late = table.filter(pc.greater_equal(table.column("last_modified"), start))
    told = sum(row.get("relation") == UNDATED for row in answer.rows)
    named = late.slice(0, max(0, _UNDATED_NAMED - told))
    for address in texts(named.column("address")):
        answer.counted(Count(1), of=UNDATED, kind=address)
    if late.num_rows > named.num_rows:
        answer.counted(Count(late.num_rows - named.num_rows), of=UNDATED)


def undated_warnings(counts: Iterable[Counted]) -> tuple[str, ...]:
    """Returns the warning about the files that tasks told as UNDATED, or none."""
    told = [each for each in counts if each.of == UNDATED]
    if not told:
        return ()
    names = sorted({shown(each.kind) for each in told if each.kind})[:_UNDATED_NAMED]
    number = count_text(sum(each.count.objects for each in told), "file")
    return (
        f"{number} dated before 1970 or after 2199, such as {', '.join(names)}: no run deletes a "
        "file of unknown age. Give it the date of its write, for instance by touch",
    )


def judged_by(table: pa.Table) -> pa.ChunkedArray[Any]:
    """Returns the address that each row is judged by: its `target` if it has one, otherwise its
    `address`. A temporary file is protected if its target is."""
    judged: pa.ChunkedArray[Any] = pc.coalesce(table.column("target"), table.column("address"))
    return judged


def judged_keys(folder: RunFolder, part: Part) -> KeyArray:
    """Returns the key of `judged_by` for each row of a part. Raises Refused `plan_corrupt`."""
    columns = ("key", *JUDGED_SCHEMA.names)
    return judged_keys_of(read_part(folder, part.name, part.checksum, columns=columns))


def read_judged(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yields the columns of `schema` (a part of INVENTORY_SCHEMA) of each part, with a column
    `key`, the key of `judged_by`. Raises Refused `plan_corrupt`."""
    for part in parts:
        columns = list(dict.fromkeys(("key", *JUDGED_SCHEMA.names, *schema.names)))
        table = read_part(folder, part.name, part.checksum, columns=columns)
        rows = table.select(schema.names).cast(schema)
        yield rows.append_column(KEYS_SCHEMA.field("key"), pa.array(judged_keys_of(table)))


def check_keys(table: pa.Table) -> None:
    """Raises Refused `plan_corrupt` unless each row has the key of `judged_by`.

    Another version of the program may have written the parts of an earlier run. A live file with a
    wrong key would not be found among the live keys, and would become a candidate.
    """
    if not np.array_equal(keys_of(judged_by(table)), table.column("key").to_numpy()):
        raise Refused(
            "plan_corrupt",
            "an earlier run wrote keys that do not match its files: plan with --mode clean",
        )


def judged_keys_of(table: pa.Table) -> KeyArray:
    """Returns the key of `judged_by` for each row, from the column `key` if there is one."""
    if "key" not in table.column_names:
        return keys_of(judged_by(table))
    keys: KeyArray = table.column("key").to_numpy()
    return keys


def in_closed_slices(table: pa.Table, closed_after: str) -> pa.Table:
    """Returns the rows in slices that sort after `closed_after`."""
    return table.filter(pc.greater(table.column("slice"), pa.scalar(closed_after, pa.string())))


class InventoryWriter:
    """Collects batches into parts of a bounded size, and counts rows by kind."""

    def __init__(
        self, stem: str, answer: PartRows, folder: RunFolder, pointer_kinds: tuple[str, ...]
    ) -> None:
        self._stem = stem
        self._pointer_kinds = pa.array(pointer_kinds, pa.string())
        self._answer = answer
        self._folder = folder
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._parts = 0
        self._roots: set[str] = set()

    def add(self, table: pa.Table) -> None:
        """Adds rows of INVENTORY_SCHEMA. Either all tables have keys, or none."""
        tell_undated(table, self._answer)
        self._tables.append(table)
        self._look_for_roots(table)
        self._rows += table.num_rows
        if self._rows >= ROWS_PER_PART:
            self.flush()

    def _look_for_roots(self, table: pa.Table) -> None:
        """Counts one file of each root of another repository that foreign files show."""
        foreign = table.filter(pc.equal(table.column("kind"), pa.scalar(FOREIGN, pa.string())))
        for root in roots_among(foreign.column("address")):
            if root.place not in self._roots and len(self._roots) < OTHER_ROOTS_MAX:
                self._roots.add(root.place)
                self._answer.counted(Count(1), of=OTHER_ROOT, kind=root.address)

    def flush(self) -> None:
        """Writes the rows that are not written yet."""
        if not self._rows:
            return
        table = pa.concat_tables(self._tables).combine_chunks()
        points = pc.is_in(table.column("kind"), value_set=self._pointer_kinds)
        stem = f"inventory/{self._stem}-{self._parts:03d}"
        others = table.filter(pc.invert(points))
        self._answer.wrote(self._folder, f"{stem}.parquet", others, relation="inventory")
        pointers = table.filter(points)
        self._answer.wrote(self._folder, f"{stem}-pointers.parquet", pointers, relation=POINTERS)
        counts = table.group_by("kind").aggregate(
            [("address", "count"), ("size_bytes", "sum"), ("size_bytes", "count")]
        )
        for row in counts.to_pylist():
            count = row["address_count"]
            sized = row["size_bytes_count"] == count
            listed = Count(count, row["size_bytes_sum"] or 0, sized)
            self._answer.counted(listed, of=LISTED, kind=row["kind"])
        self._tables, self._rows, self._parts = [], 0, self._parts + 1
