"""What an incremental run looks at, of which alone it must know whether it is live or protected.

Parts: `live/in-question-*` (the keys of what it looks at), `uncommitted/asked-*` (what of it is not
live).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.formats.base import Reading
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import JUDGED_SCHEMA, judged_by, judged_keys, read_judged
from ebbtide.gc.keys import KEYS, KeySet, KeyWriter
from ebbtide.gc.parts import Part, PartRows, read_batches, split
from ebbtide.gc.runs import RunFolder

ASKED_AT_ONCE: Final = 2_000
"""Addresses that the metadata is asked for together."""


@dataclass(frozen=True, slots=True)
class Question:
    """Parts of INVENTORY_SCHEMA, and the keys (parts of KEYS_SCHEMA) of the addresses by which they
    are judged: what else is live makes no difference to the run."""

    folder: RunFolder
    inventory: tuple[Part, ...]
    keys: list[Part]

    @classmethod
    def of(cls, engine: Engine, folder: RunFolder, inventory: Sequence[Part]) -> Question:
        """About these parts."""

        def work(number: int, task: Sequence[Part], answer: PartRows) -> None:
            stem = f"live/in-question-{number:05d}"
            writer = KeyWriter(stem, folder, answer, group=KEYS)
            for part in task:
                writer.add(judged_keys(folder, part))
            writer.finish()

        keys = engine.run(split(inventory, tasks=engine.task_count), work)
        return cls(folder, tuple(inventory), keys)

    def left(self, engine: Engine, live: Sequence[Part]) -> list[Part]:
        """The addresses (parts of JUDGED_SCHEMA) that are not live, each once in a part."""
        folder = self.folder

        def work(number: int, task: Sequence[Part], answer: PartRows) -> None:
            known = KeySet.read(folder, live)
            others = []
            for table in read_judged(folder, task, JUDGED_SCHEMA):
                is_live = known.has(table.column("key").to_numpy())
                others += judged_by(table.filter(pa.array(~is_live))).chunks
            found = pc.unique(pa.chunked_array(others, pa.string()))
            table = pa.table([found, pa.nulls(len(found), pa.string())], schema=JUDGED_SCHEMA)
            answer.wrote(folder, f"uncommitted/asked-{number:05d}.parquet", table, group="asked")

        # No more tasks than cores: each has to read all that is live.
        return engine.run(split(self.inventory, tasks=engine.cores), work)


def protected_among(
    reading: Reading, folder: RunFolder, parts: Iterable[Part]
) -> Iterator[pa.Table]:
    """What is protected (PROTECTED_SCHEMA) of the addresses by which the rows of parts (of
    JUDGED_SCHEMA, among others) are judged, in batches."""
    tables = read_batches(folder, parts, JUDGED_SCHEMA, rows_max=ASKED_AT_ONCE)
    return reading.protected(texts(judged_by(table)) for table in tables)
