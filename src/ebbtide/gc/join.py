"""The subtraction as a join on Spark, for any number of addresses.

Compared are keys, as in `lookup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from ebbtide.gc.candidates import (
    CANDIDATE_SCHEMA,
    CLASSES,
    CandidateWriter,
    Relations,
    Subtracted,
    by_use,
    micros_of,
)
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import INVENTORY_SCHEMA, judged_by
from ebbtide.gc.keys import KEYS_SCHEMA, to_key_parts, with_keys
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.sizing import sized
from ebbtide.gc.spark import Change, PartWriter, read_frame, write_frame
from ebbtide.storage import Storage

_KEYED_SCHEMA: Final = pa.schema([*INVENTORY_SCHEMA, *KEYS_SCHEMA, pa.field("purged", pa.bool_())])
_LIVE: Final = 1
_PROTECTED: Final = 2
_UNTRACED: Final = 4


def join(engine: Engine, given: Relations) -> Subtracted:
    """As `subtract`."""
    spark = engine.spark()
    listed = read_frame(
        spark, given.folder, given.inventory, _KEYED_SCHEMA, change=_with_keys(given)
    )
    marked = listed.join(_keep_marks(engine, given), "key", "left")
    if not all(part.sized for part in given.inventory):
        marked = marked.mapInArrow(_sizing(given.storage), marked.schema)
    classified = marked.withColumn("class", _class_of(given.cutoff))
    seen = Observation("classes")
    goes = F.col("class") == "candidate"
    wanted = goes
    # Whatever is protected has marks.
    settled = (F.col("class") == "protected") & (F.col("mark").bitwiseAND(_UNTRACED) == 0)
    if given.closed_after is not None:
        stays = F.col("class").isin("protected", "young")
        is_gone = (F.col("class") == "young") & F.col("last_modified").isNull()
        wanted = wanted | (stays & ~is_gone & (F.col("slice") > given.closed_after))
    uses = (goes.alias("goes"), settled.alias("settled"))
    chosen = (
        classified.observe(seen, *_class_counts())
        .where(wanted)
        .select(*CANDIDATE_SCHEMA.names, "key", *uses)
    )
    parts = write_frame(chosen, _candidate_writer(given.folder, given.kinds))
    found = seen.get
    return Subtracted(
        **by_use(parts),
        counts={
            name: Count(
                found[f"{name}_objects"],
                found[f"{name}_bytes"] or 0,
                found[f"{name}_sized"] == found[f"{name}_objects"],
            )
            for name in CLASSES
        },
        all_listed=False,
    )


def _with_keys(given: Relations) -> Change:
    """Rows of INVENTORY_SCHEMA of the kinds that may go, with the key of what each is judged by,
    and whether that was purged."""
    kinds = pa.array(given.kinds, pa.string())

    def change(table: pa.Table) -> pa.Table:
        rows = table.filter(pc.is_in(table.column("kind"), value_set=kinds))
        judged = judged_by(rows)
        keyed = rows if "key" in rows.column_names else with_keys(rows, judged)
        return keyed.append_column("purged", pc.is_in(judged, value_set=given.read_purged()))

    return change


def _keep_marks(engine: Engine, given: Relations) -> DataFrame:
    """Columns `key` (each once) and `mark` (bits: live, protected, untraced)."""

    def marked(parts: list[Part], name: str, mark: int) -> DataFrame:
        keys = to_key_parts(engine, given.folder, parts, name=name)
        frame = read_frame(engine.spark(), given.folder, keys, KEYS_SCHEMA)
        return frame.select("key", F.lit(mark).alias("mark"))

    live = marked(given.live, "live", _LIVE)
    protected = marked(given.protected, "uncommitted", _PROTECTED)
    untraced = marked(given.untraced, "untraced", _UNTRACED)
    return live.union(protected).union(untraced).groupBy("key").agg(F.bit_or("mark").alias("mark"))


def _sizing(
    storage: Storage,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Looks at what was listed without size and date, and does not stay."""

    def size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            marks = table.column("mark").fill_null(pa.scalar(0, pa.int32())).to_numpy()
            is_live = (marks & _LIVE != 0) & np.asarray(pc.is_null(table.column("target")))
            stays = (is_live & ~np.asarray(table.column("purged"))) | (marks & _PROTECTED != 0)
            yield from sized(storage, table, ~stays).to_batches()

    return size


def _class_of(cutoff: datetime) -> Column:
    """The class of a listed file: see CLASSES."""
    marked_live = (F.col("mark").bitwiseAND(_LIVE) != 0) & F.col("target").isNull()
    modified = F.unix_micros("last_modified")
    latest = modified + F.when(modified % 1_000_000 == 0, 999_999).otherwise(0)
    stays = ~F.col("purged")
    return (
        F.when(marked_live & stays, "live")
        .when(F.col("mark").bitwiseAND(_PROTECTED) != 0, "protected")
        .when(((latest >= micros_of(cutoff)) & stays) | modified.isNull(), "young")
        .otherwise("candidate")
    )


def _class_counts() -> list[Column]:
    return [
        column
        for name in CLASSES
        for column in (
            F.count_if(F.col("class") == name).alias(f"{name}_objects"),
            F.sum(F.when(F.col("class") == name, F.col("size_bytes"))).alias(f"{name}_bytes"),
            F.count_if((F.col("class") == name) & F.col("size_bytes").isNotNull()).alias(
                f"{name}_sized"
            ),
        )
    ]


def _candidate_writer(folder: RunFolder, kinds: tuple[str, ...]) -> PartWriter:
    def write(partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        writer = CandidateWriter(folder, kinds, partition, answer)
        for batch in batches:
            table = pa.Table.from_batches([batch])
            goes = table.column("goes")
            rows = table.drop_columns("goes")
            writer.add(rows.filter(goes).drop_columns("settled"))
            writer.remember(rows.filter(pc.invert(goes)))
        writer.finish()

    return write
