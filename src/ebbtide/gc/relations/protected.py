"""The relation `protected`: what of it the metadata is asked for, and its parts with keys, encoded
while it is read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.formats.base import Reading
from ebbtide.gc.parts import Part, PartRows, parquet_writer, read_batches
from ebbtide.gc.relations.inventory import JUDGED_SCHEMA, judged_by
from ebbtide.gc.relations.keys import with_keys
from ebbtide.gc.runs import RunFolder

ASKED_AT_ONCE: Final = 2_000
"""Addresses that the metadata is asked for together."""
PROTECTED_ROWS_PER_PART: Final = 100_000
"""Some 2 MB: half of an address is random."""


def protected_among(
    reading: Reading, folder: RunFolder, parts: Iterable[Part]
) -> Iterator[pa.Table]:
    """What is protected (PROTECTED_SCHEMA) of the addresses by which the rows of parts (of
    JUDGED_SCHEMA, among others) are judged, in batches."""
    tables = read_batches(folder, parts, JUDGED_SCHEMA, rows_max=ASKED_AT_ONCE)
    return reading.protected(texts(judged_by(table)) for table in tables)


def protected_of(reading: Reading, addresses: pa.ChunkedArray[Any]) -> Iterator[pa.Table]:
    """The same of addresses that are held."""

    def some() -> Iterator[Sequence[str]]:
        for start in range(0, len(addresses), ASKED_AT_ONCE):
            yield texts(addresses.slice(start, ASKED_AT_ONCE))

    return reading.protected(some())


def write_protected(folder: RunFolder, tables: Iterable[pa.Table], *, name: str) -> list[Part]:
    """Write the relation `protected`, or `purged`, as parts under `name`, with keys."""
    writer = _ProtectedWriter(folder, name)
    # A table is written while the database is asked for the next: neither needs the interpreter.
    with ThreadPoolExecutor(1, thread_name_prefix="protected") as pool:
        writing: Future[None] | None = None
        for table in tables:
            if writing is not None:
                writing.result()
            writing = pool.submit(writer.add, table)
        if writing is not None:
            writing.result()
    return writer.finish()


class _ProtectedWriter:
    """Parts of a bounded size, encoded as their rows come. A table that is larger stays whole."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._answer = PartRows()
        self._numbers = count()
        self._sink = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Take rows."""
        if not table.num_rows:
            return
        if self._rows + table.num_rows > PROTECTED_ROWS_PER_PART:
            self._flush()
        keyed = with_keys(table, table.column("address"))
        if self._writer is None:
            self._writer = parquet_writer(self._sink, keyed.schema)
        self._writer.write_table(keyed)
        self._rows += keyed.num_rows

    def finish(self) -> list[Part]:
        """Write what is left; all parts."""
        self._flush()
        return self._answer.parts()

    def _flush(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        name = f"{self._name}/part-{next(self._numbers):05d}.parquet"
        data = self._sink.getvalue()
        self._answer.encoded(self._folder, name, data, rows=self._rows, relation="protected")
        self._sink, self._writer, self._rows = io.BytesIO(), None, 0
