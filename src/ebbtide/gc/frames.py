"""Relations as data frames: rows of a declared schema, which are made when somebody asks for them.

A plan is written once, against `Frame`. On Spark a frame is one of Spark's (`spark`), which
exchanges rows between executors and spills them to disk; in this process alone it is `LocalFrame`.
What looks at values is a step, a function from batches to batches, and the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import EbbtideError, Failed

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]
"""Goes through the batches of one partition. Picklable; what it yields has a declared schema."""

How = Literal["left", "left_anti", "left_semi"]
ROWS_PER_BATCH: Final = 200_000


class Frame(ABC):
    """Rows of `schema`, in partitions. Nothing is computed before `collect`, and all of it again
    for each, but for what is `kept`."""

    schema: pa.Schema

    @abstractmethod
    def map(self, step: Step, schema: pa.Schema) -> Frame:
        """What a step makes of each partition."""

    @abstractmethod
    def union(self, other: Frame) -> Frame:
        """The rows of both, which have one schema."""

    @abstractmethod
    def select(self, *names: str) -> Frame:
        """These columns alone."""

    @abstractmethod
    def named(self, *names: str) -> Frame:
        """The same columns by other names."""

    @abstractmethod
    def distinct(self) -> Frame:
        """Each row once."""

    @abstractmethod
    def join(self, other: Frame, on: str, how: How) -> Frame:
        """By a column of 64-bit integers that both have. `left_anti`: the rows of which `other` has
        none; `left_semi`: those of which it has some. `left`: all, with the columns of the other's
        row, or nulls; it has each value at most once. A null is equal to nothing."""

    @abstractmethod
    def gathered(self, partitions: int, *names: str) -> Frame:
        """The same rows in as many partitions, by the first of these columns, of 32-bit integers,
        and in the order of all: a partition has all rows with a value."""

    @abstractmethod
    def kept(self) -> Frame:
        """The same, computed once, for who asks for it more often."""

    @abstractmethod
    def collect(self) -> pa.Table:
        """All rows, here. Raises what a step raised: an EbbtideError as it was, and Failed
        `task_failed` for anything else."""


class LocalFrame(Frame):
    """A frame in this process, as one partition. It holds what it joins."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Batches]) -> None:
        self.schema = schema
        self._batches = batches

    def map(self, step: Step, schema: pa.Schema) -> LocalFrame:
        """See `Frame.map`."""
        return LocalFrame(schema, lambda: step(self._batches()))

    def union(self, other: Frame) -> LocalFrame:
        """See `Frame.union`."""
        return self._from(lambda: pa.concat_tables([self._table(), other.collect()]))

    def select(self, *names: str) -> LocalFrame:
        """See `Frame.select`."""
        schema = pa.schema([self.schema.field(name) for name in names])
        return LocalFrame(schema, lambda: (batch.select(list(names)) for batch in self._batches()))

    def named(self, *names: str) -> LocalFrame:
        """See `Frame.named`."""
        schema = pa.schema([f.with_name(n) for f, n in zip(self.schema, names, strict=True)])
        return LocalFrame(
            schema,
            lambda: (pa.record_batch(each.columns, schema=schema) for each in self._batches()),
        )

    def distinct(self) -> LocalFrame:
        """See `Frame.distinct`."""

        def distinct() -> pa.Table:
            names = self.schema.names
            if len(names) == 1:
                return pa.table([pc.unique(self._table().column(0))], schema=self.schema)
            grouped = self._table().group_by(names, use_threads=False).aggregate([])
            return grouped.select(names)

        return self._from(distinct)

    def join(self, other: Frame, on: str, how: How) -> LocalFrame:
        """See `Frame.join`."""
        if how != "left":
            is_semi = how == "left_semi"
            return self._from(lambda: _chosen(self._table(), other.collect(), on, is_in=is_semi))
        more = [each for each in other.schema if each.name != on]
        schema = pa.schema([*self.schema, *more])
        return LocalFrame(
            schema, lambda: iter(_looked_up(self._table(), other.collect(), on).to_batches())
        )

    def gathered(self, partitions: int, *names: str) -> LocalFrame:
        """See `Frame.gathered`."""
        del partitions
        order: Any = [(name, "ascending") for name in names]
        return self._from(lambda: self._table().sort_by(order))

    def kept(self) -> LocalFrame:
        """See `Frame.kept`."""
        table = self.collect()
        return self._from(lambda: table)

    def collect(self) -> pa.Table:
        """See `Frame.collect`."""
        try:
            return self._table()
        except EbbtideError:
            raise
        except Exception as error:
            raise Failed(
                "task_failed", f"a step of the run failed: {type(error).__name__}: {error}"
            ) from error

    def _table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches(), self.schema)

    def _from(self, table: Callable[[], pa.Table]) -> LocalFrame:
        return LocalFrame(self.schema, lambda: iter(table().to_batches(ROWS_PER_BATCH)))


def _chosen(left: pa.Table, right: pa.Table, on: str, *, is_in: bool) -> pa.Table:
    known = pc.is_in(left.column(on), value_set=right.column(on).drop_null())
    return left.filter(known if is_in else pc.invert(known))


def _looked_up(left: pa.Table, right: pa.Table, on: str) -> pa.Table:
    right = right.filter(pc.is_valid(right.column(on))).sort_by(on).combine_chunks()
    values, wanted = right.column(on).to_numpy(), left.column(on)
    places = np.searchsorted(values, wanted.fill_null(pa.scalar(0, pa.int64())).to_numpy())
    places[places == len(values)] = 0
    if len(values):
        found = pc.is_valid(wanted).to_numpy()
        found &= values[places] == wanted.fill_null(pa.scalar(0, pa.int64())).to_numpy()
    else:
        found = np.zeros(left.num_rows, np.bool_)
    rows = pa.array(places, pa.int64(), mask=~found)
    for field in right.schema:
        if field.name != on:
            left = left.append_column(field, right.column(field.name).take(rows))
    return left
