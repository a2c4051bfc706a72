"""The candidates: the listed files without those that are live, protected or young.

    store ▷ committed ▷ uncommitted ▷ young = candidates

The queries have only the key and the place of each row: the number of its part, and its number in
the part. Whole rows are read only for the files that are left.

`find_absent` looks for the opposite: files that kept commits need, and that are not on the storage.
Not for: restoring such files (`sweeping.recovery`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, split_by, texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import RepositoryFormat, outside
from ebbtide.formats.capabilities import checked_kinds_of, left_out_of, purged_among
from ebbtide.gc import quarantine
from ebbtide.gc.committed import HELD_SCHEMA, LIVE_SCHEMA, Mark
from ebbtide.gc.costs import StorageClasses, classes_of, tell_classes
from ebbtide.gc.engines.base import Batches, Engine, Query, Relation, answers_of
from ebbtide.gc.gates import SHOWN_MAX
from ebbtide.gc.keys import (
    KEYS_SCHEMA,
    KeyArray,
    keys_of,
    once,
    read_keys_in_order,
    rows_of,
)
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    ANSWERS_SCHEMA,
    Count,
    Part,
    PartRows,
    count_of,
    read_part,
    read_rows,
    split,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.gc.store import (
    INVENTORY_SCHEMA,
    in_closed_slices,
    judged_by,
    latest_micros,
    micros_of,
    sized,
    tell_undated,
    undated_warnings,
)
from ebbtide.storage import Storage, exist_external

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
    SELECT /*+ SHUFFLE_HASH(c, u) */ s.part, s.row,
        coalesce(u.protected, FALSE) AS protected, coalesce(u.untraced, FALSE) AS untraced
    FROM {store} s
    ANTI JOIN {committed} c ON s.key = c.key
    LEFT JOIN (
        SELECT key, bool_or(protected) AS protected, bool_or(untraced) AS untraced
        FROM {uncommitted} GROUP BY key
    ) u ON s.judged = u.key
    """,
    make_schema(
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

ABSENT_FILES: Final = "absent"
"""The relation of parts of absent files (HELD_SCHEMA), in the folder of the same name."""
_SHARED: Final = make_schema(("share", pa.int32()), *((n, pa.string()) for n in HELD_SCHEMA.names))
CANDIDATES: Final = "candidates"
REMAINING: Final = "remaining"
"""The relation of files that the next run looks at again."""


@dataclass(frozen=True, slots=True)
class Subtracted:
    """The result of a subtraction.

    `candidates` are parts of CANDIDATE_SCHEMA, one kind each. `remaining` are parts of the files
    that the next run looks at again. `counts` has the count of each class. `storage_classes` are
    those of the candidates; None if no listing gave one. `absent` are parts of required files that
    are not on the storage (`find_absent`).
    """

    candidates: tuple[Part, ...]
    remaining: tuple[Part, ...]
    counts: dict[str, Count]
    storage_classes: StorageClasses | None = None
    absent: tuple[Part, ...] = ()
    warnings: tuple[str, ...] = ()


def by_use(parts: Iterable[Part]) -> dict[str, tuple[Part, ...]]:
    """Returns the written parts by their relation, which is the name of a field of Subtracted."""
    found: dict[str, list[Part]] = {CANDIDATES: [], REMAINING: []}
    for part in parts:
        found[part.relation].append(part)
    return {name: tuple(of_use) for name, of_use in found.items()}


class CandidateWriter:
    """Writes the candidates of one task as parts of one kind and a bounded size. Writes the
    remaining files as parts of their own."""

    def __init__(self, folder: RunFolder, number: int, answer: PartRows) -> None:
        self._folder = folder
        self._number = number
        self._answer = answer
        self._gathered: dict[tuple[str, str], list[pa.Table]] = {}
        self._written: Counter[tuple[str, str]] = Counter()

    def add(self, table: pa.Table) -> None:
        """Adds candidates."""
        for kind, of_kind in split_by(table, "kind"):
            self._gather((CANDIDATES, kind), of_kind)

    def remember(self, table: pa.Table) -> None:
        """Adds remaining files."""
        self._gather((REMAINING, ""), table)

    def _gather(self, share: tuple[str, str], table: pa.Table) -> None:
        if not table.num_rows:
            return
        gathered = self._gathered.setdefault(share, [])
        gathered.append(table)
        if sum(part.num_rows for part in gathered) >= ROWS_PER_PART:
            self._flush(share)

    def finish(self) -> None:
        """Writes the rows that are not written yet."""
        for share in list(self._gathered):
            self._flush(share)

    def _flush(self, share: tuple[str, str]) -> None:
        (relation, kind), table = share, pa.concat_tables(self._gathered.pop(share))
        is_candidate = relation == CANDIDATES
        if is_candidate:
            # Files written at the same time lie close together on a disk: deletes in this order
            # take less time.
            table = table.sort_by("last_modified")
        for start in range(0, table.num_rows, ROWS_PER_PART):
            name = f"{relation}/{kind or relation}-{self._number:05d}-{self._written[share]:03d}"
            self._answer.wrote(
                self._folder,
                f"{name}.parquet",
                table.slice(start, ROWS_PER_PART),
                relation=relation,
                kind=kind,
                durable=is_candidate,
            )
            self._written[share] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """The input of a subtraction.

    - `inventory`: parts of the listed files, in `folder`. `listed` counts the files of `kinds`.
      The `storage` is asked for missing sizes and dates of files that are not live or protected.
    - `live`: the keys of live addresses (LIVE_SCHEMA), or None if there are none.
    - `protected`: parts of protected addresses.
    - `kinds` and `cutoff`: only files of these kinds, older than the cutoff, can be candidates.
    - `now`: the start of the run.
    - `closed_after`: the next run does not list slices that sort after it. Young files in them, and
      protected ones that are `untraced` or temporary, are therefore remaining. With None, no file
      is.
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
    now: datetime
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
    """Returns PLACED_SCHEMA for the rows of parts with the columns `address` and `kind`. With
    `kinds`, only for rows of these kinds.

    With `by_target` False, each row is judged by its own address. Raises Refused `plan_corrupt`.
    """

    def place(task: Sequence[tuple[int, Part]]) -> Batches:
        for number, part in task:
            table = read_part(folder, part.name, part.checksum, columns=("kind", "address"))
            addresses = table.column("address")
            judged = judged_by(table) if by_target else addresses
            keys = keys_of(judged)
            batch = pa.record_batch(
                [
                    pa.array(keys, mask=np.asarray(pc.not_equal(judged, addresses))),
                    pa.array(keys),
                    pa.array(np.full(len(keys), number, np.int32)),
                    pa.array(np.arange(len(keys), dtype=np.int32)),
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
    if "storage_class" in schema.names and "storage_class" not in table.column_names:
        # An earlier version of the program wrote the part.
        unknown = pa.nulls(table.num_rows, pa.string())
        table = table.append_column(schema.field("storage_class"), unknown)
    return table.take(places.column("row").combine_chunks()).select(schema.names).cast(schema)


def uncommitted(
    engine: Engine, folder: RunFolder, protected: Sequence[Part], untraced: Sequence[Part] = ()
) -> Relation:
    """Returns UNCOMMITTED_SCHEMA for parts of protected and of untraced addresses. The parts have a
    column `address`. Raises Refused `plan_corrupt`."""

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
                writer = CandidateWriter(folder, number, answer)
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
    return Subtracted(
        **by_use(answers.parts),
        counts=counts,
        storage_classes=classes_of(answers.counts, counts["candidate"].objects),
        warnings=undated_warnings(answers.counts),
    )


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
    for name, of_class in (
        ("protected", is_protected),
        ("young", stays_young),
        ("candidate", ~is_protected & ~stays_young),
    ):
        chosen = rows.filter(pa.array(of_class))
        answer.counted(count_of(chosen), of=name)
        if name == "candidate":
            tell_classes(chosen, given.now, answer)
            writer.add(chosen)
    if given.closed_after is not None:
        # The format reports the end of other protections, but knows no temporary files beside an
        # address. A file that is gone does not remain.
        is_temporary = np.asarray(pc.not_equal(judged_by(rows), rows.column("address")))
        unreported = is_protected & (is_temporary | np.asarray(places.column("untraced")))
        remaining = rows.filter(pa.array(unreported | (stays_young & ~is_gone)))
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
    found = placed(engine, given.folder, given.inventory, kinds=given.kinds).collect()
    return once(found.column("judged").to_numpy())


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
            rows = rows_at(folder, inventory[number], places, ADDRESS_SCHEMA)
            yield pa.record_batch([judged_by(rows)], schema=ADDRESS_SCHEMA)

    tasks = engine.tasks_for(rows_of(inventory))
    found = left.map(name, ADDRESS_SCHEMA, by=("part", "row"), tasks=tasks).collect()
    return found.column("address")


def find_absent(
    engine: Engine, repository: RepositoryFormat, mark: Mark, missing: KeyArray
) -> list[Part]:
    """Returns the absent files among the required addresses of a mark with these keys, each once
    (parts of HELD_SCHEMA). `missing` are the keys that were not listed.

    A listing can lack a file because the file was written later, so that each one is looked up.
    Purged files are not among them; nor are addresses that the listing leaves out, such as imported
    objects, unless a damaged node can name a wrong address: it may be anywhere.
    """
    if not len(missing):
        return []
    storage, folder, shares = repository.storage, mark.place.folder, engine.task_count
    layout, slices = repository.layout, mark.slices

    def shared(batches: Batches) -> Batches:
        for batch in batches:
            # The index knows keys alone, so that it can't tell which ones a listing leaves out.
            if slices is not None and checked_kinds_of(layout):
                addresses = cast("pa.StringArray", batch.column("address"))
                left_out = left_out_of(layout, addresses, slices)
                batch = batch.filter(pc.invert(left_out))
            numbers = pa.array((keys_of(batch.column("address")) % shares).astype(np.int32))
            yield pa.record_batch([numbers, *batch.columns], schema=_SHARED)

    def look(batches: Batches) -> Batches:
        answer = PartRows()
        found = pa.Table.from_batches(batches, _SHARED).group_by("address", use_threads=False)
        once = found.aggregate([("node_id", "min"), ("share", "min")])
        for start in range(0, once.num_rows, ROWS_PER_PART):
            some = once.slice(start, ROWS_PER_PART)
            rows = some.select(["address", "node_id_min"]).rename_columns(HELD_SCHEMA.names)
            addresses = cast("pa.StringArray", rows.column("address").combine_chunks())
            gone = rows.filter(pc.invert(_exists_anywhere(storage, addresses)))
            number = some.column("share_min")[0].as_py()
            name = f"{ABSENT_FILES}/part-{number:05d}-{start:09d}.parquet"
            answer.wrote(folder, name, gone, relation=ABSENT_FILES)
        yield answer.batch()

    held = mark.addresses(missing).map(shared, _SHARED)
    answers = answers_of(held.map(look, ANSWERS_SCHEMA, by=("share",), tasks=shares))
    return without_purged(repository, folder, answers.parts)


def exists(storage: Storage, addresses: list[str]) -> pa.Array[Any]:
    """Returns whether there is a file at each address of the storage."""
    regular: Any = storage.sizes(addresses).column("regular").fill_null(False)
    found: pa.Array[Any] = regular
    return found


def _exists_anywhere(storage: Storage, addresses: pa.StringArray) -> pa.Array[Any]:
    """Returns whether there is a file at each address, which may be outside the root. Raises
    Refused `missing_object` if that cannot be known."""
    is_outside = outside(addresses)
    far = texts(addresses.filter(is_outside))
    try:
        there = exist_external(far)
    except EbbtideError as error:
        raise Refused(
            "missing_object",
            f"a kept commit refers to files outside of {storage.url}, such as {far[0]}, and it "
            f"cannot be known whether they exist: {error.message}",
        ) from error
    found = np.zeros(len(addresses), np.bool_)
    is_far = is_outside.to_numpy(zero_copy_only=False)
    found[is_far] = there
    own = texts(addresses.filter(pc.invert(is_outside)))
    found[~is_far] = exists(storage, own).to_numpy(zero_copy_only=False)
    return pa.array(found)


def without_purged(
    repository: RepositoryFormat, folder: RunFolder, parts: list[Part]
) -> list[Part]:
    """Returns parts with a column `address`, without purged addresses."""
    kept, answer = list[Part](), PartRows()
    for part in parts:
        table = read_part(folder, part.name, part.checksum)
        purged = purged_among(repository, texts(table.column("address")))
        if not purged:
            kept.append(part)
            continue
        gone = pc.is_in(table.column("address"), value_set=pa.array(sorted(purged)))
        name = part.name.removesuffix(".parquet") + "-unpurged.parquet"
        rows = table.filter(pc.invert(gone))
        answer.wrote(folder, name, rows, relation=part.relation, kind=part.kind, durable=True)
    return kept + answer.parts()


def check_presence(folder: RunFolder, storage: Storage, absent: Sequence[Part]) -> None:
    """Raises Refused `missing_object` if files are absent that no quarantine has. A sweep restores
    the others.

    This is for formats whose nodes have no checksums. If a damaged node names a wrong address, the
    right address seems not to be live. The gate finds the damage, because no file exists at the
    wrong address.
    """
    gone = cast("pa.StringArray", read_rows(folder, absent, ADDRESS_SCHEMA).column("address"))
    is_outside = outside(gone)  # no address of the storage, and in no quarantine
    found = sorted(texts(gone.filter(pc.invert(is_outside))))
    for run_id in quarantine.runs_with_files(storage) if found else ():
        found = texts(
            pa.array(found).filter(pc.invert(quarantine.existing(storage, run_id, found)))
        )
    found = sorted([*found, *texts(gone.filter(is_outside))])
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Refused(
            "missing_object",
            f"a kept commit refers to {found[0]}, which is not at {storage.url}: either it was "
            f"lost, or the file that refers to it is damaged{more}. No quarantine has it: restore "
            "it from a backup",
            errors=found[:SHOWN_MAX],
        )
