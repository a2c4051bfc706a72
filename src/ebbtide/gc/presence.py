"""The gate of presence: what kept commits refer to is on the storage.

For formats whose nodes carry no checksums. A node that was damaged so that it names another
address would make the one that it should name look dead; but the address that it does name is
nowhere, and that is what shows the damage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.gc.engine import Engine
from ebbtide.gc.keys import KEYS, KeySet, KeyWriter, keys_of, rows_of
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    ERRORS_PER_TASK_MAX,
    Part,
    PartRows,
    read_part,
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
    inventory: Sequence[Part],
    required: Sequence[Part],
) -> None:
    """Refused `missing_object` when a required address (parts of ADDRESS_SCHEMA) was not
    listed and is not there now either: it may have been written after the listing."""

    def see(number: int, task: Sequence[Part], answer: PartRows) -> None:
        wanted = KeySet.read(folder, required, questions=rows_of(task))
        writer = KeyWriter(f"presence/seen-{number:05d}", folder, answer, group=KEYS)
        for table in read_tables(folder, task, ADDRESS_SCHEMA):
            keys = keys_of(table.column("address"))
            writer.add(keys[wanted.has(keys)])
        writer.finish()

    def look(_number: int, part: Part, answer: PartRows) -> None:
        assert part.name is not None
        table = read_part(folder, part.name, part.checksum)
        seen = KeySet.read(folder, seen_parts, questions=part.rows)
        missing = np.logical_not(seen.has(keys_of(table.column("address"))))
        for address in texts(table.filter(pa.array(missing)).column("address")):
            _check(storage, address, answer)
            if answer.errors >= ERRORS_PER_TASK_MAX:
                return

    seen_parts = engine.run(split(inventory, tasks=engine.task_count), see)
    engine.run(required, look)


def _check(storage: Storage, address: str, answer: PartRows) -> None:
    """Answer with an error unless there is an object at `address`."""
    try:
        if storage.head(address) is None:
            raise Refused(
                "missing_object",
                f"a kept commit refers to {address}, which is not at {storage.url}: either it was "
                "lost, or the file that refers to it is damaged",
            )
    except EbbtideError as error:
        answer.failed(error)
