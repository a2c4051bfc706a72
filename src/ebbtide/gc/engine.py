"""Engines, which carry out the steps of a run: Spark (`spark`), or this process itself.

A step is a function that is called with tasks. In a `frame` it yields rows of a relation. In a
`run` it writes rows as Parquet parts, and answers with the parts and with counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from ebbtide.gc.frames import Batches, Frame, LocalFrame
from ebbtide.gc.meter import Meter
from ebbtide.gc.parts import ANSWERS_SCHEMA, Answers, Part, PartRows, checked

Work = Callable[[int, Any, PartRows], None]
"""A function that does one task. Called with the task's number, the task, and the answer to
fill."""

TASKS_PER_CORE: Final = 3
ROWS_PER_TASK_MIN: Final = 50_000
ADDRESSES_HELD_MAX: Final = 1_000_000


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


class LocalEngine(Engine):
    """Carries out steps in this process, one task after the other, without Java, other processes
    or threads. For tests, and for repositories of some hundred thousand files: it uses one core,
    and holds all rows in memory that Spark would exchange or spill to disk."""

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
