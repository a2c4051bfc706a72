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

from ebbtide.gc.candidates import (
    CLASSES,
    REMAINING,
    CandidateWriter,
    Relations,
    Subtracted,
    micros_of,
)
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import INVENTORY_SCHEMA, in_closed_slices
from ebbtide.gc.mark import ADDRESS_SCHEMA, REQUIRED
from ebbtide.gc.parts import Part, PartRows, read_rows, read_tables, split
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


def look_up(engine: Engine, given: Relations) -> Subtracted:
    """As `subtract`, for few live and protected addresses."""
    folder, kinds = given.folder, given.kinds

    def work(number: int, task: list[Part], answer: PartRows) -> None:
        kept = Kept.read(folder, given.live, given.protected)
        answer.counted(len(kept.required), bytes_total=0, group=_REQUIRED)
        writer = CandidateWriter(folder, kinds, number, answer)
        for table in read_tables(folder, task, INVENTORY_SCHEMA):
            seen = table.filter(pc.is_in(table.column("address"), value_set=kept.required))
            answer.counted(seen.num_rows, bytes_total=0, group=_SEEN)
            listed = table.filter(pc.is_in(table.column("kind"), value_set=pa.array(kinds)))
            classes = _classes(listed, kept, given.cutoff)
            for name in CLASSES:
                rows = listed.filter(pc.equal(classes, pa.scalar(name, pa.string())))
                size = pc.sum(rows.column("size_bytes")).as_py() or 0
                answer.counted(rows.num_rows, bytes_total=size, group=_CLASS + name)
                if name == "candidate" and rows.num_rows:
                    writer.add(rows)
                elif name in ("protected", "young") and given.closed_after is not None:
                    writer.remember(in_closed_slices(rows, given.closed_after))
        writer.finish()

    answers = engine.run(split(given.inventory, tasks=engine.task_count), work)
    counts = dict.fromkeys(CLASSES, Count())
    for part in answers:
        if part.name is None and part.group.startswith(_CLASS):
            name = part.group.removeprefix(_CLASS)
            counts[name] += Count(part.rows, part.bytes_total)
    required = {part.rows for part in answers if part.name is None and part.group == _REQUIRED}
    seen = sum(part.rows for part in answers if part.name is None and part.group == _SEEN)
    return Subtracted(
        candidates=tuple(p for p in answers if p.name is not None and p.group != REMAINING),
        remaining=tuple(p for p in answers if p.name is not None and p.group == REMAINING),
        counts=counts,
        all_listed=required == {seen},
    )


def _addresses(folder: RunFolder, parts: Iterable[Part]) -> pa.Array[Any]:
    """The addresses of parts, each once."""
    return pc.unique(read_rows(folder, parts, ADDRESS_SCHEMA).column("address").combine_chunks())


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
