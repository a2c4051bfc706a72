"""The relation `protected`, as parts with keys, encoded while it is read."""

from __future__ import annotations

import io
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.gc.parts import Part, PartRows, parquet_writer
from ebbtide.gc.relations.keys import with_keys
from ebbtide.gc.runs import RunFolder

PROTECTED_ROWS_PER_PART: Final = 100_000
"""Some 2 MB: half of an address is random."""


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
