"""The subtraction: the candidates are the listed files without live, protected and young ones.

    inventory ▷ live ▷ protected ▷ young = candidates

The queries have only the key and the place of each row: the number of its part, and its number in
the part. Whole rows are read only for the files that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, split_by
from ebbtide.errors import Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Batches, Engine, Query, Relation, answers_of
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    ANSWERS_SCHEMA,
    Part,
    PartRows,
    read_part,
    split,
)
from ebbtide.gc.relations.inventory import (
    INVENTORY_SCHEMA,
    JUDGED_SCHEMA,
    check_keys,
    in_closed_slices,
    judged_by,
    judged_keys_of,
    latest_micros,
    micros_of,
    tell_undated,
    undated_warnings,
)
from ebbtide.gc.relations.keys import (
    KEYS_SCHEMA,
    KeyArray,
    keys_of,
    once,
    read_keys_in_order,
    rows_of,
)
from ebbtide.gc.relations.listing import sized
from ebbtide.gc.relations.live import LIVE_SCHEMA
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.storage import Storage

CANDIDATE_SCHEMA: Final = INVENTORY_SCHEMA
"""Candidates have all columns of the inventory."""
ROWS_PER_PART: Final = 50_000
CLASSES: Final = ("live", "protected", "young", "candidate")
"""The classes of listed files. A file has the first class that applies to it.

A temporary file is protected if its target is protected. It is not live if its target is live,
because a live target does not need it any more. A file is young if it may have been written at or
after the cutoff. A date in whole seconds can mean any instant of that second. A file that was
deleted before its date could be read counts as young.
"""
PLACED_SCHEMA: Final = make_schema(
    ("key", pa.int64()), ("judged", pa.int64()), ("part", pa.int32()), ("row", pa.int32())
)
"""A row of the inventory by its place (`part` and `row`). `judged` is the key of the address that
the row is judged by. `key` is the same key, or null if a live address does not keep the file: for
temporary files."""

UNCOMMITTED_SCHEMA: Final = make_schema(
    ("key", pa.int64()), ("protected", pa.bool_()), ("untraced", pa.bool_())
)
"""The key of an address that stays without a commit (`protected`), or whose protection may end
without a report of the format (`untraced`). A key can come several times."""

# Keys of live addresses repeat, because many versions of a node have the same addresses. To remove
# repeated keys first would double the time of the join.
LEFT: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(c, u) */ s.judged, s.part, s.row,
        coalesce(u.protected, FALSE) AS protected, coalesce(u.untraced, FALSE) AS untraced
    FROM {store} s
    ANTI JOIN {committed} c ON s.key = c.key
    LEFT JOIN (
        SELECT key, bool_or(protected) AS protected, bool_or(untraced) AS untraced
        FROM {uncommitted} GROUP BY key
    ) u ON s.judged = u.key
    """,
    make_schema(
        ("judged", pa.int64()),
        ("part", pa.int32()),
        ("row", pa.int32()),
        ("protected", pa.bool_()),
        ("untraced", pa.bool_()),
    ),
)
"""The listed files that no commit has, and whether they stay without one."""

NOT_COMMITTED: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(c) */ s.part, s.row
    FROM {store} s ANTI JOIN {committed} c ON s.key = c.key
    """,
    make_schema(("part", pa.int32()), ("row", pa.int32())),
)
"""The listed files that no commit has."""

NEEDED: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(n) */ s.judged AS key
    FROM {store} s
    SEMI JOIN (
        SELECT key FROM {committed} UNION ALL SELECT key FROM {uncommitted}
    ) n ON s.judged = n.key
    """,
    KEYS_SCHEMA,
)
"""The keys by which files are judged that are needed."""

ABSENT: Final = Query(
    """
    SELECT /*+ SHUFFLE_HASH(s) */ DISTINCT c.key
    FROM {committed} c ANTI JOIN {store} s ON c.key = s.key
    WHERE c.required
    """,
    KEYS_SCHEMA,
)
"""The keys of required addresses that no listed file has."""

JUDGED: Final = Query("SELECT DISTINCT judged AS key FROM {store}", KEYS_SCHEMA)
"""The keys by which listed files are judged."""


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The result of a subtraction.

    `candidates` are parts of CANDIDATE_SCHEMA, one kind each. `remaining` are parts of the files
    that the next run looks at again. They have one more column, `key`: the key of the address that
    a row is judged by. `counts` has the count of each class. `absent` are parts of required files
    that are not on the storage (`planning.absent`).
    """

    candidates: tuple[Part, ...]
    remaining: tuple[Part, ...]
    counts: dict[str, Count]
    absent: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()


CANDIDATES: Final = "candidates"
REMAINING: Final = "remaining"
"""The relation of files that the next run looks at again."""


def by_use(parts: Iterable[Part]) -> dict[str, tuple[Part, ...]]:
    """Returns the written parts by their relation, which is the name of a field of Subtracted."""
    found: dict[str, list[Part]] = {CANDIDATES: [], REMAINING: []}
    for part in parts:
        found[part.relation].append(part)
    return {name: tuple(of_use) for name, of_use in found.items()}


class CandidateWriter:
    """Writes the candidates of one task as parts of one kind and a bounded size. Writes the
    remaining files as parts of their own."""

    def __init__(
        self, folder: RunFolder, kinds: tuple[str, ...], number: int, answer: PartRows
    ) -> None:
        self._folder = folder
        self._number = number
        self._answer = answer
        relations = [*((CANDIDATES, kind) for kind in kinds), (REMAINING, "")]
        self._gathered: dict[tuple[str, str], list[pa.Table]] = {each: [] for each in relations}
        self._written = dict.fromkeys(self._gathered, 0)

    def add(self, table: pa.Table) -> None:
        """Adds candidates: rows of CANDIDATE_SCHEMA with a column `key`. If a key is wrong, adds an
        error to the answer instead (`check_keys`)."""
        try:
            check_keys(table)
        except Refused as error:
            self._answer.failed(error)
            return
        for kind, of_kind in split_by(table.drop_columns("key"), "kind"):
            self._gather((CANDIDATES, kind), of_kind)

    def remember(self, table: pa.Table) -> None:
        """Adds remaining files: rows of CANDIDATE_SCHEMA with a column `key`."""
        self._gather((REMAINING, ""), table)

    def _gather(self, share: tuple[str, str], table: pa.Table) -> None:
        if not table.num_rows:
            return
        gathered = self._gathered[share]
        gathered.append(table)
        if sum(part.num_rows for part in gathered) >= ROWS_PER_PART:
            self._flush(share)

    def finish(self) -> None:
        """Writes the rows that are not written yet."""
        for share, tables in self._gathered.items():
            if tables:
                self._flush(share)

    def _flush(self, share: tuple[str, str]) -> None:
        (relation, kind), table = share, pa.concat_tables(self._gathered[share])
        is_candidate = relation == CANDIDATES
        if is_candidate:
            # Files written at the same time lie close together on a disk: deletes in this order
            # take less time.
            table = table.sort_by("last_modified")
        for start in range(0, table.num_rows, ROWS_PER_PART):
            number = f"{self._number:05d}-{self._written[share]:03d}"
            name = f"{relation}/{kind or relation}-{number}.parquet"
            piece = table.slice(start, ROWS_PER_PART)
            self._answer.wrote(
                self._folder,
                name,
                piece,
                relation=relation,
                kind=kind,
                durable=is_candidate,
            )
            self._written[share] += 1
        self._gathered[share] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """The input of a subtraction.

    - `inventory`: parts of the listed files, in `folder`. `listed` counts the files of `kinds`.
      The `storage` is asked for missing sizes and dates of files that are not live or protected.
    - `live`: the keys of live addresses (LIVE_SCHEMA), or None if there are none.
    - `protected`: parts of protected addresses.
    - `kinds` and `cutoff`: only files of these kinds, older than the cutoff, can be candidates.
    - `closed_after`: the next run does not list slices that sort after it. Young files in them, and
      protected ones that are `untraced`, are therefore remaining. With None, no file is.
    - `untraced`: parts of protected addresses whose end the format may not report.
    """

    folder: RunFolder
    storage: Storage
    inventory: list[Part]
    listed: Count
    live: Relation | None
    protected: list[Part]
    kinds: tuple[str, ...]
    cutoff: datetime
    closed_after: str | None = None
    untraced: list[Part] = field(default_factory=list)


def placed(
    engine: Engine,
    folder: RunFolder,
    parts: Sequence[Part],
    *,
    kinds: Sequence[str] | None = None,
    by_target: bool = True,
) -> Relation:
    """Returns PLACED_SCHEMA for the rows of parts (JUDGED_SCHEMA, and more columns). With `kinds`,
    only for rows of these kinds.

    With `by_target` False, each row is judged by its own address. Raises Refused `plan_corrupt`.
    """

    def place(task: Sequence[tuple[int, Part]]) -> Batches:
        for number, part in task:
            columns = ["key", "kind", "target"]
            table = read_part(folder, part.name, part.checksum, columns=columns)
            if "key" not in table.column_names or not by_target:
                wanted = [*columns, "address"]
                table = read_part(folder, part.name, part.checksum, columns=wanted)
            judged = judged_keys_of(table) if by_target else keys_of(table.column("address"))
            temporary = np.asarray(pc.is_valid(table.column("target")))
            batch = pa.record_batch(
                [
                    pa.array(judged, mask=temporary),
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
    return engine.rows(tasks, place, PLACED_SCHEMA)


def by_part(batches: Batches) -> Iterator[tuple[int, pa.Table]]:
    """Yields the number of each part with all its rows. The batches have the columns of
    PLACED_SCHEMA and more, in the order of `part` and `row`."""
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
    """Returns the rows of a part at these places, with the columns of `schema`. Raises Refused
    `plan_corrupt`."""
    table = read_part(folder, part.name, part.checksum, columns=schema.names)
    return table.take(places.column("row").combine_chunks()).select(schema.names).cast(schema)


def uncommitted(
    engine: Engine, folder: RunFolder, protected: Sequence[Part], untraced: Sequence[Part] = ()
) -> Relation:
    """Returns UNCOMMITTED_SCHEMA for parts of protected and of untraced addresses. The parts have a
    column `key` or `address`. Raises Refused `plan_corrupt`."""

    def read(task: Sequence[tuple[Part, bool]]) -> Batches:
        for part, is_protected in task:
            keys = once(read_keys_in_order(folder, part))
            kept = pa.repeat(pa.scalar(is_protected), len(keys))
            columns = [pa.array(keys), kept, pc.invert(kept)]
            yield pa.record_batch(columns, schema=UNCOMMITTED_SCHEMA)

    parts = [(part, True) for part in protected] + [(part, False) for part in untraced]
    tasks = split(parts, tasks=engine.tasks_for(rows_of(part for part, _ in parts)))
    return engine.rows(tasks, read, UNCOMMITTED_SCHEMA)


def _or_none(engine: Engine, live: Relation | None) -> Relation:
    return engine.rows([], iter, LIVE_SCHEMA) if live is None else live


def subtract(engine: Engine, given: Relations) -> Subtracted:
    """Finds the candidates. Raises as the relation `live` does, and Refused `plan_corrupt`."""
    folder = given.folder
    engine.expect(rows_of([*given.inventory, *given.protected]))
    engine.meter.begin("files", rows_of(given.inventory))
    left = engine.query(
        LEFT,
        store=placed(engine, folder, given.inventory, kinds=given.kinds),
        committed=_or_none(engine, given.live),
        uncommitted=uncommitted(engine, folder, given.protected, given.untraced),
    )
    rest = replace(given, live=None)  # tasks do not use the relation

    def judge(batches: Batches) -> Batches:
        answer, writer = PartRows(), None
        for number, places in by_part(batches):
            if writer is None:
                writer = CandidateWriter(folder, rest.kinds, number, answer)
            rows = rows_at(folder, rest.inventory[number], places, INVENTORY_SCHEMA)
            _judge(rest, rows, places, writer, answer)
        if writer is not None:
            writer.finish()
        yield answer.batch()

    tasks = engine.tasks_for(rows_of(given.inventory))
    answers = answers_of(left.map(judge, ANSWERS_SCHEMA, by=("part", "row"), tasks=tasks))
    counts = dict.fromkeys(CLASSES, Count())
    for each in answers.counts:
        if each.of in counts:
            counts[each.of] += each.count
    # All other listed files are live. Their sizes are known only if the listing asked for them.
    left_count = sum(counts.values(), Count())
    counts["live"] = replace(given.listed - left_count, sized=given.listed.sized)
    warnings = undated_warnings(answers.counts)
    return Subtracted(**by_use(answers.parts), counts=counts, warnings=warnings)


def _judge(
    given: Relations,
    rows: pa.Table,
    places: pa.Table,
    writer: CandidateWriter,
    answer: PartRows,
) -> None:
    """Divides rows that are not live into the other classes. Writes candidates and remaining
    files."""
    is_protected = np.asarray(places.column("protected"))
    is_new = pc.is_null(rows.column("last_modified"))
    rows = sized(given.storage, rows, ~is_protected)
    tell_undated(rows.filter(is_new), answer)  # others were told when they were listed
    dates = rows.column("last_modified")
    is_young = latest_micros(dates) >= micros_of(given.cutoff)
    is_gone = np.asarray(pc.is_null(dates))
    stays_young = ~is_protected & (is_young | is_gone)
    rows = rows.append_column(pa.field("key", pa.int64()), places.column("judged"))
    for name, of_class in (
        ("protected", is_protected),
        ("young", stays_young),
        ("candidate", ~is_protected & ~stays_young),
    ):
        chosen = rows.filter(pa.array(of_class))
        sizes = chosen.column("size_bytes")
        size, has_all = pc.sum(sizes).as_py() or 0, not sizes.null_count
        answer.counted(Count(chosen.num_rows, size, has_all), of=name)
        if name == "candidate":
            writer.add(chosen)
    if given.closed_after is not None:
        # The format reports the end of other protections. A file that is gone does not remain.
        untraced = is_protected & np.asarray(places.column("untraced"))
        remaining = rows.filter(pa.array(untraced | (stays_young & ~is_gone)))
        writer.remember(in_closed_slices(remaining, given.closed_after))


def needed_of(
    engine: Engine,
    folder: RunFolder,
    candidates: Sequence[Part],
    *,
    live: Relation | None = None,
    protected: Sequence[Part] = (),
) -> KeyArray:
    """Returns the keys by which candidates are judged that are among the `live` keys (LIVE_SCHEMA)
    or the `protected` addresses."""
    found = engine.query(
        NEEDED,
        store=placed(engine, folder, candidates),
        committed=_or_none(engine, live),
        uncommitted=uncommitted(engine, folder, protected),
    )
    return _keys_in(found)


def unlisted(
    engine: Engine, given: Relations, live: Relation, *, kinds: Sequence[str] | None = None
) -> KeyArray:
    """Returns the keys of required addresses in `live` (LIVE_SCHEMA) that no listed file has. With
    `kinds`, only files of these kinds count."""
    listed = placed(engine, given.folder, given.inventory, kinds=kinds)
    return once(_keys_in(engine.query(ABSENT, committed=live, store=listed)))


def asked_keys(engine: Engine, given: Relations) -> KeyArray:
    """Returns the keys by which the rows of the inventory are judged, each once. Only for few
    rows, because all keys are held in memory."""
    listed = placed(engine, given.folder, given.inventory, kinds=given.kinds)
    return once(_keys_in(engine.query(JUDGED, store=listed)))


def _keys_in(found: Relation) -> KeyArray:
    keys: KeyArray = found.collect().column("key").to_numpy()
    return keys


def addresses_left(engine: Engine, given: Relations, live: Relation) -> pa.ChunkedArray[Any]:
    """Returns the addresses by which the rows of the inventory that are not live are judged. An
    address can come twice. Only for few rows, because all addresses are held in memory."""
    folder, inventory = given.folder, given.inventory
    listed = placed(engine, folder, inventory, kinds=given.kinds)
    left = engine.query(NOT_COMMITTED, store=listed, committed=live)

    def name(batches: Batches) -> Batches:
        for number, places in by_part(batches):
            rows = rows_at(folder, inventory[number], places, JUDGED_SCHEMA)
            column: Any = judged_by(rows).combine_chunks()
            yield pa.record_batch([column], schema=ADDRESS_SCHEMA)

    tasks = engine.tasks_for(rows_of(inventory))
    found = left.map(name, ADDRESS_SCHEMA, by=("part", "row"), tasks=tasks).collect()
    return found.column("address")
