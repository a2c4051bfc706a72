"""Small helpers over pyarrow that several layers need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc


def make_schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """A schema from names and types."""
    return pa.schema([pa.field(name, kind) for name, kind in columns])


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """A table from rows, of which there may be none."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * len(schema)
    return pa.table(columns, schema=schema)


def texts(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[str]:
    """A text column without nulls as a list."""
    return cast("list[str]", column.to_pylist())


def counts(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[int]:
    """A column of whole numbers without nulls as a list."""
    return cast("list[int]", column.to_pylist())


def instants(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[datetime]:
    """A column of dates without nulls as a list."""
    return cast("list[datetime]", column.to_pylist())


def without(table: pa.Table, name: str, known: pa.Table) -> pa.Table:
    """The rows of `table` whose value in column `name` is not in that column of `known`."""
    there = pc.is_in(table.column(name), value_set=known.column(name))
    return table.filter(pc.invert(there))


def first_match(
    texts: pa.StringArray, patterns: Iterable[tuple[str, str]], *, otherwise: str
) -> pa.StringArray:
    """For each text the name of the first pattern (name, regular expression) that matches all of
    it; `otherwise` where none does, and for nulls."""
    conditions: list[pa.Array[Any]] = []
    choices: list[Any] = []
    matched: pa.Array[Any] = pa.repeat(pa.scalar(False), len(texts))
    for name, pattern in patterns:
        conditions.append(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))
        choices.append(pa.scalar(name, pa.string()))
        matched = pc.or_(matched, conditions[-1])
        # Neighbours are mostly of one kind, and that is most often the first.
        if pc.all(matched).as_py():
            break
    found: pa.StringArray = pc.case_when(
        pc.make_struct(*conditions), *choices, pa.scalar(otherwise, pa.string())
    )
    return found


def split_by(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of `table` for each value of a text column, in order of first appearance."""
    for value in texts(pc.unique(table.column(column))):
        yield value, table.filter(pc.equal(table.column(column), pa.scalar(value, pa.string())))
