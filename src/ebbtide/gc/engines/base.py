"""The contract of engines, which carry out the steps of a run, and of their relations.

A step is a function that is called with tasks. In a relation (`rows`) it yields rows. In a `run` it
writes rows as Parquet parts, and answers with the parts and with counts.

Code that needs the values of rows is a step, a function from batches to batches. Code that compares
rows is a `Query`: SQL text, which both engines carry out as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ebbtide.gc.parts import ANSWERS_SCHEMA, Answers, Part, PartRows, checked
from ebbtide.gc.steps import Meter

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]
"""A function from the batches of one partition to batches of a declared schema. Picklable."""

Work = Callable[[int, Any, PartRows], None]
"""A function that does one task. Called with the task's number, the task, and the answer to
fill."""

TASKS_PER_CORE: Final = 3
ROWS_PER_TASK_MIN: Final = 50_000
ADDRESSES_HELD_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT over relations, in the SQL that Spark and DuckDB share, and the columns of its rows.

    The text names a relation as `{name}`. Relations are joined by columns of 64-bit integers alone,
    where nulls match nothing. A hint such as `/*+ SHUFFLE_HASH(s) */` makes Spark build a hash
    table of each partition of `s`. This takes less time and memory than to sort both sides. For
    DuckDB it is a comment.
    """

    text: str
    schema: pa.Schema


class Relation(ABC):
    """Rows of `schema`, in partitions. Nothing is computed before `collect`. Each `collect`
    computes everything again, except relations that are `kept`."""

    schema: pa.Schema

    @abstractmethod
    def map(
        self, step: Step, schema: pa.Schema, *, by: Sequence[str] = (), tasks: int = 1
    ) -> Relation:
        """Returns the rows that `step` yields for each partition.

        With `by`, the rows are first divided among `tasks` partitions, each in the order of these
        columns. The first column has 32-bit integers that are not negative; all rows with the same
        value of it are in one partition.
        """

    @abstractmethod
    def kept(self) -> Relation:
        """Returns the same rows, computed only once. For relations that are used several times."""

    @abstractmethod
    def collect(self) -> pa.Table:
        """Returns all rows to the driver. If a step raised an EbbtideError, raises the same error.
        Raises Failed for any other error: `task_failed`, or on Spark `spark_error`."""


class Engine(ABC):
    """Carries out steps. `held_max` is the number of addresses that each process can hold in
    memory, at some 50 bytes each. `meter` has the progress of the current step."""

    def __init__(self, *, held_max: int = ADDRESSES_HELD_MAX) -> None:
        self.held_max = held_max
        self.meter = Meter()

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name in reports."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """The number of tasks that run at the same time."""

    @property
    def task_count(self) -> int:
        """The number of tasks for a large step: a few for each core, so that a slow task delays
        the step only a little."""
        return TASKS_PER_CORE * self.cores

    def tasks_for(self, rows: int) -> int:
        """Returns the number of tasks for a number of rows. Few rows are one task, because each
        task takes time to start."""
        return min(self.task_count, 1 + rows // ROWS_PER_TASK_MIN)

    @property
    def fetches_at_once(self) -> int:
        """The number of threads with which a task fetches files ahead (`prefetch`). With 1, it
        fetches none ahead."""
        return 1

    @abstractmethod
    def rows(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> Relation:
        """Returns the rows (`schema`) that a step yields for the tasks, each task in a partition of
        its own. Tasks and step must be picklable."""

    @abstractmethod
    def query(self, query: Query, **relations: Relation) -> Relation:
        """Returns the rows of a query over these relations."""

    def union(self, *relations: Relation) -> Relation:
        """Returns the rows of all relations, which have the same schema."""
        if len(relations) == 1:
            return relations[0]
        named = {f"part_{number}": each for number, each in enumerate(relations)}
        text = " UNION ALL ".join(f"SELECT * FROM {{{name}}}" for name in named)
        return self.query(Query(text, relations[0].schema), **named)

    def name_jobs(self, run_id: str, step: str) -> None:
        """Names the next jobs after the run and the step, if the engine shows its jobs."""
        del run_id, step

    def expect(self, rows: int) -> None:
        """Prepares the engine for an exchange of about `rows` rows between tasks."""
        del rows

    @abstractmethod
    def forget(self) -> None:
        """Frees the relations that are kept."""

    def close(self) -> None:
        """Frees what an engine of one user holds. Not for an engine that others use too."""
        self.forget()

    def run(self, tasks: Sequence[Any], work: Work) -> Answers:
        """Runs `work` for each task. Returns all answers, the parts in order of kind and name.

        If a task answered with an error, raises Refused or Failed with the kind of the first error
        (as `checked` does). Otherwise raises as `Relation.collect`.
        """

        def step(task: tuple[int, Any]) -> Batches:
            answer = PartRows()
            work(*task, answer)
            yield answer.batch()

        return answers_of(self.rows(list(enumerate(tasks)), step, ANSWERS_SCHEMA))

    def holds(self, parts: Iterable[Part]) -> bool:
        """Whether one process can hold the addresses in `parts` in memory."""
        return sum(part.rows for part in parts) <= self.held_max


def answers_of(found: Relation) -> Answers:
    """Computes a relation of answers (ANSWERS_SCHEMA), and returns them. Raises as `Engine.run`."""
    return checked(found.collect().to_pylist())
