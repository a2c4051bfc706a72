"""Queries in blocks: rows pass between tasks as a few large values, and DuckDB compares them there.

Spark exchanges and joins rows one by one, which takes longer than the rest of a run. A block is one
binary value, an Arrow stream of those rows of one relation that go to one partition. All relations
of a query are divided by the columns that it joins them by (`Query.by`), and pass through one
exchange. Each task then carries out the query for its own rows, by the same text. No other module
knows of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.gc.engines.base import Batches, Query
from ebbtide.gc.engines.duckdb import DuckEngine

BLOCKS_SCHEMA: Final = make_schema(
    ("partition", pa.int32()), ("relation", pa.string()), ("rows", pa.binary())
)
ROWS_AT_ONCE: Final = 250_000
"""The rows that a task divides at a time. Each partition gets a block of them."""


@dataclass(frozen=True, slots=True)
class Pack:
    """A step that packs the rows of a relation into blocks (BLOCKS_SCHEMA), by a column of whole
    numbers without nulls."""

    relation: str
    column: str
    partitions: int

    def __call__(self, batches: Batches) -> Batches:
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            if rows >= ROWS_AT_ONCE:
                yield self._blocks(held)
                held, rows = [], 0
        if rows:
            yield self._blocks(held)

    def _blocks(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(batches)
        numbers: Any = table.column(self.column).to_numpy() % self.partitions
        table = table.take(np.argsort(numbers, kind="stable")).combine_chunks()
        counts: Any = np.bincount(numbers, minlength=self.partitions)
        starts, filled = np.cumsum(counts) - counts, np.flatnonzero(counts)
        blocks = [_encoded(table.slice(starts[each], counts[each])) for each in filled]
        columns: list[Any] = [
            pa.array(filled, pa.int32()),
            pa.repeat(pa.scalar(self.relation), len(filled)),
            pa.array(blocks, pa.binary()),
        ]
        return pa.record_batch(columns, schema=BLOCKS_SCHEMA)


@dataclass(frozen=True, slots=True)
class Compare:
    """A step that carries out a query over all blocks of a partition. `schemas` are those of the
    relations."""

    query: Query
    schemas: Mapping[str, pa.Schema]

    def __call__(self, batches: Batches) -> Batches:
        held: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.schemas}
        for batch in batches:
            names = texts(batch.column("relation"))
            for name, block in zip(names, batch.column("rows"), strict=True):
                held[name] += pa.ipc.open_stream(block.as_buffer())
        if not any(held.values()):
            return
        engine = DuckEngine(cores=1)
        relations = {
            name: engine.rows([held[name]], iter, schema) for name, schema in self.schemas.items()
        }
        yield from engine.query(self.query, **relations).collect().to_batches()


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()
