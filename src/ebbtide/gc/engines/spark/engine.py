"""The engine that runs steps on Spark, and its relations.

PySpark waits for a job in a call that an interrupt does not end, and Spark waits for executors
without a limit. A thread therefore watches each job, and cancels it after an interrupt, or when the
cluster has had no executor for too long.
"""

from __future__ import annotations

import base64
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ebbtide import interrupts
from ebbtide.arrow import counts
from ebbtide.durations import format_duration
from ebbtide.errors import EbbtideError, Failed
from ebbtide.gc.engines.base import (
    ADDRESSES_HELD_MAX,
    Batches,
    Engine,
    Query,
    Relation,
    Step,
)
from ebbtide.gc.engines.spark.conf import is_local
from ebbtide.gc.parts import Part, read_batches
from ebbtide.gc.prefetch import AT_ONCE
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Meter, ProgressReading
from ebbtide.imports import allow_pandas

ROWS_PER_PARTITION: Final = 500_000
"""The rows in a partition of an exchange. A partition of each side of a join then fits easily into
a task's memory."""
COMPILED_FROM: Final = 500_000
"""From this number of rows on, compiled code saves more time than the compilation takes."""
EVERY_SECONDS: Final = 0.2
EXECUTORS_WAIT: Final = timedelta(minutes=10)
ROWS_PER_BATCH: Final = 20_000
NOT_ASKED: Final = "Spark (not started: there was no work)"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ERROR: Final = re.compile(r"ebbtide-error<([A-Za-z0-9+/=]+)>")
_NOT_TOLD: Final = ("Caused by", "Traceback", "at ", "Driver stacktrace", "JVM stacktrace")
_OF_TASK: Final = re.compile(r"most recent failure: (?:Lost task .*? executor \w+\): )?(.*)")
_PYTHON_TRACE: Final = "Traceback (most recent call last):"


class SparkRelation(Relation):
    """A relation whose rows are a Spark DataFrame."""

    def __init__(
        self, frame: DataFrame, schema: pa.Schema, engine: SparkEngine, *, view: str | None = None
    ) -> None:
        """`view` is the temporary view whose rows these are, for rows that are kept."""
        self.schema = schema
        self.frame = frame
        self.view = view
        self._engine = engine

    def map(
        self, step: Step, schema: pa.Schema, *, by: Sequence[str] = (), tasks: int = 1
    ) -> SparkRelation:
        """Applies a step to each partition, as `Relation.map` says."""
        frame = self.frame
        if by:
            frame = frame.repartitionById(tasks, by[0]).sortWithinPartitions(*by)
        mapped = frame.mapInArrow(_telling(step), from_arrow_schema(schema))
        return SparkRelation(mapped, schema, self._engine)

    def kept(self) -> SparkRelation:
        """Returns the same rows, computed once and kept until `SparkEngine.forget`."""
        return self._engine.keep(self)

    def collect(self) -> pa.Table:
        """Returns all rows. Raises the errors of `Relation.collect`, and Failed `spark_error` for
        an error that no step raised."""
        try:
            with self._engine.watching():
                return self.frame.toArrow().cast(self.schema)
        except Failed:
            raise
        except Exception as error:
            told = _ERROR.search(str(error))
            if told is not None:
                raise pickle.loads(base64.b64decode(told[1])) from error
            raise Failed("spark_error", f"the Spark job failed: {_reason(error)}") from error


def _telling(step: Step) -> Step:
    """Returns the step with its errors encoded as text, because Spark passes only text to the
    driver. `collect` decodes them."""

    def told(batches: Batches) -> Batches:
        try:
            yield from step(batches)
        except EbbtideError as error:
            text = base64.b64encode(pickle.dumps(error)).decode()
            raise RuntimeError(f"ebbtide-error<{text}>") from None

    return told


class TaskMeter(Meter):
    """Counts the tasks of the running jobs, as Spark's status tracker reports them."""

    def __init__(self) -> None:
        super().__init__()
        self.context: SparkContext | None = None

    def reading(self) -> ProgressReading:
        """Returns the number of finished tasks in the running stages."""
        known, done, total = super().reading(), 0, 0
        if self.context is None:
            return known
        tracker = self.context.statusTracker()
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return ProgressReading("tasks", done, total or None, False, known.seconds, self.awaited)


class SparkEngine(Engine):
    """Runs all steps on Spark. `session` is called when the first step begins. A job fails if its
    cluster has had no executor for `executors_wait`."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        held_max: int = ADDRESSES_HELD_MAX,
        executors_wait: timedelta = EXECUTORS_WAIT,
    ) -> None:
        super().__init__(held_max=held_max)
        self.meter = self._meter = TaskMeter()
        self._session = session
        self._executors_wait = executors_wait
        self._named = "", "work"
        self._kept: list[str] = []
        self._numbers = count()

    def spark(self) -> SparkSession:
        """Returns the session, which starts on first use. Raises Failed (`java_not_found`,
        `spark_error`)."""
        allow_pandas()
        with _reached():
            spark = self._session()
            if self._meter.context is not spark.sparkContext:
                self._meter.context = spark.sparkContext
                self._describe(spark.sparkContext)
        return spark

    @property
    def name(self) -> str:
        """The name in reports: Spark's version and master."""
        context = self._meter.context
        if context is None:
            return NOT_ASKED
        return f"Spark {context.version} on {context.master}"

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        return self.spark().sparkContext.defaultParallelism

    @property
    def fetches_at_once(self) -> int:
        """The number of threads with which a task fetches files ahead."""
        return AT_ONCE

    def name_jobs(self, run_id: str, step: str) -> None:
        """Sets the run as group of Spark's jobs, and run and step as their description. Spark shows
        both on its pages and in its event log."""
        self._named = run_id, step
        self.meter.begin("tasks")
        if self._meter.context is not None:
            self._describe(self._meter.context)

    def _describe(self, context: SparkContext) -> None:
        run_id, step = self._named
        context.setJobGroup(run_id, f"ebbtide {run_id}: {step}".replace(" :", ":"))

    def expect(self, rows: int) -> None:
        """Sets the number of partitions of an exchange for this number of rows, and turns Spark's
        compiler on if there are many rows."""
        partitions = max(self.tasks_for(rows), rows // ROWS_PER_PARTITION)
        is_much = rows >= COMPILED_FROM
        conf = self.spark().conf
        conf.set(_PARTITIONS, str(partitions))
        conf.set("spark.sql.codegen.wholeStage", "true" if is_much else "false")
        conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if is_much else "NO_CODEGEN")

    def watching(self) -> AbstractContextManager[None]:
        """A context for a call that waits for a job: an interrupt ends the job."""
        context, group = self.spark().sparkContext, self._named[0]
        return watched(context, group, self._executors_wait, self._meter)

    def keep(self, relation: SparkRelation) -> SparkRelation:
        """Makes Spark keep the rows of a relation until `forget`.

        A query finds the rows only by the view that was kept: a view of a kept frame is computed
        anew.
        """
        spark, view = self.spark(), self._new_view()
        relation.frame.createOrReplaceTempView(view)
        spark.catalog.cacheTable(view)
        self._kept.append(view)
        return SparkRelation(spark.table(view), relation.schema, self, view=view)

    def forget(self) -> None:
        """Drops the rows of all relations that are kept."""
        while self._kept:
            with suppress(Exception):  # a JVM that died keeps nothing
                view = self._kept.pop()
                self.spark().catalog.uncacheTable(view)
                self.spark().catalog.dropTempView(view)

    def _new_view(self) -> str:
        return f"ebbtide_{next(self._numbers)}"

    def rows(
        self, tasks: Sequence[Any], step: Callable[[Any], Batches], schema: pa.Schema
    ) -> SparkRelation:
        """Returns the rows that a step yields for each task. Raises as `spark` does."""
        spark, given = self.spark(), list(tasks)

        def in_executor(batches: Batches) -> Batches:
            for batch in batches:
                for number in counts(batch.column(0)):
                    yield from step(given[number])

        with _reached():
            if not given:
                # An Arrow table, because a list would need Python workers of another kind.
                empty = spark.createDataFrame(schema.empty_table(), from_arrow_schema(schema))
                return SparkRelation(empty, schema, self)
            numbers = spark.range(0, len(given), 1, len(given))
            return SparkRelation(numbers, schema, self).map(in_executor, schema)

    def query(self, query: Query, **relations: Relation) -> SparkRelation:
        """Returns the rows of a query over these relations. Raises as `spark` does."""
        with _reached():
            given: dict[str, SparkRelation] = {}
            for name, each in relations.items():
                assert isinstance(each, SparkRelation)
                given[name] = each
            return SparkRelation(self.select(query.text, given), query.schema, self)

    def select(self, text: str, relations: Mapping[str, SparkRelation]) -> DataFrame:
        """Returns the rows of a SELECT over relations."""
        spark, views, made = self.spark(), dict[str, str](), list[str]()
        for name, relation in relations.items():
            views[name] = relation.view or self._new_view()
            if relation.view is None:
                relation.frame.createOrReplaceTempView(views[name])
                made.append(views[name])
        try:
            return spark.sql(text.format_map(views))
        finally:
            for view in made:
                spark.catalog.dropTempView(view)


@contextmanager
def _reached() -> Iterator[None]:
    """Raises Failed `spark_error` if a call in the block finds that the JVM has ended. PySpark
    keeps the session of a dead JVM, so that a new step can meet one too."""
    try:
        with interrupts.kept():
            yield
    except Exception as error:
        if isinstance(error, EbbtideError) or not _is_unreachable(error):
            raise
        raise Failed("spark_error", f"the Spark job failed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns the line of a Spark error that says the reason, without traces of Python and Java."""
    if _is_unreachable(error):
        return "its JVM has ended, perhaps for lack of memory (EBBTIDE_SPARK_DRIVER_MEMORY)"
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    told = [line for line in lines if not line.startswith(_NOT_TOLD)] or [type(error).__name__]
    of_task = next(filter(None, map(_OF_TASK.search, lines)), None)
    # The last line of a Python trace is the error.
    return told[-1] if of_task is None or of_task[1].endswith(_PYTHON_TRACE) else of_task[1]


def _is_unreachable(error: BaseException | None) -> bool:
    """Whether the JVM has ended. While it ends, it can answer with an empty error: a Py4JError, and
    none of its subclasses."""
    while error is not None and not isinstance(error, ConnectionError | Py4JNetworkError):
        if type(error) is Py4JError:
            return True
        error = error.__context__
    return error is not None


class _Watch(threading.Thread):
    """Watches the jobs of one group until `done` is set. `is_alone`: the cluster has had no
    executor for too long."""

    def __init__(
        self, context: SparkContext, group: str, executors_wait: timedelta, meter: Meter
    ) -> None:
        super().__init__(name="watch over a Spark job", daemon=True)
        self.done = threading.Event()
        self.is_alone = False
        self._spark = context
        self._group = group
        self._wait_seconds = executors_wait.total_seconds()
        self._meter = meter
        self._heard = interrupts.is_ending()
        self._has_others = not is_local(str(context.master))

    def run(self) -> None:
        """Watches the jobs and cancels them. Ignores a JVM that died: the job itself reports it."""
        with suppress(Exception):
            self._watch()

    def _watch(self) -> None:
        """Cancels repeatedly, because a cancellation before the job begins has no effect."""
        seen_at = time.monotonic()
        while not self.done.wait(EVERY_SECONDS):
            if self._has_others:
                count, now = self._executors(), time.monotonic()
                seen_at = now if count else seen_at
                self.is_alone = self.is_alone or now - seen_at > self._wait_seconds
                self._meter.awaited = "" if count else "waiting for executors"
            # A job that begins after an interrupt belongs to the clean-up: that interrupt is over.
            if self.is_alone or (interrupts.is_ending() and not self._heard):
                self._spark.cancelJobGroup(self._group)

    def _executors(self) -> int:
        """Returns the number of executors. Spark's own number includes the driver."""
        java: Any = self._spark._jsc  # PySpark has no public way to ask
        return len(java.sc().statusTracker().getExecutorInfos()) - 1


@contextmanager
def watched(
    context: SparkContext, group: str, executors_wait: timedelta, meter: Meter
) -> Iterator[None]:
    """Watches the jobs of a group that the block runs. While the cluster has no executor, the
    `meter` says so.

    After an interrupt, raises its KeyboardInterrupt. Raises Failed `spark_error` when the cluster
    has had no executor for `executors_wait`.
    """
    watch = _Watch(context, group, executors_wait, meter)
    watch.start()
    try:
        with interrupts.kept():  # PySpark still waits for the end of its job, which fails
            yield
    except Exception as error:
        if watch.is_alone:
            raise Failed(
                "spark_error",
                f"{context.master} has had no executor for {format_duration(executors_wait)}"
                " (EBBTIDE_SPARK_EXECUTORS_WAIT): check that a worker is alive and has the cores"
                " and the memory that executors need",
            ) from error
        raise
    finally:
        watch.done.set()
        meter.awaited = ""


def frame_of_parts(
    spark: SparkSession, folder: RunFolder, parts: Sequence[Part], schema: pa.Schema
) -> DataFrame:
    """Returns the rows of the parts, with the columns of `schema`. Each part is one partition.

    If a part is missing or damaged, the job fails with the message of Refused `plan_corrupt`.
    """
    allow_pandas()
    given = list(parts)
    if not given:
        return spark.createDataFrame(schema.empty_table(), from_arrow_schema(schema))
    numbers = spark.range(0, len(given), 1, len(given))
    return numbers.mapInArrow(_reader(folder, given, schema), from_arrow_schema(schema))


def _reader(
    folder: RunFolder, parts: Sequence[Part], schema: pa.Schema
) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            chosen = [parts[number] for number in counts(batch.column(0))]
            for table in read_batches(folder, chosen, schema, rows_max=ROWS_PER_BATCH):
                yield from table.to_batches()

    return read
