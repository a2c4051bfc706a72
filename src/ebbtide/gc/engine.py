"""Where the work of a run is done: in processes of this machine, or on Spark.

A step is a function that is called with tasks, and answers with Parquet parts. That needs no Spark:
`LocalEngine` hands tasks to worker processes, which are there in half a second. Exchanging rows
between tasks does need it, once they are too many for one process: `spark()` is for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.parts import Part, PartRows, checked
from ebbtide.gc.workers import Workers
from ebbtide.imports import allow_pandas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[int, Any, PartRows], None]
"""Does one task: called with its number, the task, and the answer to fill."""

TASKS_PER_CORE: Final = 3
ADDRESSES_HELD_MAX: Final = 1_000_000
KEYS_HELD_MAX: Final = 64_000_000


class Engine(ABC):
    """Runs steps. `held_max`: addresses that each process can hold, some 50 bytes each.
    `keys_held_max`: keys of addresses, 8 bytes each and as many again while they are sorted."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        held_max: int = ADDRESSES_HELD_MAX,
        keys_held_max: int = KEYS_HELD_MAX,
    ) -> None:
        self._session = session
        self.held_max = held_max
        self.keys_held_max = keys_held_max

    @property
    @abstractmethod
    def cores(self) -> int:
        """Tasks that run at the same time."""

    @property
    def task_count(self) -> int:
        """How many tasks to make of a step: a few for each core, so that a slow one delays
        little."""
        return TASKS_PER_CORE * self.cores

    @abstractmethod
    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """Run `work` for each task; the parts of all answers, in order of name.

        Tasks and `work` may go to other processes: both are picklable. Raises Refused of the first
        error's kind that a task answered with, and Failed when one did not answer.
        """

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
    """Worker processes of this machine."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        workers: Workers,
        held_max: int = ADDRESSES_HELD_MAX,
        keys_held_max: int = KEYS_HELD_MAX,
    ) -> None:
        super().__init__(session, held_max=held_max, keys_held_max=keys_held_max)
        self._workers = workers

    @property
    def cores(self) -> int:
        """See `Engine.cores`."""
        return self._workers.count

    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """See `Engine.run`. Failed `task_failed`, `worker_died`."""
        calls = [(work, number, task) for number, task in enumerate(tasks)]
        return checked(row for rows in self._workers.call(answered, calls) for row in rows)


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
