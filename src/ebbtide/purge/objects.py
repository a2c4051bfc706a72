"""The objects of a purge: each address once, with its size, checksum and all its paths.

Rows come by path, in no order. They are grouped by address in buckets on a local disk, so that only
one bucket is in memory. Not for: the commits that have the objects (`naming`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema
from ebbtide.errors import Refused
from ebbtide.gc.relations.keys import keys_of
from ebbtide.purge.naming import NamedObjects
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import classify
from ebbtide.store.content.ranges import RangeInfo, read_range_columns
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord

ENTRIES_SCHEMA: Final = make_schema(
    ("path", pa.string()),
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("checksum", pa.string()),
)
"""Entries, with columns of ranges. `path` is null in a row that comes from a listing."""

OBJECTS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("checksum", pa.string()),
    ("paths", pa.list_(pa.string())),
)
"""Each address once. `checksum` is SHA-256 in hexadecimal, or empty if it is not known."""

ROWS_PER_BUCKET: Final = 250_000


class Buckets:
    """Rows of ENTRIES_SCHEMA, divided by address. A context manager: its files exist within the
    block."""

    def __init__(self, rows_expected: int) -> None:
        self._count = 1 + rows_expected // ROWS_PER_BUCKET
        self._stack = ExitStack()
        self._paths: list[Path] = []
        self._writers: list[pq.ParquetWriter] = []

    def __enter__(self) -> Self:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._paths = [directory / f"{number}.parquet" for number in range(self._count)]
        self._writers = [
            self._stack.enter_context(pq.ParquetWriter(path, ENTRIES_SCHEMA))
            for path in self._paths
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        if self._count == 1:
            self._writers[0].write_table(table)
            return
        buckets = keys_of(table.column("address")).view(np.uint64) % np.uint64(self._count)
        for number in np.unique(buckets):
            self._writers[int(number)].write_table(table.filter(pa.array(buckets == number)))

    def objects(self, *, listed: bool = False) -> Iterator[pa.Table]:
        """Yields all rows grouped by address (OBJECTS_SCHEMA), one table for each bucket, sorted
        within it. With `listed`, only addresses from a listing are returned: they have a row
        without a path."""
        for writer in self._writers:
            writer.close()
        for path in self._paths:
            yield _by_address(pq.read_table(path, use_threads=False), listed=listed)


def _by_address(entries: pa.Table, *, listed: bool) -> pa.Table:
    """Groups entries by address. If sizes or checksums of one address differ, the larger value is
    used."""
    nulls = pc.CountOptions(mode="only_null")
    grouped = entries.group_by("address", use_threads=False).aggregate(
        [("size_bytes", "max"), ("checksum", "max"), ("path", "distinct"), ("path", "count", nulls)]
    )
    if listed:
        grouped = grouped.filter(pc.greater(grouped.column("path_count"), pa.scalar(0)))
    columns: list[Any] = [
        grouped.column("address"),
        grouped.column("size_bytes_max"),
        grouped.column("checksum_max"),
        _sorted_lists(grouped.column("path_distinct").combine_chunks()),
    ]
    return pa.table(columns, schema=OBJECTS_SCHEMA).sort_by("address")


def _sorted_lists(lists: Any) -> pa.Array[Any]:
    """Returns lists of text with the values of each list sorted, and without nulls."""
    flat = pa.table({"list": pc.list_parent_indices(lists), "value": pc.list_flatten(lists)})
    flat = flat.filter(pc.is_valid(flat.column("value")))
    flat = flat.sort_by([("list", "ascending"), ("value", "ascending")])
    counts = np.bincount(flat.column("list").to_numpy(), minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    values: Any = flat.column("value").combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def gather(context: RepositoryContext, resolved: NamedObjects) -> Generator[pa.Table, None, None]:
    """Yields the objects (OBJECTS_SCHEMA) that a request names, in batches. Objects outside the
    storage root are left out: they are never touched. Close the generator: it has files on the
    local disk.

    Raises Refused (`missing_tree` and so on) if a commit cannot be read.
    """
    ranges = distinct_ranges(context, resolved.commits)
    with Buckets(sum(info.entry_count for info in ranges)) as buckets:
        for info in ranges:
            buckets.add(own_entries(context, info))
        buckets.add(_own(_table(resolved.entries)))
        yield from buckets.objects()


def distinct_ranges(
    context: RepositoryContext, commits: Iterable[CommitRecord], *, damaged: bool = False
) -> list[RangeInfo]:
    """Returns the ranges of the commits' trees, each once. With `damaged`, unreadable trees are
    skipped.

    Raises Refused (`missing_tree` and so on).
    """
    found: dict[str, RangeInfo] = {}
    for commit in commits:
        with _passing_over(damaged), context.reading(commit):
            for info in context.tree_of(commit).ranges:
                found[info.range_id] = info
    return list(found.values())


def own_entries(context: RepositoryContext, info: RangeInfo, *, damaged: bool = False) -> pa.Table:
    """Returns the entries of a range (ENTRIES_SCHEMA) under the storage root. With `damaged`, an
    unreadable range has none. Raises as `read_range` does."""
    with _passing_over(damaged):
        table = read_range_columns(
            context.storage,
            info.range_id,
            info.checksum,
            entry_count=info.entry_count,
            columns=ENTRIES_SCHEMA.names,
        )
        return _own(table.select(ENTRIES_SCHEMA.names).cast(ENTRIES_SCHEMA))
    return ENTRIES_SCHEMA.empty_table()


@contextmanager
def _passing_over(damaged: bool) -> Iterator[None]:
    try:
        yield
    except Refused:
        if not damaged:
            raise


def _table(entries: Iterable[Entry]) -> pa.Table:
    rows = [
        {
            "path": entry.path,
            "address": entry.address,
            "size_bytes": entry.size_bytes,
            "checksum": entry.checksum,
        }
        for entry in entries
    ]
    return pa.Table.from_pylist(rows, schema=ENTRIES_SCHEMA)


def _own(table: pa.Table) -> pa.Table:
    """Returns the rows whose addresses are objects under the storage root."""
    addresses: Any = table.column("address").combine_chunks()
    if not len(addresses):
        return table
    return table.filter(pc.equal(classify(addresses), pa.scalar("object", pa.string())))
