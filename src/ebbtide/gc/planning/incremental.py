"""What an incremental run looks at in place of a whole listing.

A run that was swept knows every file that was there: what stayed because a commit needed it, and
what stayed for another reason. The next run looks at

- the slices that were not closed off then, and everything that lies in no slice: a listing;
- what the earlier run considered and did not delete: its remainder, and what came back to life;
- what is settled, and the format says was dropped: most of what is staged stays so for long, and is
  not looked at again before that;
- what commits refer to that were kept then, or made since, and are not kept now, through nodes that
  no kept commit has.

Whatever else is there was needed by commits that are still kept, or is settled, or has gone. What
is new among commits, trees and nodes is a difference of sets of ids, never of dates.

Looking at too little keeps garbage until the next clean run; it can't lose anything, since of what
is looked at all that is live or protected is known. Not for: choosing between the two kinds
(`modes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from ebbtide.arrow import make_schema, rows_in, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine, Work
from ebbtide.gc.frames import Batches, Frame
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Part,
    PartRows,
    read_part,
    read_rows,
    split,
)
from ebbtide.gc.planning.candidates import ROWS_PER_PART, SETTLED
from ebbtide.gc.planning.deciding import released_since
from ebbtide.gc.planning.plan import Plan, Settled
from ebbtide.gc.relations.index import Index
from ebbtide.gc.relations.inventory import (
    INVENTORY_SCHEMA,
    REMEMBERED,
    in_closed_slices,
    judged_by,
    judged_keys,
    read_judged,
)
from ebbtide.gc.relations.keys import (
    KEYS,
    KEYS_SCHEMA,
    KeyArray,
    KeySet,
    first_of_each_address,
    key_table,
    keys_in_parts,
    once,
    read_keys_in_order,
    rows_of,
    with_keys,
)
from ebbtide.gc.relations.mark import MarkedTrees, write_trees
from ebbtide.gc.relations.places import Place
from ebbtide.gc.relations.trees import FLAGGED, KnownTrees, each_once, tree_nodes
from ebbtide.gc.runs import RunFolder
from ebbtide.wording import counted

REVIVED: Final = "-revived-"
"""What the names of record parts have in them that say what came back to life."""

_RECORD_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)


_DOUBTED_SCHEMA: Final = pa.schema([*INVENTORY_SCHEMA, *KEYS_SCHEMA])
_KEY_SCHEMA: Final = make_schema(("key", pa.int64()))
_Step: TypeAlias = "tuple[Sequence[Any], Work]"
SMALL_MAX: Final = 16
"""How many small parts of what is settled there may be before they are put together."""


class NeedsCleanRunError(Exception):
    """An incremental run that can't be made; the text says why."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that was swept to its end, to go on from."""

    plan: Plan
    folder: RunFolder

    @property
    def closed_after(self) -> str:
        """Slices that sort behind this were closed off then."""
        assert self.plan.closed_after is not None
        return self.plan.closed_after


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run to go on from, and how much its sweep left in the storage."""

    run: EarlierRun
    left: Count


@dataclass(frozen=True, slots=True)
class Chosen:
    """The run to go on from; None for a clean one, and why, where another was asked for."""

    earlier: Earlier | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the run that is being planned knows."""

    place: Place
    trees: KnownTrees
    nodes: Frame  # TREE_NODES of the trees that stay
    dropped: list[Part]  # with the keys of what the format says was dropped
    index: Index | None

    @property
    def folder(self) -> RunFolder:
        """The run's."""
        return self.place.folder


@dataclass(frozen=True, slots=True)
class Recalled:
    """`parts` (INVENTORY_SCHEMA) are what the listing of an incremental run leaves out and the run
    must look at all the same. What is `settled` it need not, but for what has the keys of
    `unsettled`: of that, what counts is in `parts`, or was in those of an earlier run."""

    parts: list[Part]
    settled: tuple[Settled, ...]
    unsettled: list[Part]


def recall(engine: Engine, earlier: EarlierRun, now: Now) -> Recalled:
    """What the earlier run leaves to this one. Raises NeedsCleanRunError, also for files that are
    damaged or gone: those of earlier runs, and trees and nodes that nothing but this needs."""
    try:
        remembered = _remembered(engine, earlier, now)
        expired = _expired(engine, earlier, now)
        doubted, unsettled = _doubted(engine, earlier, now, expired)
        small = _small(earlier.plan.settled)
        written = engine.run_together(
            # Where both have a row, that of the settled has its date.
            _news(engine, doubted + expired, remembered, now.folder),
            _put_together(engine, small, unsettled, now.folder),
        )
        together = [part for part in written if part.relation == SETTLED]
        large = [each for each in earlier.plan.settled if each not in small]
        return Recalled(
            parts=remembered + [part for part in written if part.relation != SETTLED],
            settled=(*large, *(Settled(now.folder.path, part) for part in together)),
            unsettled=unsettled,
        )
    except Refused as error:
        raise NeedsCleanRunError(error.message) from error


def _remembered(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """What the earlier run considered and did not delete, of the slices that it closed off."""
    records = [name for name in earlier.folder.names("deleted") if REVIVED in name]
    tasks: list[Part | str] = [*earlier.plan.remaining, *records]
    # A step takes along what its tasks need, not all that is known.
    folder, layout, before = now.folder, now.place.layout, earlier.folder
    closed_after, cutoff = earlier.closed_after, earlier.plan.cutoff

    def work(number: int, task: Part | str, answer: PartRows) -> None:
        name = f"inventory/remembered-{number:05d}.parquet"
        if isinstance(task, Part):
            answer.copied(folder, name, before, task, relation=REMEMBERED)
            return
        # What came back to life was older than the earlier cutoff.
        found = read_part(before, task).select(_RECORD_SCHEMA.names)
        addresses: Any = found.column("address").combine_chunks()
        table = _rows(found, addresses, cutoff, found.column("kind"), layout)
        answer.wrote(folder, name, in_closed_slices(table, closed_after), relation="inventory")

    return engine.run(tasks, work)


def _rows(
    table: pa.Table, addresses: pa.StringArray, last_modified: Any, kinds: Any, layout: Layout
) -> pa.Table:
    columns: list[Any] = [  # arrays of the schema's types
        addresses,
        table.column("size_bytes"),
        pa.repeat(pa.scalar(last_modified, pa.timestamp("us", "UTC")), table.num_rows),
        kinds,
        layout.slices(addresses),
        layout.targets(addresses),
    ]
    return pa.table(columns, schema=INVENTORY_SCHEMA)


def _doubted(
    engine: Engine, earlier: EarlierRun, now: Now, expired: list[Part]
) -> tuple[list[Part], list[Part]]:
    """What of the settled was dropped, or is of a commit that expired: parts of INVENTORY_SCHEMA,
    in which an address may come more than once, where a slice was listed again; and the keys (parts
    of KEYS_SCHEMA) of all that was so since the last clean run."""
    if not engine.holds([*now.dropped, *expired]):
        raise NeedsCleanRunError("so much was dropped that listing everything is as quick")
    folder, before, unsettled = now.folder, earlier.folder, earlier.plan.unsettled
    closed_after = earlier.closed_after
    doubts = keys_in_parts(folder, [*now.dropped, *expired])
    settled_no_more = keys_in_parts(before, unsettled)

    def work(number: int, task: Sequence[Settled], answer: PartRows) -> None:
        doubted, known = KeySet(doubts), KeySet(settled_no_more)
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for settled in task:
            home = RunFolder.at(settled.run_path)
            keys = read_keys_in_order(home, settled.part)
            wanted = doubted.has(keys)
            if wanted.any():
                wanted &= ~known.has(keys)
                rows = read_rows(home, [settled.part], _DOUBTED_SCHEMA)
                rows = rows.filter(pa.array(wanted))
                tables.append(in_closed_slices(rows, closed_after))
        table = pa.concat_tables(tables)
        answer.wrote(folder, f"doubt/part-{number:05d}.parquet", table, relation="inventory")

    rows = rows_of(each.part for each in earlier.plan.settled)
    found = engine.run(split(earlier.plan.settled, tasks=engine.tasks_for(rows)), work)
    answer = PartRows()
    keys = once(np.concatenate([settled_no_more, keys_in_parts(folder, found)]))
    answer.wrote(folder, "unsettled/keys.parquet", key_table(keys), group=KEYS)
    return found, answer.parts()


def _small(settled: Sequence[Settled]) -> list[Settled]:
    """The small parts of what is settled, where they are many: each run adds some."""
    small = [each for each in settled if each.part.rows < ROWS_PER_PART // 2]
    return small if len(small) > SMALL_MAX else []


def _put_together(
    engine: Engine, small: Sequence[Settled], unsettled: Sequence[Part], folder: RunFolder
) -> _Step:
    """Writes what is settled, and in these parts, in fewer of them (relation SETTLED)."""

    def work(number: int, task: Sequence[Settled], answer: PartRows) -> None:
        known = KeySet.read(folder, unsettled)
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for each in task:
            rows = read_rows(RunFolder.at(each.run_path), [each.part], _DOUBTED_SCHEMA)
            keys: KeyArray = rows.column("key").to_numpy()
            tables.append(rows.filter(pa.array(~known.has(keys))))
        table = pa.concat_tables(tables)
        for start in range(0, table.num_rows, ROWS_PER_PART):
            name = f"{SETTLED}/together-{number:05d}-{start // ROWS_PER_PART:03d}.parquet"
            answer.wrote(folder, name, table.slice(start, ROWS_PER_PART), relation=SETTLED)

    # Each task may leave a small part again.
    count = _tasks_for(engine, rows_of(each.part for each in small))
    return split(small, tasks=count), work


def _tasks_for(engine: Engine, rows: int) -> int:
    """How many tasks to make of rows that each of them has to read, or of which each leaves a small
    part: no more than cores, each with some parts to write."""
    return min(engine.cores, 1 + rows // (2 * ROWS_PER_PART))


def _expired(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """What commits refer to that were kept then, or made since, and are not kept now, and that
    lies in slices closed off then: each address as often as nodes have it. Their dates are not
    known: they were there when the earlier run read the metadata."""
    before = (earlier.folder, earlier.plan.commits)
    released = released_since(now.folder, now.trees, earlier=before)
    if unknown := released.unknown_count:
        raise NeedsCleanRunError(f"nobody knows any more what {counted(unknown, 'tree')} held")
    if not released.trees:
        return []
    nodes = _lost_nodes(engine, released.trees, now)
    if sum(count for _, _, count in nodes) > engine.held_max:
        raise NeedsCleanRunError("so much has expired that listing everything is as quick")
    folder, layout, storage = now.folder, now.place.layout, now.place.storage
    closed_after, read_at = earlier.closed_after, earlier.plan.read_at

    def work(number: int, task: Sequence[tuple[str, str, int]], answer: PartRows) -> None:
        tables: list[pa.Table] = []
        for node_id, checksum, count in task:
            try:
                tables.append(layout.read_files(storage, node_id, checksum, entry_count=count))
            except EbbtideError as error:
                answer.failed(error)
        if not tables:
            return
        found = pa.concat_tables(tables)
        addresses: Any = found.column("address").combine_chunks()
        rows = _rows(found, addresses, read_at, layout.classify(addresses), layout)
        table = in_closed_slices(rows, closed_after)
        keyed = with_keys(table, judged_by(table))
        answer.wrote(folder, f"expired/part-{number:05d}.parquet", keyed, relation="inventory")

    return engine.run(split(nodes, tasks=engine.task_count), work)


def _lost_nodes(
    engine: Engine, trees: Sequence[tuple[str, str]], now: Now
) -> list[tuple[str, str, int]]:
    """The nodes (rows of NODES_SCHEMA) of released trees, given with their checksums, that no tree
    has whose data stays. They are held here: more than a run can hold of what they refer to, and
    there would be a clean run."""
    place = replace(now.place, name="expired")
    released = MarkedTrees(
        recorded=frozenset(tree_id for tree_id, _ in trees),
        data=frozenset(tree_id for tree_id, _ in trees),
    )
    known = write_trees(place.folder, place.prefixed("released"), released, dict(trees))
    kept = now.nodes.map(_of_data, _KEY_SCHEMA)
    # What is released is of no use to the index.
    index = None if now.index is None else replace(now.index, writable=False)
    found = tree_nodes(engine, place, known.trees, index).join(kept, "key", "left_anti")
    each = each_once([found.select(*FLAGGED.names).collect()]).select(NODES_SCHEMA.names)
    return sorted(row for batch in each.to_batches() for row in rows_in(batch))


def _of_data(batches: Batches) -> Batches:
    """The keys of nodes (TREE_NODES) whose data stays."""
    for batch in batches:
        chosen = batch.filter(batch.column("data"))
        yield pa.record_batch([chosen.column("key")], schema=_KEY_SCHEMA)


def _news(engine: Engine, parts: list[Part], known: list[Part], folder: RunFolder) -> _Step:
    """Writes the rows of `parts`, each address once, without those of `known`."""
    # What is there twice may be anywhere: a task has all of some addresses.
    count = _tasks_for(engine, rows_of(parts))

    def work(_number: int, bucket: int, answer: PartRows) -> None:
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for table in read_judged(folder, parts, INVENTORY_SCHEMA):
            keys: KeyArray = table.column("key").to_numpy()
            tables.append(table if count == 1 else table.filter(pa.array(keys % count == bucket)))
        found = pa.concat_tables(tables)
        wanted = KeySet(found.column("key").to_numpy())
        for part in known:
            if wanted.has(judged_keys(folder, part)).any():
                found = without(found, "address", read_rows(folder, [part], ADDRESS_SCHEMA))
        each = found.filter(pa.array(first_of_each_address(found)))
        for start in range(0, each.num_rows, ROWS_PER_PART):
            name = f"inventory/recalled-{bucket:05d}-{start // ROWS_PER_PART:03d}.parquet"
            answer.wrote(folder, name, each.slice(start, ROWS_PER_PART), relation="inventory")

    return range(count), work
