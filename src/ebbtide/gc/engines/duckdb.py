"""The embedded engine: DuckDB compares rows, and threads of this process carry out steps.

It needs no Java and no other process. DuckDB uses all cores, holds at most MEMORY_MAX_BYTES, and
spills the rest to a temporary directory. With one core, all steps run in the caller's thread.

DuckDB never calls Python: the rows of a step are there before they are compared. An error of a
step, or an interrupt, is therefore raised where the step runs.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count, pairwise
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ebbtide import interrupts
from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.engines.base import ADDRESSES_HELD_MAX, Batches, Engine, Query, Relation, Step
from ebbtide.gc.prefetch import AT_ONCE, ahead, closed_at_end
from ebbtide.resources import memory_limit_bytes, processor_count

MEMORY_MAX_BYTES: Final = 1 << 30
"""The memory in which DuckDB joins and sorts before it spills, or less in a small container."""
ROWS_PER_BATCH: Final = 20_000
_SETTINGS: Final = {
    # An extension would come from DuckDB's own host.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # No query relies on the order in which rows were inserted.
    "preserve_insertion_order": "false",
}


class DuckEngine(Engine):
    """Carries out steps in this process."""

    def __init__(
        self,
        *,
        cores: int | None = None,
        held_max: int = ADDRESSES_HELD_MAX,
        memory_max_bytes: int = MEMORY_MAX_BYTES,
    ) -> None:
        """`cores` is the number of processors to use; by default all that this process may use.
        DuckDB holds at most `memory_max_bytes`."""
        super().__init__(held_max=held_max)
        self._cores = processor_count() if cores is None else cores
        self._memory_max_bytes = memory_max_bytes
        self._database: duckdb.DuckDBPyConnection | None = None
        self._remove_spilled: Callable[[], object] = lambda: None
        self._numbers = count()

    @property
    def name(self) -> str:
        """The engine's name in reports: `duckdb`."""
        return "duckdb"

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        return self._cores

    @property
    def task_count(self) -> int:
        """One with one core: more tasks would only read the same parts again."""
        return super().task_count if self._cores > 1 else 1

    @property
    def fetches_at_once(self) -> int:
        """The number of threads with which a task fetches files ahead."""
        return AT_ONCE if self._cores > 1 else 1

    def forget(self) -> None:
        """Does nothing: kept rows are freed together with their relation. Another run may use the
        same engine."""

    def close(self) -> None:
        """Closes the database, and removes its directory. A later query opens a new one."""
        if self._database is not None:
            self._database.close()
            self._database = None
            self._remove_spilled()

    def rows(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> Relation:
        """Returns the rows that a step yields for the tasks, in the order of the tasks."""
        return _Steps(self, schema, lambda: iter(tasks), step)

    def query(self, query: Query, **relations: Relation) -> Relation:
        """Returns the rows of a query over these relations."""
        return _Selected(self, query, relations)

    def each(
        self, step: Callable[[Any], Batches], tasks: Iterator[Any]
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the batches of each task, in order. As many tasks run at once as there are
        cores. After an interrupt or an error, the others end at their next check."""
        if self._cores == 1:
            with closed_at_end(tasks):
                for task in tasks:
                    yield from step(task)
            return
        is_over = threading.Event()

        def work(task: Any) -> list[pa.RecordBatch]:
            found = []
            with interrupts.until(is_over), closed_at_end(rows := step(task)):
                for batch in rows:
                    found.append(batch)
                    interrupts.check()
            return found

        with closing(ahead(work, tasks, at_once=self._cores, at_end=is_over.set)) as done:
            for _, batches in done:
                yield from batches

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Returns a connection of its own to the database, which is made at the first call."""
        if self._database is None:
            spilled = tempfile.mkdtemp(prefix="ebbtide-duckdb-")
            self._database = _open(self._cores, self._memory_max_bytes, spilled)
            self._remove_spilled = weakref.finalize(
                self._database, shutil.rmtree, spilled, ignore_errors=True
            )
        return self._database.cursor()

    def new_name(self) -> str:
        """Returns the name of a new table."""
        return f"rows_{next(self._numbers)}"


def _open(cores: int, memory_max_bytes: int, spilled: str) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory, with a directory for what does not fit."""
    limit = memory_limit_bytes()
    memory = memory_max_bytes if limit is None else min(memory_max_bytes, limit // 4)
    return duckdb.connect(
        ":memory:",
        config={
            **_SETTINGS,
            "threads": str(cores),
            "memory_limit": f"{memory // 1024}KiB",
            "temp_directory": spilled,
        },
    )


class _Rows(Relation):
    """A relation of this engine."""

    def __init__(self, engine: DuckEngine, schema: pa.Schema) -> None:
        self.engine = engine
        self.schema = schema

    @abstractmethod
    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Computes the rows, and yields them. To be closed: it may have a connection, or a step
        with open files."""

    @abstractmethod
    def source(self, cursor: duckdb.DuckDBPyConnection) -> str:
        """Returns SQL for the rows, for use after FROM in a query on `cursor`."""

    def map(
        self, step: Step, schema: pa.Schema, *, by: Sequence[str] = (), tasks: int = 1
    ) -> Relation:
        """Applies a step to all rows, or to the partitions `by` columns, as `Relation.map` says."""
        if by:
            return _Steps(self.engine, schema, partial(self._partitions, by, tasks), step)

        def mapped(_task: None) -> Batches:
            with closing(self.batches()) as rows:
                yield from step(rows)

        return _Steps(self.engine, schema, lambda: iter([None]), mapped)

    def _partitions(self, by: Sequence[str], tasks: int) -> Iterator[Batches]:
        """Yields the batches of each partition that has rows."""
        order = ", ".join(f'"{name}"' for name in by)
        text = f'SELECT * FROM {{rows}} ORDER BY "{by[0]}" % {tasks}, {order}'
        ordered = _Selected(self.engine, Query(text, self.schema), {"rows": self})
        held: list[pa.RecordBatch] = []
        current = -1
        with closing(ordered.batches()) as batches:
            for batch in batches:
                shares = batch.column(by[0]).to_numpy() % tasks
                edges = (np.flatnonzero(np.diff(shares)) + 1).tolist()
                for start, stop in pairwise([0, *edges, len(shares)] if len(shares) else []):
                    if held and shares[start] != current:
                        yield iter(held)
                        held = []
                    current = int(shares[start])
                    held.append(batch.slice(start, stop - start))
        if held:
            yield iter(held)

    def kept(self) -> Relation:
        """Computes the rows now, and returns a relation that has them in DuckDB."""
        with _failures(), _cursor(self.engine) as cursor:
            name = self.engine.new_name()
            cursor.execute(f"CREATE TABLE {name} AS SELECT * FROM {self.source(cursor)}")
        return _Kept(self.engine, self.schema, name)

    def collect(self) -> pa.Table:
        """Returns all rows. Raises the EbbtideError of a step, and Failed `task_failed` for any
        other error."""
        with _failures(), closing(self.batches()) as batches:
            return pa.Table.from_batches(batches, self.schema)


class _Steps(_Rows):
    """The rows that a step yields for tasks. `tasks` is called each time that they are computed."""

    def __init__(
        self,
        engine: DuckEngine,
        schema: pa.Schema,
        tasks: Callable[[], Iterator[Any]],
        step: Callable[[Any], Batches],
    ) -> None:
        super().__init__(engine, schema)
        self._tasks = tasks
        self._step = step

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Carries out the step for each task."""
        return self.engine.each(self._step, self._tasks())

    def map(
        self, step: Step, schema: pa.Schema, *, by: Sequence[str] = (), tasks: int = 1
    ) -> Relation:
        """Without `by`, each task carries out both steps."""
        if by:
            return super().map(step, schema, by=by, tasks=tasks)
        before = self._step

        def mapped(task: Any) -> Batches:
            with closed_at_end(rows := before(task)):
                yield from step(rows)

        return _Steps(self.engine, schema, self._tasks, mapped)

    def source(self, cursor: duckdb.DuckDBPyConnection) -> str:
        """Names few rows, or a table that many rows are inserted into, and returns the name."""
        name, held, rows, is_table = self.engine.new_name(), list[pa.RecordBatch](), 0, False

        def insert() -> None:
            cursor.register("given", _Stream(pa.Table.from_batches(held, self.schema)))
            into = f"INSERT INTO {name}" if is_table else f"CREATE TEMP TABLE {name} AS"
            cursor.execute(f"{into} SELECT * FROM given")

        with closing(self.batches()) as batches:
            for batch in batches:
                held.append(batch)
                rows += batch.num_rows
                if rows >= ROWS_PER_BATCH:
                    insert()
                    held, rows, is_table = [], 0, True
        if is_table:
            insert()
        else:
            cursor.register(name, _Stream(pa.Table.from_batches(held, self.schema)))
        return name


class _Stream:
    """A table as an Arrow stream. For other objects of Arrow, DuckDB would import Arrow's datasets
    and pandas, which takes long."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


@contextmanager
def _cursor(engine: DuckEngine) -> Iterator[duckdb.DuckDBPyConnection]:
    """Provides a connection for one query. After an interrupt, raises its KeyboardInterrupt, for
    which DuckDB raises a RuntimeError."""
    cursor = engine.cursor()
    try:
        yield cursor
    except BaseException as error:
        cursor.interrupt()  # a query that goes on would delay the end of the program
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    finally:
        cursor.close()


class _Selected(_Rows):
    """The rows of a query. A query over other queries is one query for DuckDB."""

    def __init__(self, engine: DuckEngine, query: Query, relations: Mapping[str, Relation]) -> None:
        super().__init__(engine, query.schema)
        self._text = query.text
        self._relations = relations

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Carries out the query."""
        with _cursor(self.engine) as cursor:
            # `execute` would copy all rows before the first batch, since DuckDB 2.
            for batch in cursor.sql(self._filled(cursor)).to_arrow_reader(ROWS_PER_BATCH):
                yield batch.cast(self.schema)

    def source(self, cursor: duckdb.DuckDBPyConnection) -> str:
        """Returns the query in brackets."""
        return f"({self._filled(cursor)})"

    def _filled(self, cursor: duckdb.DuckDBPyConnection) -> str:
        """Returns the text with the sources of its relations."""
        given: dict[str, str] = {}
        for name, relation in self._relations.items():
            assert isinstance(relation, _Rows)
            given[name] = relation.source(cursor)
        return self._text.format_map(given)


class _Kept(_Rows):
    """The rows of a table, which is dropped together with this relation."""

    def __init__(self, engine: DuckEngine, schema: pa.Schema, name: str) -> None:
        super().__init__(engine, schema)
        self._name = name
        weakref.finalize(self, _drop, engine.cursor(), name)

    def kept(self) -> Relation:
        """Returns this."""
        return self

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Reads the table."""
        every = Query("SELECT * FROM {rows}", self.schema)
        return _Selected(self.engine, every, {"rows": self}).batches()

    def source(self, cursor: duckdb.DuckDBPyConnection) -> str:
        """Returns the table's name."""
        del cursor
        return self._name


def _drop(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    with closing(cursor), suppress(duckdb.Error):  # such as: `close` has closed the database
        cursor.execute(f"DROP TABLE {name}")


@contextmanager
def _failures() -> Iterator[None]:
    """Raises Failed `task_failed` for errors in the block that are not of this program."""
    try:
        yield
    except EbbtideError:
        raise
    except Exception as error:
        raise Failed(
            "task_failed", f"a step of the run failed: {type(error).__name__}: {error}"
        ) from error
