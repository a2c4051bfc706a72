"""The subtraction: inventory less live, protected and young is what may go.

Live and protected addresses are compared as 64-bit hashes. That halves the join, and is safe in one
direction only: two addresses with one hash keep garbage, never drop what is live, because the
hashes stand on the side that is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from ebbtide.arrow import split_by
from ebbtide.gc.counts import Count
from ebbtide.gc.inventory import INVENTORY_SCHEMA
from ebbtide.gc.mark import ADDRESS_SCHEMA
from ebbtide.gc.parts import Part, PartRows, PartWriter, read_frame, small, write_frame
from ebbtide.gc.runs import RunFolder

CANDIDATE_SCHEMA: Final = INVENTORY_SCHEMA
"""Candidates keep every column of the inventory."""

ROWS_PER_PART: Final = 50_000
CLASSES: Final = ("live", "protected", "young", "candidate")
_LIVE: Final = 1
_PROTECTED: Final = 2


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The candidates as parts (CANDIDATE_SCHEMA, one kind each), and the counts of each class."""

    candidates: tuple[Part, ...]
    counts: dict[str, Count]


def subtract(
    spark: SparkSession,
    *,
    folder: RunFolder,
    inventory: list[Part],
    live: list[Part],
    protected: list[Part],
    kinds: tuple[str, ...],
    cutoff: datetime,
) -> Subtracted:
    """Find the candidates among what was listed, of `kinds` and older than `cutoff`."""
    listed = read_frame(spark, folder, inventory, INVENTORY_SCHEMA)
    classified = (
        listed.where(F.col("kind").isin(*kinds))
        .withColumn("key", F.xxhash64(F.coalesce("target", "address")))
        .join(_keep_marks(spark, folder, live, protected), "key", "left")
        .withColumn("class", _class_of(cutoff))
    )
    seen = Observation("classes")
    candidates = (
        classified.observe(seen, *_class_counts())
        .where(F.col("class") == "candidate")
        .select(*CANDIDATE_SCHEMA.names)
    )
    parts = write_frame(candidates, _candidate_writer(folder, kinds))
    found = seen.get
    return Subtracted(
        candidates=tuple(parts),
        counts={
            name: Count(found[f"{name}_objects"], found[f"{name}_bytes"] or 0) for name in CLASSES
        },
    )


def _keep_marks(
    spark: SparkSession, folder: RunFolder, live: list[Part], protected: list[Part]
) -> DataFrame:
    """Columns `key` (hash of an address, each once) and `mark` (bits: live, protected)."""

    def marked(parts: list[Part], mark: int) -> DataFrame:
        return read_frame(spark, folder, parts, ADDRESS_SCHEMA).select(
            F.xxhash64("address").alias("key"), F.lit(mark).alias("mark")
        )

    both = marked(live, _LIVE).union(marked(protected, _PROTECTED))
    return small(both.groupBy("key").agg(F.bit_or("mark").alias("mark")), [*live, *protected])


def _class_of(cutoff: datetime) -> Column:
    """What becomes of a listed file; the first that applies.

    A temporary file is protected with its target, but a live target does not need it any more. A
    file that may have been written at or after `cutoff` is young: a time in whole seconds may stand
    for any instant of that second.
    """
    marked_live = (F.col("mark").bitwiseAND(_LIVE) != 0) & F.col("target").isNull()
    modified = F.unix_micros("last_modified")
    latest = modified + F.when(modified % 1_000_000 == 0, 999_999).otherwise(0)
    cutoff_micros = (cutoff - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (
        F.when(marked_live, "live")
        .when(F.col("mark").bitwiseAND(_PROTECTED) != 0, "protected")
        .when(latest >= cutoff_micros, "young")
        .otherwise("candidate")
    )


def _class_counts() -> list[Column]:
    return [
        column
        for name in CLASSES
        for column in (
            F.count_if(F.col("class") == name).alias(f"{name}_objects"),
            F.sum(F.when(F.col("class") == name, F.col("size_bytes"))).alias(f"{name}_bytes"),
        )
    ]


def _candidate_writer(folder: RunFolder, kinds: tuple[str, ...]) -> PartWriter:
    def write(partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        gathered: dict[str, list[pa.Table]] = {kind: [] for kind in kinds}
        written = dict.fromkeys(kinds, 0)

        def flush(kind: str) -> None:
            table = pa.concat_tables(gathered[kind]).sort_by("address")
            name = f"candidates/{kind}-{partition:05d}-{written[kind]:03d}.parquet"
            answer.wrote(folder, name, table, group=kind)
            gathered[kind], written[kind] = [], written[kind] + 1

        for batch in batches:
            table = pa.Table.from_batches([batch])
            for kind, of_kind in split_by(table, "kind"):
                gathered[kind].append(of_kind)
                if sum(part.num_rows for part in gathered[kind]) >= ROWS_PER_PART:
                    flush(kind)
        for kind, tables in gathered.items():
            if tables:
                flush(kind)

    return write
