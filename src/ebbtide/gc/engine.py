"""The contract of engines, which carry out the steps of a run, and of their frames.

A step is a function that is called with tasks. In a `frame` it yields rows of a relation. In a
`run` it writes rows as Parquet parts, and answers with the parts and with counts.

The code that makes plans uses only `Frame`. On Spark, a frame is a Spark DataFrame (`spark`): Spark
exchanges its rows between executors and spills them to disk. Without Spark, its rows are in this
process (`none`). Code that needs the values of rows is a step, a function from batches to batches.
Both engines use the same steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from ebbtide.gc.parts import ANSWERS_SCHEMA, Answers, Part, PartRows, checked
from ebbtide.gc.steps import Meter

Batches: TypeAlias = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]
"""A function from the batches of one partition to batches of a declared schema. Picklable."""

How = Literal["left", "left_anti", "left_semi"]

Work = Callable[[int, Any, PartRows], None]
"""A function that does one task. Called with the task's number, the task, and the answer to
fill."""

TASKS_PER_CORE: Final = 3
ROWS_PER_TASK_MIN: Final = 50_000
ADDRESSES_HELD_MAX: Final = 1_000_000


class Frame(ABC):
    """Rows of `schema`, in partitions. Nothing is computed before `collect`. Each `collect`
    computes everything again, except frames that are `kept`."""

    schema: pa.Schema

    @abstractmethod
    def map(self, step: Step, schema: pa.Schema) -> Frame:
        """Returns a frame of the rows that `step` yields for each partition."""

    @abstractmethod
    def union(self, other: Frame) -> Frame:
        """Returns the rows of both frames, which have the same schema."""

    @abstractmethod
    def select(self, *names: str) -> Frame:
        """Returns the rows with these columns only."""

    @abstractmethod
    def named(self, *names: str) -> Frame:
        """Returns the same columns with other names, given in order."""

    @abstractmethod
    def distinct(self) -> Frame:
        """Returns each different row once."""

    @abstractmethod
    def join(self, other: Frame, on: str, how: How) -> Frame:
        """Joins with `other` by a column of 64-bit integers that both have. Nulls match nothing.

        `left_anti` returns the rows without a match in `other`, and `left_semi` the rows with one.
        `left` returns all rows, with the other columns of the matching row of `other`, or nulls.
        For `left`, `other` must have each value at most once.
        """

    @abstractmethod
    def gathered(self, partitions: int, *names: str) -> Frame:
        """Returns the same rows in `partitions` partitions, each in the order of these columns. The
        first column has 32-bit integers; all rows with the same value of it are in one
        partition."""

    @abstractmethod
    def kept(self) -> Frame:
        """Returns the same rows, computed only once. For frames that are used several times."""

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
        """The number of threads with which a task fetches files ahead (`prefetching`). With 1, it
        fetches none ahead."""
        return 1

    @abstractmethod
    def frame(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> Frame:
        """Returns a frame of the rows (`schema`) that a step yields for the tasks. Tasks and step
        must be picklable."""

    def name_jobs(self, run_id: str, step: str) -> None:
        """Names the next jobs after the run and the step, if the engine shows its jobs."""
        del run_id, step

    def expect(self, rows: int) -> None:
        """Prepares the engine for an exchange of about `rows` rows between tasks."""
        del rows

    @abstractmethod
    def forget(self) -> None:
        """Frees the frames that are kept."""

    def run(self, tasks: Sequence[Any], work: Work) -> Answers:
        """Runs `work` for each task. Returns all answers, the parts in order of kind and name.

        If a task answered with an error, raises Refused or Failed with the kind of the first error
        (as `checked` does). Otherwise raises as `Frame.collect`.
        """

        def step(task: tuple[int, Any]) -> Batches:
            answer = PartRows()
            work(*task, answer)
            yield answer.batch()

        found = self.frame(list(enumerate(tasks)), step, ANSWERS_SCHEMA)
        return checked(found.collect().to_pylist())

    def run_together(self, *steps: tuple[Sequence[Any], Work]) -> Answers:
        """Runs several independent steps at the same time, as `run` does for one step. If one step
        has few tasks, tasks of the others use the free cores.

        Returns the answers of all steps together; the caller tells them apart by their relation.
        """
        works = [work for _, work in steps]
        tasks = [
            (step, number, task)
            for step, (of_step, _) in enumerate(steps)
            for number, task in enumerate(of_step)
        ]

        def work(_number: int, task: tuple[int, int, Any], answer: PartRows) -> None:
            step, number, given = task
            works[step](number, given, answer)

        return self.run(tasks, work)

    def holds(self, parts: Iterable[Part]) -> bool:
        """Whether one process can hold the addresses in `parts` in memory."""
        return sum(part.rows for part in parts) <= self.held_max
