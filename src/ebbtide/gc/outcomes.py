"""Deleting in executors, and the record of what became of each address.

Parts under `deleted/`: OUTCOME_SCHEMA. A part is written after each batch of deletes, so that a
killed sweep knows what it did, but for the batch that it was at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from ebbtide.arrow import make_schema, split_by, texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import Guard
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.counts import Count
from ebbtide.gc.parts import Part, PartRows, read_frame, read_part, run_tasks, write_frame
from ebbtide.gc.runs import RunFolder, epoch_is_ours
from ebbtide.storage import DeleteOutcome, Storage

OUTCOME_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("size_bytes", pa.int64()),
    ("kind", pa.string()),
    ("outcome", pa.string()),
    ("error", pa.string()),
)
"""`outcome` is one of OUTCOMES; `error` says why one failed."""

OUTCOMES: Final = ("deleted", "revived", "missing", "failed")
"""Where attempts left several for one address, the first of these is what became of it."""

ADDRESSES_PER_BATCH: Final = 5_000
THROTTLED: Final = "throttled"
WAIT_SECONDS_MAX: Final = 30.0
WAITS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the plan's candidates: counts by outcome, and by kind of those deleted."""

    by_outcome: dict[str, Count]
    deleted_by_kind: dict[str, Count]


def delete_parts(
    spark: SparkSession,
    *,
    storage: Storage,
    folder: RunFolder,
    parts: Iterable[Part],
    epoch: int,
    run_id: str,
    guard: Guard,
) -> list[Part]:
    """Delete the addresses of `parts` (CANDIDATE_SCHEMA); the parts of the record.

    Refused `lease_lost` when another run announced itself meanwhile, `plan_corrupt`, and by the
    `guard`, which is asked before each batch.
    """

    def work(_number: int, task: Part, answer: PartRows) -> None:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        assert task.name is not None
        try:
            table = read_part(folder, task.name, task.checksum)
        except Refused as error:
            answer.failed(error)
            return
        stem = task.name.rpartition("/")[2].removesuffix(".parquet")
        for start in range(0, table.num_rows, ADDRESSES_PER_BATCH):
            if not epoch_is_ours(storage, run_epoch=epoch, run_id=run_id):
                answer.failed(Refused("lease_lost", "another run has taken the repository"))
                return
            try:
                guard()
            except EbbtideError as error:
                answer.failed(error)
                return
            batch = table.slice(start, ADDRESSES_PER_BATCH)
            outcomes = _delete(storage, texts(batch.column("address")))
            record = f"deleted/{epoch:06d}-{stem}-{start // ADDRESSES_PER_BATCH:04d}-{attempt}"
            _record(
                folder,
                answer,
                record,
                batch,
                outcomes=[found.outcome for found in outcomes],
                errors=[found.error for found in outcomes],
            )

    return run_tasks(spark, list(parts), work)


def _delete(storage: Storage, addresses: list[str]) -> list[DeleteOutcome]:
    """Delete, going back more and more slowly to what the storage was too busy for."""
    outcomes = storage.delete(addresses)
    for attempt in range(WAITS_MAX):
        busy = [i for i, found in enumerate(outcomes) if (found.error or "").startswith(THROTTLED)]
        if not busy:
            break
        time.sleep(min(WAIT_SECONDS_MAX, 0.1 * 2**attempt))
        for i, found in zip(busy, storage.delete([addresses[i] for i in busy]), strict=True):
            outcomes[i] = found
    return outcomes


def _record(
    folder: RunFolder,
    answer: PartRows,
    name: str,
    batch: pa.Table,
    *,
    outcomes: list[str],
    errors: list[str | None],
) -> None:
    table = pa.table(
        [
            batch.column("address"),
            batch.column("size_bytes"),
            batch.column("kind"),
            pa.array(outcomes, pa.string()),
            pa.array(errors, pa.string()),
        ],
        schema=OUTCOME_SCHEMA,
    )
    answer.wrote(folder, f"{name}.parquet", table, group="outcomes")
    counts = table.group_by(["outcome", "kind"]).aggregate(
        [("size_bytes", "sum"), ("size_bytes", "count")]
    )
    for row in counts.to_pylist():
        answer.counted(
            row["size_bytes_count"],
            bytes_total=row["size_bytes_sum"],
            group=f"{row['outcome']} {row['kind']}",
        )


def write_todo(
    spark: SparkSession,
    *,
    folder: RunFolder,
    epoch: int,
    candidates: Iterable[Part],
    keep: DataFrame | None,
    settled: Iterable[str],
) -> tuple[list[Part], list[Part]]:
    """The candidates less those to `keep` (column `key`) and those that earlier attempts settled
    (record parts named in `settled`); and the record of those kept, as revived."""
    frame = read_frame(spark, folder, candidates, CANDIDATE_SCHEMA)
    frame = frame.withColumn("key", F.xxhash64(F.coalesce("target", "address")))
    done = read_outcomes(spark, folder, settled).where(F.col("outcome") != "failed")
    frame = frame.join(done.select("address").distinct(), "address", "left_anti")
    revived = F.lit(False)
    if keep is not None:
        marks = keep.distinct().withColumn("revived", F.lit(True))
        frame = frame.join(marks, "key", "left")
        revived = F.coalesce(F.col("revived"), F.lit(False))
    frame = frame.withColumn("revived", revived).select(*CANDIDATE_SCHEMA.names, "revived")

    def write(partition: int, batches: Iterable[pa.RecordBatch], answer: PartRows) -> None:
        for number, batch in enumerate(batches):
            table = pa.Table.from_batches([batch])
            back = table.column("revived")
            name = f"{epoch:06d}-{partition:05d}-{number:04d}"
            kept = table.filter(back)
            _record(
                folder,
                answer,
                f"deleted/{name}-revived",
                kept,
                outcomes=["revived"] * kept.num_rows,
                errors=[None] * kept.num_rows,
            )
            rest = table.filter(pa.compute.invert(back)).drop_columns("revived")
            for kind, of_kind in split_by(rest, "kind"):
                answer.wrote(folder, f"todo/{kind}-{name}.parquet", of_kind, group=kind)

    parts = write_frame(frame, write)
    return (
        [part for part in parts if part.name and part.name.startswith("todo/")],
        [part for part in parts if not (part.name and part.name.startswith("todo/"))],
    )


def tally(spark: SparkSession, folder: RunFolder, answers: list[Part]) -> Outcomes:
    """What became of each candidate, over all attempts.

    `answers` is what this attempt's tasks said. It is enough when they alone wrote the record;
    where an earlier attempt, or a task that was tried again, left parts too, the record is read.
    """
    names = folder.names("deleted")
    written = {part.name for part in answers if part.name is not None}
    if written == set(names):
        counted = [part for part in answers if part.name is None]
        found = [(*_outcome_and_kind(part), part.rows, part.bytes_total) for part in counted]
    else:
        found = _read_tally(spark, folder, names)
    by_outcome = dict.fromkeys(OUTCOMES, Count())
    deleted_by_kind: dict[str, Count] = {}
    for outcome, kind, rows, bytes_total in found:
        count = Count(rows, bytes_total)
        by_outcome[outcome] += count
        if outcome == "deleted":
            deleted_by_kind[kind] = deleted_by_kind.get(kind, Count()) + count
    return Outcomes(by_outcome, deleted_by_kind)


def _outcome_and_kind(part: Part) -> tuple[str, str]:
    """What `_record` put into the group of a count."""
    outcome, _, kind = part.group.partition(" ")
    return outcome, kind


def _read_tally(
    spark: SparkSession, folder: RunFolder, names: list[str]
) -> list[tuple[str, str, int, int]]:
    """Rows of (outcome, kind, count, bytes), each address counted once."""
    ranks = F.create_map(*(F.lit(x) for i, name in enumerate(OUTCOMES) for x in (name, i)))
    each = (
        read_outcomes(spark, folder, names)
        .groupBy("address")
        .agg(
            F.min(ranks[F.col("outcome")]).alias("rank"),
            F.max("kind").alias("kind"),
            F.max("size_bytes").alias("size_bytes"),
        )
    )
    rows = each.groupBy("rank", "kind").agg(F.count("*"), F.sum("size_bytes")).collect()
    return [(OUTCOMES[row[0]], row[1], row[2], row[3]) for row in rows]


def read_outcomes(spark: SparkSession, folder: RunFolder, names: Iterable[str]) -> DataFrame:
    """The records in the parts `names`, of this attempt or earlier ones."""
    parts = [Part(name, "outcomes", 0, 0, None) for name in names]
    return read_frame(spark, folder, parts, OUTCOME_SCHEMA)
