"""Small helpers for pyarrow that several layers need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


def make_schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """Returns a schema from names and types."""
    return pa.schema([pa.field(name, kind) for name, kind in columns])


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Returns a table from rows. There may be no rows."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * len(schema)
    return pa.table(columns, schema=schema)


def rows_in(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a batch, as `table_of` accepts them."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def around(prefix: str, column: Column, suffix: str = "") -> pa.ChunkedArray[Any]:
    """Returns each text of a column between a prefix and a suffix."""
    parts: Any = (prefix, column, suffix, "")  # the last one is the separator
    found: Any = pc.binary_join_element_wise(*parts)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def distinct(columns: Iterable[Column]) -> pa.Array[Any]:
    """Returns the texts of several columns, each text once."""
    chunks = [
        chunk
        for column in columns
        for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    ]
    found: Any = pc.unique(cast("Any", pa.chunked_array(chunks, pa.string())))
    return cast("pa.Array[Any]", found)


def numbered(column: Column) -> Numbers:
    """Returns a number for each value of a column. Equal values have equal numbers, counted from 0
    by first appearance."""
    whole: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers: Numbers = whole.dictionary_encode().indices.to_numpy()
    return numbers


def first_of_each(numbers: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns whether each of the numbers from `numbered` is the first of its value."""
    before = np.concatenate(([-1], np.maximum.accumulate(numbers)))[:-1]
    found: np.ndarray[Any, np.dtype[np.bool_]] = numbers > before
    return found


def texts(column: Column) -> list[str]:
    """Returns a text column without nulls as a list."""
    return cast("list[str]", column.to_pylist())


def counts(column: Column) -> list[int]:
    """Returns a column of whole numbers without nulls as a list."""
    return cast("list[int]", column.to_pylist())


def instants(column: Column) -> list[datetime]:
    """Returns a column of dates without nulls as a list."""
    return cast("list[datetime]", column.to_pylist())


def without(table: pa.Table, name: str, known: pa.Table) -> pa.Table:
    """Returns the rows of `table` whose value in column `name` is not in that column of `known`."""
    there = pc.is_in(table.column(name), value_set=known.column(name))
    return table.filter(pc.invert(there))


def first_match(
    texts: pa.StringArray, patterns: Iterable[tuple[str, str]], *, otherwise: str
) -> pa.StringArray:
    """Returns for each text the name of the first pattern (name, regular expression) that matches
    the whole text. Returns `otherwise` for nulls, and if no pattern matches."""
    conditions: list[pa.Array[Any]] = []
    choices: list[Any] = []
    matched: pa.Array[Any] = pa.repeat(pa.scalar(False), len(texts))
    for name, pattern in patterns:
        conditions.append(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))
        choices.append(pa.scalar(name, pa.string()))
        matched = pc.or_(matched, conditions[-1])
        # Neighbouring texts mostly match the same pattern, most often the first one.
        if pc.all(matched).as_py():
            break
    found: pa.StringArray = pc.case_when(
        pc.make_struct(*conditions), *choices, pa.scalar(otherwise, pa.string())
    )
    return found


def split_by(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """Yields each value of a text column with its rows, in order of first appearance."""
    for value in texts(pc.unique(table.column(column))):
        yield value, table.filter(pc.equal(table.column(column), pa.scalar(value, pa.string())))
