"""What carries out the steps of a run: Spark (`spark`), or this process itself.

A step is a function that is called with tasks. It yields rows of a relation (`frame`), or writes
them as Parquet parts and answers with these (`run`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from ebbtide.gc.frames import Batches, Frame, LocalFrame
from ebbtide.gc.meter import Meter
from ebbtide.gc.parts import PARTS_SCHEMA, Part, PartRows, checked

Work = Callable[[int, Any, PartRows], None]
"""Does one task: called with its number, the task, and the answer to fill."""

TASKS_PER_CORE: Final = 3
ROWS_PER_TASK_MIN: Final = 50_000
ADDRESSES_HELD_MAX: Final = 1_000_000


class Engine(ABC):
    """Runs steps. `held_max`: addresses that each process can hold, some 50 bytes each. `meter`
    counts how far a step has come."""

    def __init__(self, *, held_max: int = ADDRESSES_HELD_MAX) -> None:
        self.held_max = held_max
        self.meter = Meter()

    @property
    @abstractmethod
    def name(self) -> str:
        """What reports call it."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """Tasks that run at the same time."""

    @property
    def task_count(self) -> int:
        """How many tasks to make of a step: a few for each core, so that a slow one delays
        little."""
        return TASKS_PER_CORE * self.cores

    def tasks_for(self, rows: int) -> int:
        """How many tasks to make of so many rows: of few, one, since each costs its start."""
        return min(self.task_count, 1 + rows // ROWS_PER_TASK_MIN)

    @property
    def fetches_at_once(self) -> int:
        """How many files a task may fetch before it works on them."""
        return 1

    @abstractmethod
    def frame(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> Frame:
        """What a step yields for each task: rows of `schema`. Tasks and step are picklable."""

    def name_jobs(self, run_id: str, step: str) -> None:
        """Call what comes by its run and step, where somebody may look at it."""
        del run_id, step

    def expect(self, rows: int) -> None:
        """Hear how many rows will be exchanged between tasks, more or less."""
        del rows

    @abstractmethod
    def forget(self) -> None:
        """Let go of what was kept."""

    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """Run `work` for each task; the parts of all answers, in order of name.

        Raises Refused of the first error's kind that a task answered with, and as `Frame.collect`.
        """

        def step(task: tuple[int, Any]) -> Batches:
            answer = PartRows()
            work(*task, answer)
            yield answer.batch()

        found = self.frame(list(enumerate(tasks)), step, PARTS_SCHEMA)
        return checked(found.collect().to_pylist())

    def run_together(self, *steps: tuple[Sequence[Any], Work]) -> list[Part]:
        """As `run`, of several steps that need nothing of each other: where one has few tasks,
        others fill the time. Their answers are told apart by the groups of parts."""
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
        """Whether the addresses in `parts` fit into one process."""
        return sum(part.rows for part in parts) <= self.held_max


class LocalEngine(Engine):
    """This process, one task after the other: no Java, no other process, no thread of its own. For
    tests, and for repositories of some hundred thousand files: it uses one core, and holds in
    memory what Spark would exchange and spill."""

    @property
    def name(self) -> str:
        """See `Engine.name`."""
        return "none"

    @property
    def cores(self) -> int:
        """One."""
        return 1

    @property
    def task_count(self) -> int:
        """One: more tasks would only read the same again."""
        return 1

    def forget(self) -> None:
        """Nothing is kept longer than its frame."""

    def frame(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> LocalFrame:
        """See `Engine.frame`."""
        return LocalFrame(schema, lambda: chain.from_iterable(map(step, tasks)))
