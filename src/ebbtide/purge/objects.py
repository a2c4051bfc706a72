"""The objects of a purge: each address once, with its size, checksum and all its paths.

Rows come by path, in no order. The engine divides them by address, so that only the rows of some
addresses are in memory. Not for: the commits that have the objects (`request`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema
from ebbtide.errors import Refused
from ebbtide.formats.base import FOREIGN, Layout
from ebbtide.formats.gone import GoneLayout
from ebbtide.gc.engines.base import Batches, Engine, Relation, answers_of
from ebbtide.gc.engines.duckdb import MEMORY_MAX_BYTES, DuckEngine
from ebbtide.gc.keys import keys_of, rows_of
from ebbtide.gc.parts import (
    ANSWERS_SCHEMA,
    Count,
    Part,
    PartRows,
    read_batches,
    read_tables,
    split,
    total_by_kind,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import EVERYTHING, LISTED, list_inventory
from ebbtide.purge.request import NamedObjects
from ebbtide.resources import processor_count
from ebbtide.storage import Storage
from ebbtide.store.content.layout import OWNER_ADDRESS, classify
from ebbtide.store.content.ranges import RangeInfo, read_range_columns
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord

ENTRIES_SCHEMA: Final = make_schema(
    ("path", pa.string()),
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("checksum", pa.string()),
)
"""Entries, with columns of ranges. `path` is null in a row that comes from a listing."""
_SHARED: Final = pa.schema([pa.field("share", pa.int32()), *ENTRIES_SCHEMA])
"""Entries, divided by address into shares."""
_FILES: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)

OBJECTS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("checksum", pa.string()),
    ("paths", pa.list_(pa.string())),
)
"""Each address once. `checksum` is SHA-256 in hexadecimal, or empty if it is not known."""

OBJECTS_STEM: Final = "objects/part"
LEFT_STEM: Final = "objects/left-"
"""The beginning of the names of parts with files that are not in the plan."""
MEMORY_MIN_BYTES: Final = 96 << 20
MEMORY_PER_ROW: Final = 64
CORES_MAX: Final = 2
"""The memory in which DuckDB divides the rows before it spills. The search for references, which
comes later, needs more for each address. Each core needs some 50 MB of it."""
ROWS_PER_TASK: Final = 50_000
ROWS_PER_SHARE: Final = 9_000
"""The rows that are grouped together. Almost always they are one part."""
ROWS_PER_PART: Final = 10_000
"""The most addresses in one part. The outcomes of a part are recorded before the next is
deleted."""


def gather(
    context: RepositoryContext, named: NamedObjects, folder: RunFolder, *, stem: str
) -> list[Part]:
    """Writes the objects that a request names as parts `stem` (OBJECTS_SCHEMA). Objects outside the
    storage root are left out: they are never touched.

    Raises Refused (`missing_tree` and so on) if a commit cannot be read.
    """
    found = [{name: getattr(each, name) for name in ENTRIES_SCHEMA.names} for each in named.entries]
    table = _own(pa.Table.from_pylist(found, schema=ENTRIES_SCHEMA))
    ranges = distinct_ranges(context, named.commits)
    rows = table.num_rows + sum(info.entry_count for info in ranges)
    engine = _engine_for(rows)
    entries = engine.rows([table], lambda task: iter(task.to_batches()), ENTRIES_SCHEMA)
    of_ranges = _entries_of(engine, context.storage, ranges)
    return _write(engine, folder, [entries, of_ranges], rows, stem=stem)


def gather_files(
    storage: Storage,
    folder: RunFolder,
    *,
    stem: str = OBJECTS_STEM,
    ranges: Sequence[RangeInfo] = (),
    hidden: bool = False,
) -> tuple[list[Part], int]:
    """Writes a repository's own files under the root, without OWNER, as parts `stem`
    (OBJECTS_SCHEMA). Returns the parts, and the number of foreign files.

    Checksums and paths come from the `ranges`; damaged ones are passed over. `hidden` includes
    files of which the storage keeps only versions. Their sizes are not known, and 0 stands for
    them.
    """
    layout = GoneLayout()
    answers, _ = list_inventory(DuckEngine(), storage, layout, folder, EVERYTHING)
    kinds = total_by_kind(each for each in answers.counts if each.of == LISTED)
    try:
        rows = rows_of(answers.parts) + sum(info.entry_count for info in ranges)
        engine = _engine_for(rows)
        files = engine.rows(answers.parts, partial(_listed, folder), ENTRIES_SCHEMA)
        prefixes = [""] if hidden else []
        versions = engine.rows(prefixes, partial(_hidden, storage, layout), ENTRIES_SCHEMA)
        entries = [files, versions, _entries_of(engine, storage, ranges, damaged=True)]
        parts = _write(engine, folder, entries, rows, stem=stem, listed=True)
    finally:
        folder.storage.delete([folder.address(part.name) for part in answers.parts])
    return parts, kinds.get(FOREIGN, Count()).objects


def _engine_for(rows: int) -> DuckEngine:
    """Returns an engine that divides so many rows."""
    memory = min(MEMORY_MIN_BYTES + MEMORY_PER_ROW * rows, MEMORY_MAX_BYTES)
    return DuckEngine(cores=min(processor_count(), CORES_MAX), memory_max_bytes=memory)


def _listed(folder: RunFolder, part: Part) -> Batches:
    for table in read_batches(folder, [part], _FILES, rows_max=ROWS_PER_TASK):
        own = table.filter(pc.not_equal(table.column("kind"), pa.scalar(FOREIGN, pa.string())))
        yield from _without_paths(own.column("address"), own.column("size_bytes"))


def _hidden(storage: Storage, layout: Layout, prefix: str) -> Batches:
    for names in storage.hidden(prefix):
        own = own_among(layout, pa.array(names, pa.string()))
        yield from _without_paths(own, pa.repeat(pa.scalar(0, pa.int64()), len(own)))


def own_among(layout: Layout, addresses: pa.StringArray) -> pa.StringArray:
    """Returns the addresses of a repository's own files, also of OWNER."""
    is_own = pc.not_equal(layout.classify(addresses), pa.scalar(FOREIGN, pa.string()))
    return addresses.filter(is_own)


def _without_paths(addresses: Any, sizes: Any) -> Batches:  # arrays or columns
    """Yields files without OWNER as rows of ENTRIES_SCHEMA without paths."""
    count = len(addresses)
    columns: list[Any] = [
        pa.nulls(count, pa.string()),
        addresses,
        sizes,
        pa.repeat(pa.scalar("", pa.string()), count),
    ]
    table = pa.table(columns, schema=ENTRIES_SCHEMA)
    is_owner = pc.equal(table.column("address"), pa.scalar(OWNER_ADDRESS, pa.string()))
    yield from table.filter(pc.invert(is_owner)).to_batches()


def distinct_ranges(
    context: RepositoryContext, commits: Iterable[CommitRecord], *, damaged: bool = False
) -> list[RangeInfo]:
    """Returns the ranges of the commits' trees, each once. With `damaged`, unreadable trees are
    skipped. Raises Refused (`missing_tree` and so on)."""
    found: dict[str, RangeInfo] = {}
    for commit in commits:
        with _passing_over(damaged), context.reading(commit):
            for info in context.tree_of(commit).ranges:
                found[info.range_id] = info
    return list(found.values())


def _entries_of(
    engine: Engine, storage: Storage, ranges: Sequence[RangeInfo], *, damaged: bool = False
) -> Relation:
    """Returns the entries of ranges (ENTRIES_SCHEMA) under the storage root. With `damaged`, an
    unreadable range has none."""

    def read(chosen: Sequence[RangeInfo]) -> Batches:
        for info in chosen:
            table = ENTRIES_SCHEMA.empty_table()
            with _passing_over(damaged):
                table = read_range_columns(
                    storage,
                    info.range_id,
                    info.checksum,
                    entry_count=info.entry_count,
                    columns=ENTRIES_SCHEMA.names,
                )
            yield from _own(table.select(ENTRIES_SCHEMA.names).cast(ENTRIES_SCHEMA)).to_batches()

    count = 1 + sum(info.entry_count for info in ranges) // ROWS_PER_TASK
    return engine.rows(split(ranges, tasks=count), read, ENTRIES_SCHEMA)


@contextmanager
def _passing_over(damaged: bool) -> Iterator[None]:
    try:
        yield
    except Refused:
        if not damaged:
            raise


def _own(table: pa.Table) -> pa.Table:
    """Returns the rows whose addresses are objects under the storage root."""
    addresses: Any = table.column("address").combine_chunks()
    if not len(addresses):
        return table
    return table.filter(pc.equal(classify(addresses), pa.scalar("object", pa.string())))


def _write(
    engine: Engine,
    folder: RunFolder,
    entries: Sequence[Relation],
    rows: int,
    *,
    stem: str,
    listed: bool = False,
) -> list[Part]:
    """Writes `entries`, which have about so many `rows`, grouped by address, as parts
    (OBJECTS_SCHEMA). With `listed`, only addresses from a listing are written: they have a row
    without a path. Frees what the engine keeps."""
    shares = 1 + rows // ROWS_PER_SHARE

    def share(batches: Batches) -> Batches:
        for batch in batches:
            keys = keys_of(batch.column("address")).view(np.uint64)
            numbers = pa.array((keys % np.uint64(shares)).astype(np.int32))
            yield pa.record_batch([numbers, *batch.columns], schema=_SHARED)

    def write(batches: Batches) -> Batches:
        found, answer = pa.Table.from_batches(batches, _SHARED), PartRows()
        objects = _by_address(found, listed=listed)
        name = f"{stem}-{found.column('share')[0].as_py():05d}"
        write_objects(answer, folder, objects, stem=name)
        yield answer.batch()

    divided = engine.union(*(each.map(share, _SHARED) for each in entries))
    try:
        return answers_of(divided.map(write, ANSWERS_SCHEMA, by=("share",), tasks=shares)).parts
    finally:
        engine.close()


def write_objects(answer: PartRows, folder: RunFolder, objects: pa.Table, *, stem: str) -> None:
    """Writes objects (OBJECTS_SCHEMA) as parts of at most ROWS_PER_PART rows."""
    for number, start in enumerate(range(0, objects.num_rows, ROWS_PER_PART)):
        piece = objects.slice(start, ROWS_PER_PART)
        answer.wrote(folder, f"{stem}-{number:03d}.parquet", piece, durable=True)


def read_objects(folder: RunFolder, parts: Iterable[Part]) -> Iterator[pa.Table]:
    """Yields the objects (OBJECTS_SCHEMA), part by part. Raises Refused `plan_corrupt`."""
    return read_tables(folder, parts, OBJECTS_SCHEMA)


def _by_address(entries: pa.Table, *, listed: bool) -> pa.Table:
    """Groups entries by address. If sizes or checksums of one address differ, the larger value is
    used."""
    nulls = pc.CountOptions(mode="only_null")
    grouped = entries.group_by("address", use_threads=False).aggregate(
        [("size_bytes", "max"), ("checksum", "max"), ("path", "distinct"), ("path", "count", nulls)]
    )
    if listed:
        grouped = grouped.filter(pc.greater(grouped.column("path_count"), pa.scalar(0)))
    lists: list[Any] = grouped.column("path_distinct").to_pylist()
    paths = [sorted(path for path in found if path is not None) for found in lists]
    columns: list[Any] = [
        grouped.column("address"),
        grouped.column("size_bytes_max"),
        grouped.column("checksum_max"),
        pa.array(paths, pa.list_(pa.string())),
    ]
    return pa.table(columns, schema=OBJECTS_SCHEMA).sort_by("address")
