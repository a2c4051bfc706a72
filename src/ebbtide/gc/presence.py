"""The gate of presence: everything that kept commits refer to is on the storage.

For formats whose nodes carry no checksums. A node that was damaged so that it names another
address would make the one that it should name look dead; but the address that it does name is
nowhere, and that is what shows the damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.gc.mark import ADDRESS_SCHEMA
from ebbtide.gc.parts import (
    ERRORS_PER_TASK_MAX,
    Part,
    PartRows,
    read_frame,
    write_frame,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage


def check_presence(
    spark: SparkSession,
    *,
    storage: Storage,
    folder: RunFolder,
    inventory: list[Part],
    live: list[Part],
) -> None:
    """Refused `missing_object` when a live address was not listed and is not there now either: it
    may have been written after the listing."""
    if not live:
        return
    listed = read_frame(spark, folder, inventory, ADDRESS_SCHEMA).select(
        F.xxhash64("address").alias("key")
    )
    needed = read_frame(spark, folder, live, ADDRESS_SCHEMA).withColumn(
        "key", F.xxhash64("address")
    )
    unlisted = needed.join(listed, "key", "left_anti").select("address")

    def look(_partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        for batch in batches:
            for address in texts(batch.column("address")):
                try:
                    if storage.head(address) is None:
                        raise Refused(
                            "missing_object",
                            f"a kept commit refers to {address}, which is not at {storage.url}: "
                            "either it was lost, or the file that refers to it is damaged",
                        )
                except EbbtideError as error:
                    answer.failed(error)
                if answer.errors >= ERRORS_PER_TASK_MAX:
                    return

    write_frame(unlisted, look)
