"""The engine without Spark: carries out steps in this process.

For tests, and for repositories of some hundred thousand files. It needs no Java, no other process
and no threads. It uses one core, and holds all rows in memory that Spark would exchange or spill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.engine import Batches, Engine, Frame, How, Step

ROWS_PER_BATCH: Final = 200_000


class LocalEngine(Engine):
    """Carries out steps in this process, one task after the other."""

    @property
    def name(self) -> str:
        """The engine's name in reports: `none`."""
        return "none"

    @property
    def cores(self) -> int:
        """One: tasks run one after the other."""
        return 1

    @property
    def task_count(self) -> int:
        """One: more tasks would only read the same parts again."""
        return 1

    def forget(self) -> None:
        """Does nothing: kept rows are freed together with their frame."""

    def frame(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> LocalFrame:
        """Returns a frame that calls `step` for one task after the other when its rows are
        read."""
        return LocalFrame(schema, lambda: chain.from_iterable(map(step, tasks)))


class LocalFrame(Frame):
    """A frame in this process, with one partition. It holds both sides of a join in memory."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Batches]) -> None:
        self.schema = schema
        self._batches = batches

    def map(self, step: Step, schema: pa.Schema) -> LocalFrame:
        """Returns a frame that applies `step` to all batches when its rows are read."""
        return LocalFrame(schema, lambda: step(self._batches()))

    def union(self, other: Frame) -> LocalFrame:
        """Returns the rows of both frames."""
        return self._from(lambda: pa.concat_tables([self._table(), other.collect()]))

    def select(self, *names: str) -> LocalFrame:
        """Returns the rows with these columns only."""
        schema = pa.schema([self.schema.field(name) for name in names])
        return LocalFrame(schema, lambda: (batch.select(list(names)) for batch in self._batches()))

    def named(self, *names: str) -> LocalFrame:
        """Returns the same columns with other names, given in order."""
        schema = pa.schema([f.with_name(n) for f, n in zip(self.schema, names, strict=True)])
        return LocalFrame(
            schema,
            lambda: (pa.record_batch(each.columns, schema=schema) for each in self._batches()),
        )

    def distinct(self) -> LocalFrame:
        """Returns each different row once."""

        def distinct() -> pa.Table:
            names = self.schema.names
            if len(names) == 1:
                return pa.table([pc.unique(self._table().column(0))], schema=self.schema)
            grouped = self._table().group_by(names, use_threads=False).aggregate([])
            return grouped.select(names)

        return self._from(distinct)

    def join(self, other: Frame, on: str, how: How) -> LocalFrame:
        """Joins with `other` by a column, as `Frame.join` says."""
        if how != "left":
            is_semi = how == "left_semi"
            return self._from(lambda: _chosen(self._table(), other.collect(), on, is_in=is_semi))
        schema = pa.schema([*self.schema, *(each for each in other.schema if each.name != on)])
        return LocalFrame(
            schema, lambda: iter(_looked_up(self._table(), other.collect(), on).to_batches())
        )

    def gathered(self, partitions: int, *names: str) -> LocalFrame:
        """Returns the rows in the order of these columns, in one partition."""
        del partitions
        order: Any = [(name, "ascending") for name in names]
        return self._from(lambda: self._table().sort_by(order))

    def kept(self) -> LocalFrame:
        """Computes the rows now, and returns a frame that has them in memory."""
        table = self.collect()
        return self._from(lambda: table)

    def collect(self) -> pa.Table:
        """Returns all rows. Raises the EbbtideError of a step, and Failed `task_failed` for any
        other error."""
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
    values, asked = right.column(on).to_numpy(), left.column(on)
    wanted = asked.fill_null(pa.scalar(0, pa.int64())).to_numpy()
    places = np.searchsorted(values, wanted)
    places[places == len(values)] = 0
    found = np.zeros(left.num_rows, np.bool_)
    if len(values):
        found = pc.is_valid(asked).to_numpy() & (values[places] == wanted)
    rows = pa.array(places, pa.int64(), mask=~found)
    for field in right.schema:
        if field.name != on:
            left = left.append_column(field, right.column(field.name).take(rows))
    return left
