"""The relation `uncommitted`: the addresses that stay without a commit.

They are read from the metadata, whole or for some addresses, and written as parts. Parts are
encoded while the next rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.base import Reading, RepositoryFormat
from ebbtide.formats.capabilities import WithUnnamed
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_batches
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import judged_by

ASKED_AT_ONCE: Final = 2_000
"""The number of addresses in one query of the metadata."""
SIZED_SCHEMA: Final = make_schema(("address", pa.string()), ("size_bytes", pa.int64()))
PROTECTED_ROWS_PER_PART: Final = 100_000
"""The maximum number of rows in a part, which has some 2 MB: half of an address is random."""


def protected_among(
    reading: Reading, folder: RunFolder, parts: Iterable[Part]
) -> Iterator[pa.Table]:
    """Yields the protected rows (PROTECTED_SCHEMA) for the addresses that the rows of parts are
    judged by, in batches. The parts must have a column `address`."""
    tables = read_batches(folder, parts, ADDRESS_SCHEMA, rows_max=ASKED_AT_ONCE)
    return reading.protected(texts(judged_by(table)) for table in tables)


def protected_of(reading: Reading, addresses: pa.ChunkedArray[Any]) -> Iterator[pa.Table]:
    """Yields the protected rows (PROTECTED_SCHEMA) for these addresses, in batches."""

    def some() -> Iterator[Sequence[str]]:
        for start in range(0, len(addresses), ASKED_AT_ONCE):
            yield texts(addresses.slice(start, ASKED_AT_ONCE))

    return reading.protected(some())


def write_protected(folder: RunFolder, tables: Iterable[pa.Table], *, name: str) -> list[Part]:
    """Writes addresses that the metadata names as parts under `name`, and returns the parts.
    `tables` have a column `address`."""
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
    """Writes parts of a bounded size. A table that is larger than a part is not divided."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._answer = PartRows()
        self._numbers = count()
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        rows = sum(each.num_rows for each in self._tables)
        if rows + table.num_rows > PROTECTED_ROWS_PER_PART:
            self._flush()
        self._tables.append(table)

    def finish(self) -> list[Part]:
        """Writes the rows that are left, and returns all parts."""
        self._flush()
        return self._answer.parts()

    def _flush(self) -> None:
        if any(each.num_rows for each in self._tables):
            name = f"{self._name}/part-{next(self._numbers):05d}.parquet"
            table = pa.concat_tables(self._tables)
            self._answer.wrote(self._folder, name, table, relation="protected")
        self._tables = []
