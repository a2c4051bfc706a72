"""Listing: what lies in the storage, by slices and prefixes, in executors.

The relation `inventory` as Parquet parts under `inventory/`. Not for: saying what of it is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema
from ebbtide.errors import Refused
from ebbtide.formats.base import FOREIGN, Layout, ListingItem, Slices
from ebbtide.gc.ahead import listed
from ebbtide.gc.engine import Engine
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.relations.keys import KEYS_SCHEMA, KeyArray, keys_of, with_keys
from ebbtide.gc.runs import RunFolder
from ebbtide.model import EPOCH
from ebbtide.storage import Storage

INVENTORY_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("last_modified", pa.timestamp("us", "UTC")),
    ("kind", pa.string()),
    ("slice", pa.string()),
    ("target", pa.string()),
)
"""`address` within the storage root, `size_bytes`, `last_modified` by the storage's clock (both
null where nobody asked for them yet), `kind`
as the format's layout says, `slice` null for what lies in none, `target` for a temporary file the
address that it is being written for. Parts may have a column `key` more: that of what each row is
judged by."""

JUDGED_SCHEMA: Final = pa.schema([INVENTORY_SCHEMA.field(n) for n in ("address", "target")])
"""What rows are judged by: see `judged_by`."""

POINTERS: Final = "pointers"
"""The relation of parts with files of the layout's `checked_kinds` alone; other parts have none."""

REMEMBERED: Final = "remembered"
"""The relation of parts that an earlier run left, as they are."""

ROWS_PER_PART: Final = 500_000

UNKNOWN_MICROS: Final = 2**62
"""Later than any date: what nobody knows the date of is young."""


def list_inventory(
    engine: Engine,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    slices: Slices,
    *,
    expected: int | None = None,
    keyed: bool = False,
) -> tuple[list[Part], int]:
    """List the storage into parts, and count by kind: all of it, but for slices that may be left
    out. Also how many were left out for being young. `expected` is how many files there may be.
    `keyed` parts have keys, for those who ask for them more than once.

    The parts with a name hold rows of INVENTORY_SCHEMA; those without count rows of one kind
    (their `group`). Files of the system are left out of the rows, not of the counts.
    """
    listing = layout.plan_listing(storage, slices, cores=engine.cores)
    items = listing.items
    # Neighbours are much alike, and large ones go to several tasks.
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
    """A batch of a listing as rows of INVENTORY_SCHEMA. What is no regular file is foreign."""
    addresses = cast("pa.StringArray", batch.column("address"))
    kinds = pc.if_else(
        batch.column("regular"), layout.classify(addresses), pa.scalar(FOREIGN, pa.string())
    )
    columns: list[Any] = [  # arrays of the schema's types
        addresses,
        batch.column("size_bytes"),
        batch.column("last_modified"),
        kinds,
        layout.slices(addresses),
        layout.targets(addresses),
    ]
    return pa.table(columns, schema=INVENTORY_SCHEMA)


def micros_of(cutoff: datetime) -> int:
    """Microseconds since 1970."""
    return (cutoff - EPOCH) // timedelta(microseconds=1)


def latest_micros(last_modified: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The latest instants that dates may stand for, in microseconds since 1970: a date in whole
    seconds stands for any instant of that second, and none for any."""
    micros = (
        last_modified.cast(pa.int64()).fill_null(pa.scalar(UNKNOWN_MICROS, pa.int64())).to_numpy()
    )
    return np.where(micros % 1_000_000 == 0, micros + 999_999, micros)


def judged_by(table: pa.Table) -> pa.ChunkedArray[Any]:
    """The addresses by which rows with an `address` and a `target` are judged."""
    judged: pa.ChunkedArray[Any] = pc.coalesce(table.column("target"), table.column("address"))
    return judged


def judged_keys(folder: RunFolder, part: Part) -> KeyArray:
    """The key of what each row of a part is judged by. Refused `plan_corrupt`."""
    assert part.name is not None
    columns = ("key", *JUDGED_SCHEMA.names)
    return judged_keys_of(read_part(folder, part.name, part.checksum, columns=columns))


def read_judged(folder: RunFolder, parts: Iterable[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """The columns of `schema` (some of INVENTORY_SCHEMA) in each part, and `key`: that of what each
    row is judged by. Refused `plan_corrupt`."""
    for part in parts:
        assert part.name is not None
        columns = list(dict.fromkeys(("key", *JUDGED_SCHEMA.names, *schema.names)))
        table = read_part(folder, part.name, part.checksum, columns=columns)
        rows = table.select(schema.names).cast(schema)
        yield rows.append_column(KEYS_SCHEMA.field("key"), pa.array(judged_keys_of(table)))


def check_keys(table: pa.Table) -> None:
    """Refused `plan_corrupt` unless each row has the key of what it is judged by.

    A part of an earlier run may be of another version of this program: a file whose key is not its
    own would be looked for in vain among what is live.
    """
    if not np.array_equal(keys_of(judged_by(table)), table.column("key").to_numpy()):
        raise Refused(
            "plan_corrupt",
            "an earlier run wrote keys that are not those of its files: plan with --mode clean",
        )


def judged_keys_of(table: pa.Table) -> KeyArray:
    """The key of what each row is judged by: the column `key`, where there is one."""
    if "key" not in table.column_names:
        return keys_of(judged_by(table))
    keys: KeyArray = table.column("key").to_numpy()
    return keys


def in_closed_slices(table: pa.Table, closed_after: str) -> pa.Table:
    """The rows of slices that sort behind `closed_after`."""
    return table.filter(pc.greater(table.column("slice"), pa.scalar(closed_after, pa.string())))


class InventoryWriter:
    """Gathers batches into parts of a bounded size, and counts by kind."""

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

    def add(self, table: pa.Table) -> None:
        """Take rows of INVENTORY_SCHEMA, all with keys or none."""
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= ROWS_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
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
            self._answer.counted(
                row["address_count"],
                bytes_total=row["size_bytes_sum"] or 0,
                sized=row["size_bytes_count"] == row["address_count"],
                relation="kind",
                group=row["kind"],
            )
        self._tables, self._rows, self._parts = [], 0, self._parts + 1
