"""Asks the storage for the sizes and dates that a listing left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.formats.base import FOREIGN, Layout
from ebbtide.gc.engine import Engine
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import Part, PartRows, read_tables, split
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA, InventoryWriter
from ebbtide.gc.relations.keys import rows_of
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage


def sized(
    storage: Storage, table: pa.Table, wanted: np.ndarray[Any, np.dtype[np.bool_]]
) -> pa.Table:
    """Returns the rows of INVENTORY_SCHEMA, with size and date for all `wanted` rows. If a file was
    listed without them, and does not exist any more, it has no date and a size of 0."""
    unknown = np.asarray(pc.is_null(table.column("last_modified"))) & wanted
    if not unknown.any():
        return table
    mask = pa.array(unknown)
    found = storage.sizes(texts(table.column("address").filter(mask)))
    sizes = found.column("size_bytes").fill_null(0)
    for name, values in (("size_bytes", sizes), ("last_modified", found.column("last_modified"))):
        column = table.column(name).combine_chunks()
        told: Any = pc.replace_with_mask(column, mask, values)
        table = table.set_column(table.column_names.index(name), table.schema.field(name), told)
    return table


def all_sized(
    engine: Engine, storage: Storage, layout: Layout, folder: RunFolder, listed: Sequence[Part]
) -> list[Part]:
    """Writes the parts of `list_inventory` again with sizes and dates, and returns parts and counts
    in the same form. Files that do not exist any more are left out."""
    named = [part for part in listed if part.name is not None]

    def work(number: int, task: Sequence[Part], answer: PartRows) -> None:
        writer = InventoryWriter(f"sized-{number:05d}", answer, folder, layout.checked_kinds)
        for table in read_tables(folder, task, INVENTORY_SCHEMA):
            advance(table.num_rows)
            rows = sized(storage, table, np.ones(table.num_rows, np.bool_))
            # Foreign files, such as symbolic links, may have no date.
            is_foreign = pc.equal(rows.column("kind"), pa.scalar(FOREIGN, pa.string()))
            writer.add(rows.filter(pc.or_(is_foreign, pc.is_valid(rows.column("last_modified")))))
        writer.flush()

    engine.meter.begin("files", rows_of(named))
    return engine.run(split(named, tasks=engine.task_count), work)
