"""Reads the parts of a run as a Spark DataFrame. Each part is read by an executor, through the
storage of the run: Spark needs no settings for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ebbtide.arrow import counts
from ebbtide.gc.engines.base import Batches
from ebbtide.gc.parts import Part, read_batches
from ebbtide.gc.runs import RunFolder
from ebbtide.imports import allow_pandas

ROWS_PER_BATCH: Final = 20_000


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
