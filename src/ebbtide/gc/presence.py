"""The gate of presence: everything that kept commits refer to is on the storage.

For formats whose nodes carry no checksums. A node that was damaged so that it names another
address would make the one that it should name look dead; but the address that it does name is
nowhere, and that is what shows the damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ebbtide.arrow import texts, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.gc.engine import Engine
from ebbtide.gc.mark import ADDRESS_SCHEMA
from ebbtide.gc.parts import (
    ERRORS_PER_TASK_MAX,
    Part,
    PartRows,
    read_rows,
    read_tables,
    split,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage


def check_presence(
    engine: Engine,
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

    def look(_number: int, addresses: Iterable[str], answer: PartRows) -> None:
        for address in addresses:
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

    if engine.holds(live):
        unlisted = _unlisted(folder, inventory, live)
        engine.run(split(unlisted, tasks=engine.task_count), look)
        return

    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    from ebbtide.gc.spark import read_frame, write_frame

    def look_at(partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        look(partition, (each for b in batches for each in texts(b.column("address"))), answer)

    listed, needed = (
        read_frame(engine.spark(), folder, parts, ADDRESS_SCHEMA).withColumn(
            "key", F.xxhash64("address")
        )
        for parts in (inventory, live)
    )
    missing = needed.join(listed.select("key"), "key", "left_anti").select("address")
    write_frame(missing, look_at)


def _unlisted(folder: RunFolder, inventory: list[Part], live: list[Part]) -> list[str]:
    """The addresses of `live` that are not in the inventory."""
    left = read_rows(folder, live, ADDRESS_SCHEMA)
    for listed in read_tables(folder, inventory, ADDRESS_SCHEMA):
        left = without(left, "address", listed)
    return texts(left.column("address").combine_chunks())
