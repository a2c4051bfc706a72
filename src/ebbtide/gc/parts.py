"""Work in executors, a Parquet part at a time.

A step is a function from a task to Parquet parts in the run's folder. Executors write the parts and
answer with one row for each (`PARTS_SCHEMA`), so that the driver sees names and counts, never
addresses. Parts go through `Storage`, so that Spark needs no connector of its own to S3.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ebbtide.arrow import counts, make_schema
from ebbtide.errors import EbbtideError, Failed, Refused
from ebbtide.gc.runs import RunFolder

PARTS_SCHEMA: Final = make_schema(
    ("name", pa.string()),
    ("group", pa.string()),
    ("rows", pa.int64()),
    ("bytes_total", pa.int64()),
    ("checksum", pa.string()),
    ("error_kind", pa.string()),
    ("error", pa.string()),
)
"""A part: its name in the run's folder, what it holds (a kind or class), rows, the sum of
`size_bytes` over them, and its file's checksum. Or, with no name, an error. Or, with neither, a
count of rows that were seen but not written."""

ERRORS_PER_TASK_MAX: Final = 20
TASKS_PER_CORE: Final = 3
ADDRESSES_HELD_MAX: Final = 1_000_000
"""Addresses that each executor can hold: some 50 MB."""


@dataclass(frozen=True, slots=True)
class Part:
    """A row of PARTS_SCHEMA that is not an error."""

    name: str | None
    group: str
    rows: int
    bytes_total: int
    checksum: str | None

    def to_json(self) -> dict[str, Any]:
        """For plan.json."""
        return {
            "name": self.name,
            "group": self.group,
            "rows": self.rows,
            "bytes": self.bytes_total,
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Part:
        """The part that `to_json` wrote. KeyError or TypeError when it is something else."""
        return cls(
            str(content["name"]),
            str(content["group"]),
            int(content["rows"]),
            int(content["bytes"]),
            str(content["checksum"]),
        )


@dataclass(slots=True)
class PartRows:
    """Collects the answer of one task: parts and errors, as rows of PARTS_SCHEMA."""

    rows: list[dict[str, Any]] = field(default_factory=list)  # a row by column name
    errors: int = 0

    def wrote(self, folder: RunFolder, name: str, table: pa.Table, *, group: str = "") -> None:
        """Write `table` as part `name` and answer for it. Empty tables are not written."""
        if not table.num_rows:
            return
        data = encode(table)
        folder.storage.put(folder.address(name), data)
        self.counted(table.num_rows, bytes_total=_bytes(table), group=group, name=name, data=data)

    def counted(
        self,
        rows: int,
        *,
        bytes_total: int,
        group: str,
        name: str | None = None,
        data: bytes | None = None,
    ) -> None:
        """Answer for rows, written under `name` or only seen."""
        checksum = None if data is None else hashlib.sha256(data).hexdigest()
        self.rows.append(
            {
                "name": name,
                "group": group,
                "rows": rows,
                "bytes_total": bytes_total,
                "checksum": checksum,
            }
        )

    def failed(self, error: EbbtideError) -> None:
        """Answer with an error; the driver decides. A task stops repeating itself after a few."""
        self.errors += 1
        if self.errors <= ERRORS_PER_TASK_MAX:
            self.rows.append({"error_kind": error.kind, "error": error.message})

    def parts(self) -> list[Part]:
        """The rows as parts, for one who wrote them in the driver; there are no errors then."""
        return [Part(**{key: row[key] for key in Part.__dataclass_fields__}) for row in self.rows]

    def batch(self) -> pa.RecordBatch:
        """The rows as one batch of PARTS_SCHEMA."""
        return pa.RecordBatch.from_pylist(self.rows, schema=PARTS_SCHEMA)


def encode(table: pa.Table) -> bytes:
    """`table` as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def read_part(folder: RunFolder, name: str, checksum: str | None = None) -> pa.Table:
    """A part's table. Refused `plan_corrupt` when it is missing, damaged or not as it was written.

    `checksum` None skips the comparison (parts of a killed attempt, which nobody recorded).
    """
    try:
        data = folder.storage.get(folder.address(name))
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            raise ValueError("its checksum is not the one recorded")
        # Without threads of Arrow's own: one that is still there when Python ends aborts it.
        return pq.read_table(io.BytesIO(data), use_threads=False)
    except (EbbtideError, ValueError, OSError, pa.ArrowException) as error:
        raise Refused(
            "plan_corrupt",
            f"{folder.path}/{name} is not as it was written ({error}): plan again",
        ) from error


def check_parts(spark: SparkSession, folder: RunFolder, parts: Iterable[Part]) -> None:
    """Refused `plan_corrupt` unless each of `parts` is as it was written. Read in executors."""

    def work(_number: int, task: Sequence[Part], answer: PartRows) -> None:
        for part in task:
            assert part.name is not None
            try:
                read_part(folder, part.name, part.checksum)
            except Refused as error:
                answer.failed(error)

    run_tasks(spark, split(list(parts), tasks=task_count(spark)), work)


def _bytes(table: pa.Table) -> int:
    if "size_bytes" not in table.column_names:
        return 0
    return int(pa.compute.sum(table.column("size_bytes")).as_py() or 0)


def run_tasks(
    spark: SparkSession, tasks: Sequence[Any], work: Callable[[int, Any, PartRows], None]
) -> list[Part]:
    """Run `work(number, task, answer)` for each task in executors; all parts, in order of name.

    Raises Refused of the first error's kind that a task answered with, and Failed `spark_error`.
    """
    if not tasks:
        return []
    shared = spark.sparkContext.broadcast(list(tasks))

    def in_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in counts(batch.column(0)):
                answer = PartRows()
                work(number, shared.value[number], answer)
                yield answer.batch()

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    try:
        return collect_parts(numbers.mapInArrow(in_executor, from_arrow_schema(PARTS_SCHEMA)))
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

    return collect_parts(frame.mapInArrow(in_executor, from_arrow_schema(PARTS_SCHEMA)))


def collect_parts(answers: DataFrame) -> list[Part]:
    """Bring the answers of a step to the driver: as many rows as there are parts."""
    try:
        table = answers.toArrow()
    except Exception as error:
        raise Failed("spark_error", f"the Spark job failed: {_reason(error)}") from error
    rows = table.to_pylist()
    errors = [row for row in rows if row["error"] is not None]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise Refused(
            errors[0]["error_kind"],
            errors[0]["error"] + more,
            errors=[row["error"] for row in errors[:ERRORS_PER_TASK_MAX]],
        )
    parts = [
        Part(row["name"], row["group"], row["rows"], row["bytes_total"], row["checksum"])
        for row in rows
    ]
    return sorted(parts, key=lambda part: (part.group, part.name or ""))


def _reason(error: Exception) -> str:
    """The line that says what happened, out of the traces of Python and Java."""
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    told = [line for line in lines if not line.startswith(("Caused by", "Traceback", "at "))]
    return told[-1] if told else type(error).__name__


def read_frame(
    spark: SparkSession, folder: RunFolder, parts: Iterable[Part], schema: pa.Schema
) -> DataFrame:
    """The rows of `parts` as a DataFrame with the columns of `schema`, read in executors."""
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
                    yield from table.select(schema.names).cast(schema).to_batches()

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(in_executor, spark_schema)


def is_small(parts: Iterable[Part]) -> bool:
    """Whether the addresses in `parts` fit into every executor."""
    return sum(part.rows for part in parts) <= ADDRESSES_HELD_MAX


def split(items: Sequence[Any], *, tasks: int, items_min: int = 1) -> list[Sequence[Any]]:
    """`items` in at most `tasks` runs of neighbours, none shorter than `items_min` but the last."""
    size = max(items_min, -(-len(items) // max(tasks, 1)))
    return [items[start : start + size] for start in range(0, len(items), size)]


def task_count(spark: SparkSession) -> int:
    """How many tasks to make of a step: a few for each core, so that a slow one delays little."""
    return TASKS_PER_CORE * spark.sparkContext.defaultParallelism
