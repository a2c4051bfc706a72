"""The subtraction where what is live fits into an executor: looked up, whole, and not joined.

Each task reads all that is live or protected, and goes through its share of the inventory, so that
nothing is exchanged. Compared are the addresses themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.gc.candidates import CLASSES, CandidateWriter, Subtracted, micros_of
from ebbtide.gc.counts import Count
from ebbtide.gc.inventory import INVENTORY_SCHEMA
from ebbtide.gc.mark import ADDRESS_SCHEMA, REQUIRED
from ebbtide.gc.parts import Part, PartRows, read_part, run_tasks, split, task_count
from ebbtide.gc.runs import RunFolder

_CLASS: Final = "class "
_REQUIRED: Final = "required"
_SEEN: Final = "required and seen"


@dataclass(frozen=True, slots=True)
class Kept:
    """Addresses that stay: of live files, of those among them that must all be there, and of
    protected ones."""

    live: pa.Array[Any]
    required: pa.Array[Any]
    protected: pa.Array[Any]

    @classmethod
    def read(cls, folder: RunFolder, live: Iterable[Part], protected: Iterable[Part]) -> Kept:
        """From the parts. Refused `plan_corrupt`."""
        parts = list(live)
        return cls(
            live=_addresses(folder, parts),
            required=_addresses(folder, [part for part in parts if part.group == REQUIRED]),
            protected=_addresses(folder, protected),
        )


def look_up(
    spark: SparkSession,
    *,
    folder: RunFolder,
    inventory: list[Part],
    live: list[Part],
    protected: list[Part],
    kinds: tuple[str, ...],
    cutoff: datetime,
) -> Subtracted:
    """As `subtract`, for few live and protected addresses."""

    def work(number: int, task: list[Part], answer: PartRows) -> None:
        kept = Kept.read(folder, live, protected)
        answer.counted(len(kept.required), bytes_total=0, group=_REQUIRED)
        writer = CandidateWriter(folder, kinds, number, answer)
        for part in task:
            assert part.name is not None
            table = read_part(folder, part.name, part.checksum).cast(INVENTORY_SCHEMA)
            seen = table.filter(pc.is_in(table.column("address"), value_set=kept.required))
            answer.counted(seen.num_rows, bytes_total=0, group=_SEEN)
            table = table.filter(pc.is_in(table.column("kind"), value_set=pa.array(kinds)))
            classes = _classes(table, kept, cutoff)
            for name in CLASSES:
                rows = table.filter(pc.equal(classes, pa.scalar(name, pa.string())))
                size = pc.sum(rows.column("size_bytes")).as_py() or 0
                answer.counted(rows.num_rows, bytes_total=size, group=_CLASS + name)
                if name == "candidate" and rows.num_rows:
                    writer.add(rows)
        writer.finish()

    answers = run_tasks(spark, split(inventory, tasks=task_count(spark)), work)
    counts = dict.fromkeys(CLASSES, Count())
    for part in answers:
        if part.name is None and part.group.startswith(_CLASS):
            name = part.group.removeprefix(_CLASS)
            counts[name] += Count(part.rows, part.bytes_total)
    required = {part.rows for part in answers if part.name is None and part.group == _REQUIRED}
    seen = sum(part.rows for part in answers if part.name is None and part.group == _SEEN)
    return Subtracted(
        candidates=tuple(part for part in answers if part.name is not None),
        counts=counts,
        all_listed=required == {seen},
    )


def _addresses(folder: RunFolder, parts: Iterable[Part]) -> pa.Array[Any]:
    """The addresses of parts, each once."""
    tables = [ADDRESS_SCHEMA.empty_table()]
    for part in parts:
        assert part.name is not None
        table = read_part(folder, part.name, part.checksum)
        tables.append(table.select(ADDRESS_SCHEMA.names).cast(ADDRESS_SCHEMA))
    return pc.unique(pa.concat_tables(tables).column("address").combine_chunks())


def _classes(table: pa.Table, kept: Kept, cutoff: datetime) -> pa.ChunkedArray[Any]:
    """The class of each row."""
    target = table.column("target")
    key = pc.coalesce(target, table.column("address"))
    micros = table.column("last_modified").cast(pa.int64())
    second, rest = pa.scalar(1_000_000, pa.int64()), pa.scalar(999_999, pa.int64())
    whole = pc.equal(micros, pc.multiply(pc.divide(micros, second), second))
    latest = pc.if_else(whole, pc.add(micros, rest), micros)
    conditions: list[Any] = [  # columns of booleans
        pc.and_(pc.is_in(key, value_set=kept.live), pc.is_null(target)),
        pc.is_in(key, value_set=kept.protected),
        pc.greater_equal(latest, pa.scalar(micros_of(cutoff), pa.int64())),
    ]
    choices = [pa.scalar(name, pa.string()) for name in CLASSES]
    found: Any = pc.case_when(pc.make_struct(*conditions), *choices)
    return found  # type: ignore[no-any-return]
