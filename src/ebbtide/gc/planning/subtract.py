"""The subtraction: inventory less live, protected and young is what may go.

    inventory ▷ live ▷ protected ▷ young = candidates

Joined are keys, with the place of each row (the number of its part, and of the row in it). The rows
themselves are read again of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.frames import Batches, Frame
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    PARTS_SCHEMA,
    Part,
    PartRows,
    checked,
    read_part,
    read_rows,
    split,
)
from ebbtide.gc.planning.candidates import CLASSES, CandidateWriter, Subtracted, by_use
from ebbtide.gc.relations.inventory import (
    INVENTORY_SCHEMA,
    JUDGED_SCHEMA,
    in_closed_slices,
    judged_by,
    judged_keys_of,
    latest_micros,
    micros_of,
)
from ebbtide.gc.relations.keys import KeyArray, keys_of, once, read_keys_in_order, rows_of
from ebbtide.gc.relations.sizing import sized
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

PLACED_SCHEMA: Final = make_schema(
    ("key", pa.int64()), ("judged", pa.int64()), ("part", pa.int32()), ("row", pa.int32())
)
"""A row of the inventory: the key of the address that it is judged by, once as `judged`, and once
as `key`, which is null where being live does not save it; and its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """What a subtraction is of: parts in `folder` of what was `listed` in the storage (their rows
    together, of `kinds`) and is protected, and a frame of what is live (column `key`). What was
    listed without size and date, and does not stay, is looked at.

    Of the listed, those of `kinds` and older than `cutoff` may go. What stays without being live,
    in slices that sort behind `closed_after`, the next run will not list: it is remembered.

    Of what is protected and is not `untraced`, the format tells when it is dropped: it is settled.

    `purged` (parts of ADDRESS_SCHEMA) may go however young and whatever refers to it. Addresses,
    not keys: two that have one key must not go for each other."""

    folder: RunFolder
    storage: Storage
    inventory: list[Part]
    listed: Count
    live: Frame | None
    protected: list[Part]
    kinds: tuple[str, ...]
    cutoff: datetime
    closed_after: str | None = None
    untraced: list[Part] = field(default_factory=list)
    purged: list[Part] = field(default_factory=list)

    def read_purged(self) -> pa.ChunkedArray[Any]:
        """The purged addresses. Refused `plan_corrupt`."""
        return read_rows(self.folder, self.purged, ADDRESS_SCHEMA).column("address")


def placed(
    engine: Engine,
    folder: RunFolder,
    parts: Sequence[Part],
    *,
    kinds: Sequence[str] | None = None,
    purged: Sequence[Part] = (),
    by_target: bool = True,
) -> Frame:
    """PLACED_SCHEMA of the rows of parts (JUDGED_SCHEMA and more); of those of some `kinds` alone,
    where these are named. With `by_target` False each is judged by its own address. Refused
    `plan_corrupt`."""

    def place(task: Sequence[tuple[int, Part]]) -> Batches:
        gone = read_rows(folder, purged, ADDRESS_SCHEMA).column("address")
        for number, part in task:
            assert part.name is not None
            columns = ["key", "kind", "target"]
            table = read_part(folder, part.name, part.checksum, columns=columns)
            if "key" not in table.column_names or len(gone) or not by_target:
                wanted = [*columns, "address"]
                table = read_part(folder, part.name, part.checksum, columns=wanted)
            judged = judged_keys_of(table) if by_target else keys_of(table.column("address"))
            unsaved = np.asarray(pc.is_valid(table.column("target")))
            if len(gone):
                unsaved |= np.asarray(pc.is_in(judged_by(table), value_set=gone))
            batch = pa.record_batch(
                [
                    pa.array(judged, mask=unsaved),
                    pa.array(judged),
                    pa.array(np.full(len(judged), number, np.int32)),
                    pa.array(np.arange(len(judged), dtype=np.int32)),
                ],
                schema=PLACED_SCHEMA,
            )
            if kinds is not None:
                of_kinds = pa.array(kinds, pa.string())
                batch = batch.filter(pc.is_in(table.column("kind"), value_set=of_kinds))
            advance(table.num_rows)
            yield batch

    tasks = split(list(enumerate(parts)), tasks=engine.tasks_for(rows_of(parts)))
    return engine.frame(tasks, place, PLACED_SCHEMA)


def by_part(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """Rows of PLACED_SCHEMA and more, in the order of their places: those of each part together,
    with its number."""
    held: list[pa.RecordBatch] = []
    current = -1
    for batch in batches:
        numbers = np.asarray(batch.column("part"))
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(numbers)]):
            if start == stop:
                continue
            if held and numbers[start] != current:
                yield current, pa.Table.from_batches(held)
                held = []
            current = int(numbers[start])
            held.append(batch.slice(start, stop - start))
    if held:
        yield current, pa.Table.from_batches(held)


def rows_at(folder: RunFolder, part: Part, places: pa.Table, schema: pa.Schema) -> pa.Table:
    """Those rows of a part that have these places, as `schema`. Refused `plan_corrupt`."""
    assert part.name is not None
    table = read_part(folder, part.name, part.checksum, columns=schema.names)
    return table.take(places.column("row").combine_chunks()).select(schema.names).cast(schema)


def flagged(engine: Engine, folder: RunFolder, parts: Sequence[Part], name: str) -> Frame:
    """The keys (`judged`) of parts with a column `key` or `address`, each once, with a column of
    that name that is true. Refused `plan_corrupt`."""
    schema = make_schema(("judged", pa.int64()), (name, pa.bool_()))

    def read(task: Sequence[Part]) -> Batches:
        for part in task:
            keys = once(read_keys_in_order(folder, part))
            flags = pa.repeat(pa.scalar(True), len(keys))
            yield pa.record_batch([pa.array(keys), flags], schema=schema)

    return engine.frame(
        split(parts, tasks=engine.tasks_for(rows_of(parts))), read, schema
    ).distinct()


def subtract(engine: Engine, given: Relations) -> Subtracted:
    """Find the candidates. Raises as what is `live` does, and Refused `plan_corrupt`."""
    folder = given.folder
    engine.expect(rows_of([*given.inventory, *given.protected]))
    engine.meter.begin("files", rows_of(given.inventory))
    left = placed(engine, folder, given.inventory, kinds=given.kinds, purged=given.purged)
    if given.live is not None:
        # What many versions of a node have in common is there as often.
        left = left.join(given.live.select("key").distinct(), "key", "left_anti")
    left = left.select("judged", "part", "row")
    for name, parts in (("protected", given.protected), ("untraced", given.untraced)):
        if parts:
            left = left.join(flagged(engine, folder, parts, name), "judged", "left")

    rest = replace(given, live=None)  # a task has no use for a frame

    def judge(batches: Batches) -> Batches:
        answer, writer = PartRows(), None
        purged = rest.read_purged()
        for number, places in by_part(batches):
            if writer is None:
                writer = CandidateWriter(folder, rest.kinds, number, answer)
            rows = rows_at(folder, rest.inventory[number], places, INVENTORY_SCHEMA)
            _judge(rest, rows, places, purged, writer, answer)
        if writer is not None:
            writer.finish()
        yield answer.batch()

    tasks = engine.tasks_for(rows_of(given.inventory))
    found = left.gathered(tasks, "part", "row").map(judge, PARTS_SCHEMA).collect()
    answers = checked(found.to_pylist())
    counts = dict.fromkeys(CLASSES, Count())
    for part in answers:
        if part.relation == "class":
            counts[part.group] += part.count
    # Whatever is not left is live. Of what is, nobody asked for a size that was not listed.
    left_count = sum(counts.values(), Count())
    counts["live"] = replace(given.listed - left_count, sized=given.listed.sized)
    return Subtracted(**by_use(answers), counts=counts)


def _judge(
    given: Relations,
    rows: pa.Table,
    places: pa.Table,
    purged: pa.ChunkedArray[Any],
    writer: CandidateWriter,
    answer: PartRows,
) -> None:
    """Put rows that are not live into their classes."""
    is_protected = _flags(places, "protected")
    is_purged = np.asarray(pc.is_in(judged_by(rows), value_set=purged))
    rows = sized(given.storage, rows, ~is_protected)
    dates = rows.column("last_modified")
    is_young = latest_micros(dates) >= micros_of(given.cutoff)
    is_gone = np.asarray(pc.is_null(dates))
    stays_young = ~is_protected & ((is_young & ~is_purged) | is_gone)
    settled = pa.array(is_protected & ~_flags(places, "untraced"))
    rows = rows.append_column(pa.field("key", pa.int64()), places.column("judged"))
    for name, of_class in (
        ("protected", is_protected),
        ("young", stays_young),
        ("candidate", ~is_protected & ~stays_young),
    ):
        chosen = rows.filter(pa.array(of_class))
        sizes = chosen.column("size_bytes")
        size, has_all = pc.sum(sizes).as_py() or 0, not sizes.null_count
        answer.counted(
            chosen.num_rows, bytes_total=size, sized=has_all, relation="class", group=name
        )
        if name == "candidate":
            writer.add(chosen)
        elif given.closed_after is not None:
            known = chosen.append_column("settled", settled.filter(pa.array(of_class)))
            # Of what is there no more nothing is to be remembered.
            known = (
                known.filter(pc.is_valid(known.column("last_modified")))
                if name == "young"
                else known
            )
            writer.remember(in_closed_slices(known, given.closed_after))


def _flags(places: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if name not in places.column_names:
        return np.zeros(places.num_rows, np.bool_)
    return np.asarray(pc.fill_null(places.column(name), pa.scalar(False)))


def unlisted(engine: Engine, given: Relations, required: Frame) -> KeyArray:
    """Which of the keys of `required` (column `key`) are not among what was listed."""
    listed = placed(engine, given.folder, given.inventory, kinds=given.kinds)
    left = required.select("key").join(listed.select("key"), "key", "left_anti")
    keys: KeyArray = once(left.distinct().collect().column("key").to_numpy())
    return keys


def asked_keys(engine: Engine, given: Relations) -> KeyArray:
    """The keys by which rows of the inventory are judged, each once. Held here: for few."""
    keys = placed(engine, given.folder, given.inventory, kinds=given.kinds).select("judged")
    found: KeyArray = once(keys.collect().column("judged").to_numpy())
    return found


def addresses_left(engine: Engine, given: Relations, live: Frame) -> pa.ChunkedArray[Any]:
    """The addresses by which rows of the inventory are judged that are not live; some of them twice
    perhaps. Held here: for few."""
    folder, inventory = given.folder, given.inventory
    keys = placed(engine, folder, inventory, kinds=given.kinds, purged=given.purged)
    left = keys.join(live.select("key"), "key", "left_anti").select("part", "row")

    def name(batches: Batches) -> Batches:
        for number, places in by_part(batches):
            rows = rows_at(folder, inventory[number], places, JUDGED_SCHEMA)
            column: Any = judged_by(rows).combine_chunks()
            yield pa.record_batch([column], schema=ADDRESS_SCHEMA)

    tasks = engine.tasks_for(rows_of(inventory))
    found = left.gathered(tasks, "part", "row").map(name, ADDRESS_SCHEMA).collect()
    return found.column("address")
