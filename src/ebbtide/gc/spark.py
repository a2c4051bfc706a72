"""Steps on Spark: tasks in executors, and parts as DataFrames where rows must be exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ebbtide.arrow import counts
from ebbtide.errors import Failed
from ebbtide.gc.engine import TASKS_PER_CORE, Engine, Work
from ebbtide.gc.parts import PARTS_SCHEMA, Part, PartRows, checked, read_part, split
from ebbtide.gc.runs import RunFolder


class SparkEngine(Engine):
    """Everything on Spark."""

    @property
    def cores(self) -> int:
        """See `Engine.cores`."""
        return self.spark().sparkContext.defaultParallelism

    def run(self, tasks: Sequence[Any], work: Work) -> list[Part]:
        """See `Engine.run`. Failed `spark_error`."""
        if not tasks:
            return []
        spark = self.spark()
        shared = spark.sparkContext.broadcast(list(tasks))

        def in_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in counts(batch.column(0)):
                    answer = PartRows()
                    work(number, shared.value[number], answer)
                    yield answer.batch()

        numbers = spark.range(0, len(tasks), 1, len(tasks))
        try:
            return _collect(numbers.mapInArrow(in_executor, from_arrow_schema(PARTS_SCHEMA)))
        except KeyboardInterrupt:
            spark.sparkContext.cancelAllJobs()
            raise
        finally:
            shared.destroy()


PartWriter = Callable[[int, Iterator[pa.RecordBatch], PartRows], None]
"""Writes the parts of one partition: called with its number, its rows and the answer."""


def write_frame(frame: DataFrame, write: PartWriter) -> list[Part]:
    """Run `write(partition, batches, answer)` over each partition of `frame`; all parts."""

    def in_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        answer = PartRows()
        write(context.partitionId() if context else 0, batches, answer)
        yield answer.batch()

    return _collect(frame.mapInArrow(in_executor, from_arrow_schema(PARTS_SCHEMA)))


Change = Callable[[pa.Table], pa.Table]
"""What is done to each part's table once it is read."""


def read_frame(
    spark: SparkSession,
    folder: RunFolder,
    parts: Iterable[Part],
    schema: pa.Schema,
    *,
    change: Change | None = None,
) -> DataFrame:
    """The rows of `parts`, after `change`, as a DataFrame with the columns of `schema`, read in
    executors."""
    named = [(part.name, part.checksum) for part in parts if part.name is not None]
    spark_schema = from_arrow_schema(schema)
    if not named:
        return spark.createDataFrame([], spark_schema)
    tasks = split(named, tasks=task_count(spark))
    shared = spark.sparkContext.broadcast(tasks)

    def in_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in counts(batch.column(0)):
                for name, checksum in shared.value[number]:
                    table = read_part(folder, name, checksum)
                    if change is not None:
                        table = change(table)
                    yield from table.select(schema.names).cast(schema).to_batches()

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(in_executor, spark_schema)


def task_count(spark: SparkSession) -> int:
    """How many tasks to make of a step on Spark."""
    return TASKS_PER_CORE * spark.sparkContext.defaultParallelism


def _collect(answers: DataFrame) -> list[Part]:
    """Bring the answers of a step to the driver: as many rows as there are parts."""
    try:
        table = answers.toArrow()
    except Exception as error:
        raise Failed("spark_error", f"the Spark job failed: {_reason(error)}") from error
    return checked(table.to_pylist())


def _reason(error: Exception) -> str:
    """The line that says what happened, out of the traces of Python and Java."""
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    told = [line for line in lines if not line.startswith(("Caused by", "Traceback", "at "))]
    return told[-1] if told else type(error).__name__
