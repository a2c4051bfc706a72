"""Where the work of a run is done: in processes of this machine, or on Spark.

A step is a function that is called with tasks, and answers with Parquet parts. That needs no Spark:
`LocalEngine` hands tasks to worker processes, which are there in half a second. Exchanging rows
between tasks does need it, once they are too many for one process: `spark()` is for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.ahead import AT_ONCE
from ebbtide.gc.meter import Meter
from ebbtide.gc.parts import Part, PartRows, checked
from ebbtide.gc.workers import Workers
from ebbtide.imports import allow_pandas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Result = TypeVar("_Result")

Work = Callable[[int, Any, PartRows], None]
"""Does one task: called with its number, the task, and the answer to fill."""

TASKS_PER_CORE: Final = 3
ADDRESSES_HELD_MAX: Final = 1_000_000
KEYS_HELD_MAX: Final = 64_000_000
ALONE_ROWS_MAX: Final = 30_000


class Engine(ABC):
    """Runs steps. `held_max`: addresses that each process can hold, some 50 bytes each.
    `keys_held_max`: keys of addresses, 8 bytes each and as many again while they are sorted.
    `meter` counts what tasks do, where they tell."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        held_max: int = ADDRESSES_HELD_MAX,
        keys_held_max: int = KEYS_HELD_MAX,
        meter: Meter | None = None,
    ) -> None:
        self._session = session
        self.held_max = held_max
        self.keys_held_max = keys_held_max
        self.meter = meter or Meter()

    @property
    @abstractmethod
    def cores(self) -> int:
        """Tasks that run at the same time."""

    @property
    def task_count(self) -> int:
        """How many tasks to make of a step: a few for each core, so that a slow one delays
        little."""
        return TASKS_PER_CORE * self.cores

    @property
    def fetches_at_once(self) -> int:
        """How many files a task may fetch before it works on them. One in a process alone, whose
        steps keep an order."""
        return AT_ONCE if self.cores > 1 else 1

    def expect(self, rows: int | None) -> None:
        """Hear how many rows the steps to come go through, more or less; None for any number."""
        del rows

    @abstractmethod
    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """Run `work` for each task; the parts of all answers, in order of name.

        Tasks and `work` may go to other processes: both are picklable. Raises Refused of the first
        error's kind that a task answered with, and Failed when one did not answer.
        """

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

    def call(self, function: Callable[[], _Result]) -> _Result:
        """What `function` returns, which may be called in another process of this machine, so that
        what it held is not held here. Function and result are picklable. Raises what it raised."""
        return function()

    @contextmanager
    def beside(self, function: Callable[[], _Result]) -> Iterator[Callable[[], _Result]]:
        """Calls `function` while the block runs, in a thread; yields what gives its result, and
        raises what it raised. In a process alone, whose steps keep an order, that calls it."""
        if self.cores == 1:
            yield function
            return
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(function).result

    def spark(self) -> SparkSession:
        """A session, started when first asked for. Raises Failed (`java_not_found`,
        `spark_error`)."""
        allow_pandas()
        return self._session()

    def holds(self, parts: Iterable[Part]) -> bool:
        """Whether the addresses in `parts` fit into one process."""
        return sum(part.rows for part in parts) <= self.held_max

    def holds_keys(self, parts: Iterable[Part]) -> bool:
        """Whether the keys of the addresses in `parts` fit into one process."""
        return sum(part.rows for part in parts) <= self.keys_held_max


class LocalEngine(Engine):
    """Worker processes of this machine; or this process alone, where up to `alone_rows_max` rows
    are expected and no worker runs yet: starting them costs more than they would save."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        workers: Workers,
        held_max: int = ADDRESSES_HELD_MAX,
        keys_held_max: int = KEYS_HELD_MAX,
        alone_rows_max: int = ALONE_ROWS_MAX,
    ) -> None:
        super().__init__(
            session, held_max=held_max, keys_held_max=keys_held_max, meter=workers.meter
        )
        self._workers = workers
        self._alone_rows_max = alone_rows_max
        self._few = False

    def expect(self, rows: int | None) -> None:
        """See `Engine.expect`."""
        self._few = rows is not None and rows <= self._alone_rows_max
        if rows is None:
            self._workers.start()

    @property
    def _alone(self) -> bool:
        return self._few and not self._workers.started

    @property
    def cores(self) -> int:
        """See `Engine.cores`."""
        return 1 if self._alone else self._workers.count

    @property
    def task_count(self) -> int:
        """See `Engine.task_count`."""
        return 1 if self._alone else super().task_count

    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """See `Engine.run`. Failed `task_failed`, `worker_died`."""
        calls = list(enumerate(tasks))
        do = partial(answered, work)
        if self._alone:
            return checked(row for call in calls for row in do(*call))
        return checked(row for rows in self._workers.call(do, calls) for row in rows)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """See `Engine.call`. Failed `worker_died`."""
        if self._alone:
            return function()
        result: _Result = self._workers.call(function, [()])[0]
        return result


def answered(work: Work, number: int, task: Any) -> list[dict[str, Any]]:
    """Rows of PARTS_SCHEMA that `work` answers with. Failed `task_failed` for what it did not
    expect."""
    answer = PartRows()
    try:
        work(number, task, answer)
    except EbbtideError:
        raise
    except Exception as error:
        raise Failed(
            "task_failed", f"a step of the run failed: {type(error).__name__}: {error}"
        ) from error
    return answer.rows
