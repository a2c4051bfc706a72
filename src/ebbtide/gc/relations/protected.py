"""The relation `protected`: reads it from the metadata, whole or for some addresses, and writes it
as parts with keys. Parts are encoded while the next rows are read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.base import Reading, RepositoryFormat
from ebbtide.formats.capabilities import WithUnnamed
from ebbtide.gc.parts import Part, PartRows, parquet_writer, read_batches
from ebbtide.gc.relations.inventory import JUDGED_SCHEMA, judged_by
from ebbtide.gc.relations.keys import with_keys
from ebbtide.gc.runs import RunFolder

ASKED_AT_ONCE: Final = 2_000
"""The number of addresses in one query of the metadata."""
SIZED_SCHEMA: Final = make_schema(("address", pa.string()), ("size_bytes", pa.int64()))
PROTECTED_ROWS_PER_PART: Final = 100_000
"""The maximum number of rows in a part, which has some 2 MB: half of an address is random."""


def protected_among(
    reading: Reading, folder: RunFolder, parts: Iterable[Part]
) -> Iterator[pa.Table]:
    """Yields the protected rows (PROTECTED_SCHEMA) for the addresses that the rows of parts are
    judged by, in batches. The parts must have the columns of JUDGED_SCHEMA."""
    tables = read_batches(folder, parts, JUDGED_SCHEMA, rows_max=ASKED_AT_ONCE)
    return reading.protected(texts(judged_by(table)) for table in tables)


def protected_of(reading: Reading, addresses: pa.ChunkedArray[Any]) -> Iterator[pa.Table]:
    """Yields the protected rows (PROTECTED_SCHEMA) for these addresses, in batches."""

    def some() -> Iterator[Sequence[str]]:
        for start in range(0, len(addresses), ASKED_AT_ONCE):
            yield texts(addresses.slice(start, ASKED_AT_ONCE))

    return reading.protected(some())


def write_protected(folder: RunFolder, tables: Iterable[pa.Table], *, name: str) -> list[Part]:
    """Writes addresses that the metadata names as parts with keys under `name`, and returns the
    parts. `tables` have a column `address`."""
    writer = _ProtectedWriter(folder, name)
    # A thread encodes one table while the database reads the next. Both release the GIL.
    with ThreadPoolExecutor(1, thread_name_prefix="protected") as pool:
        writing: Future[None] | None = None
        for table in tables:
            if writing is not None:
                writing.result()
            writing = pool.submit(writer.add, table)
        if writing is not None:
            writing.result()
    return writer.finish()


def write_unseen(
    repository: RepositoryFormat, folder: RunFolder, candidates: Iterable[Part], *, name: str
) -> list[Part]:
    """Writes the addresses that `WithUnnamed.used_unseen` finds for the rows of `candidates`,
    as `write_protected` does."""
    if not isinstance(repository, WithUnnamed):
        return []
    tables = read_batches(folder, candidates, SIZED_SCHEMA, rows_max=PROTECTED_ROWS_PER_PART)
    return write_protected(folder, repository.used_unseen(tables), name=name)


class _ProtectedWriter:
    """Writes parts of a bounded size, and encodes rows as they come. A table that is larger than a
    part is not divided."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._answer = PartRows()
        self._numbers = count()
        self._sink = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
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
        """Writes the rows that are left, and returns all parts."""
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
