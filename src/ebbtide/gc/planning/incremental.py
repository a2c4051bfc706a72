"""The files that an incremental run looks at, without listing the whole storage.

An incremental run continues from an earlier run that was swept. The earlier run knew of each file
whether a commit needed it, whether it stayed for another reason, or whether it was deleted. The
incremental run looks at four groups of files:

- files in slices that were not closed then, and files outside slices. It lists these.
- files that the earlier run considered and did not delete: its remaining files, and revived files.
- settled files that the format reports as dropped. Most staged files stay staged for a long time,
  and no run looks at them before they are dropped.
- files of commits that were kept then, or were made since, and are not kept now. They are read from
  nodes that no kept commit has.

All other files are needed by commits that are still kept, or are settled, or were deleted. New
commits, trees and nodes are found by differences between sets of ids, never by dates.

If a run looks at too few files, some garbage stays until the next clean run. It cannot delete a
file that is needed, because it knows of each file that it looks at whether it is live or protected.
Not for: choosing between the two kinds of run (`modes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from ebbtide.arrow import make_schema, rows_in, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Engine, Work
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Part,
    PartRows,
    read_part,
    read_rows,
    split,
)
from ebbtide.gc.planning.deciding import released_since
from ebbtide.gc.planning.plan import Plan, SettledPart
from ebbtide.gc.planning.subtract import ROWS_PER_PART, SETTLED
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
from ebbtide.gc.relations.live import MarkedTrees, write_trees
from ebbtide.gc.relations.trees import KnownTrees, tree_nodes
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.text import count_text

REVIVED: Final = "-revived-"
"""A part of the name of each record part that lists revived files."""

_RECORD_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)


_DOUBTED_SCHEMA: Final = pa.schema([*INVENTORY_SCHEMA, *KEYS_SCHEMA])
_Step: TypeAlias = "tuple[Sequence[Any], Work]"
SMALL_MAX: Final = 16
"""The maximum number of small parts of settled files. If there are more, the run merges them."""


class NeedsCleanRunError(Exception):
    """Raised if an incremental run is not possible. The text says why."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that was swept to its end, from which another run can continue. `homes` are the folders
    of the runs that have its settled files."""

    plan: Plan
    folder: RunFolder
    homes: Mapping[str, RunFolder]

    @property
    def closed_after(self) -> str:
        """A slice; slices that sort after it were closed when the run listed them."""
        assert self.plan.closed_after is not None
        return self.plan.closed_after


@dataclass(frozen=True, slots=True)
class Earlier:
    """The run to continue from, and the files that its sweep left on the storage."""

    run: EarlierRun
    left: Count


@dataclass(frozen=True, slots=True)
class Chosen:
    """The run to continue from, or None for a clean run. `reason` says why a run is clean although
    its mode is not."""

    earlier: Earlier | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The data of the run that is being planned."""

    place: TaskFiles
    trees: KnownTrees
    nodes: pa.Table  # FLAGGED, of the trees that stay
    dropped: list[Part]  # with the keys of addresses that the format reports as dropped
    index: Index | None

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self.place.folder


@dataclass(frozen=True, slots=True)
class Recalled:
    """The files that an incremental run looks at without listing them, and the files that it leaves
    settled.

    `parts` (INVENTORY_SCHEMA) are the files to look at. `settled` are parts of files that the run
    does not look at. Rows with a key in `unsettled` do not count in them: such files are in
    `parts`, or were in the `parts` of an earlier run.
    """

    parts: list[Part]
    settled: tuple[SettledPart, ...]
    unsettled: list[Part]


def recall(engine: Engine, earlier: EarlierRun, now: Now) -> Recalled:
    """Returns the files that the earlier run leaves to this one.

    Raises NeedsCleanRunError, also if files are damaged or missing: files of earlier runs, or trees
    and nodes of commits that expired.
    """
    try:
        remembered = _remembered(engine, earlier, now)
        expired = _expired(engine, earlier, now)
        doubted, unsettled = _doubted(engine, earlier, now, expired)
        small = _small(earlier.plan.settled)
        answers = engine.run_together(
            # If an address is in both lists, the row of `doubted` counts: it has the file's date.
            _news(engine, doubted + expired, remembered, now.folder),
            _put_together(engine, small, unsettled, now.folder, earlier.homes),
        )
        written = answers.parts
        together = [part for part in written if part.relation == SETTLED]
        large = [each for each in earlier.plan.settled if each not in small]
        return Recalled(
            parts=remembered + [part for part in written if part.relation != SETTLED],
            settled=(*large, *(SettledPart(now.folder.name, part) for part in together)),
            unsettled=unsettled,
        )
    except Refused as error:
        raise NeedsCleanRunError(error.message) from error


def _remembered(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """Returns the files that the earlier run considered and did not delete, in slices that were
    closed then, as parts."""
    records = [name for name in earlier.folder.names("deleted") if REVIVED in name]
    tasks: list[Part | str] = [*earlier.plan.remaining, *records]
    # `work` is pickled with these variables, and not with all of `now` and `earlier`.
    folder, layout, before = now.folder, now.place.layout, earlier.folder
    closed_after, cutoff = earlier.closed_after, earlier.plan.cutoff

    def work(number: int, task: Part | str, answer: PartRows) -> None:
        name = f"inventory/remembered-{number:05d}.parquet"
        if isinstance(task, Part):
            answer.copied(folder, name, before, task, relation=REMEMBERED)
            return
        # The record has no dates. Revived files were older than the earlier cutoff, so use that.
        found = read_part(before, task).select(_RECORD_SCHEMA.names)
        addresses: Any = found.column("address").combine_chunks()
        table = _rows(found, addresses, cutoff, found.column("kind"), layout)
        answer.wrote(folder, name, in_closed_slices(table, closed_after), relation="inventory")

    return engine.run(tasks, work).parts


def _rows(
    table: pa.Table, addresses: pa.StringArray, last_modified: Any, kinds: Any, layout: Layout
) -> pa.Table:
    columns: list[Any] = [  # an array for each column of INVENTORY_SCHEMA
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
    """Returns the settled files that were dropped, or that an expired commit has.

    They are parts of INVENTORY_SCHEMA with keys. An address may come more than once, if its slice
    was listed again. Also returns the keys (parts of KEYS_SCHEMA) of all such files since the last
    clean run.
    """
    if not engine.holds([*now.dropped, *expired]):
        raise NeedsCleanRunError("so many files were dropped that a full listing is as fast")
    folder, before, unsettled = now.folder, earlier.folder, earlier.plan.unsettled
    closed_after, homes = earlier.closed_after, earlier.homes
    doubts = keys_in_parts(folder, [*now.dropped, *expired])
    settled_no_more = keys_in_parts(before, unsettled)

    def work(number: int, task: Sequence[SettledPart], answer: PartRows) -> None:
        doubted, known = KeySet(doubts), KeySet(settled_no_more)
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for settled in task:
            home = homes[settled.run_id]
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
    found = engine.run(split(earlier.plan.settled, tasks=engine.tasks_for(rows)), work).parts
    answer = PartRows()
    keys = once(np.concatenate([settled_no_more, keys_in_parts(folder, found)]))
    answer.wrote(folder, "unsettled/keys.parquet", key_table(keys), relation=KEYS)
    return found, answer.parts()


def _small(settled: Sequence[SettledPart]) -> list[SettledPart]:
    """Returns the small parts of settled files if there are more than SMALL_MAX, otherwise none.
    Each run adds some small parts."""
    small = [each for each in settled if each.part.rows < ROWS_PER_PART // 2]
    return small if len(small) > SMALL_MAX else []


def _put_together(
    engine: Engine,
    small: Sequence[SettledPart],
    unsettled: Sequence[Part],
    folder: RunFolder,
    homes: Mapping[str, RunFolder],
) -> _Step:
    """Returns a step that merges these small parts into fewer ones (relation SETTLED), without the
    files that are settled no more."""

    def work(number: int, task: Sequence[SettledPart], answer: PartRows) -> None:
        known = KeySet.read(folder, unsettled)
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for each in task:
            rows = read_rows(homes[each.run_id], [each.part], _DOUBTED_SCHEMA)
            keys: KeyArray = rows.column("key").to_numpy()
            tables.append(rows.filter(pa.array(~known.has(keys))))
        table = pa.concat_tables(tables)
        for start in range(0, table.num_rows, ROWS_PER_PART):
            name = f"{SETTLED}/together-{number:05d}-{start // ROWS_PER_PART:03d}.parquet"
            answer.wrote(folder, name, table.slice(start, ROWS_PER_PART), relation=SETTLED)

    # Each task can leave one small part again, so that few tasks are better.
    count = _tasks_for(engine, rows_of(each.part for each in small))
    return split(small, tasks=count), work


def _tasks_for(engine: Engine, rows: int) -> int:
    """Returns the number of tasks for a step in which each task reads all rows or leaves a small
    part. There is at most one task for each core, with enough rows for some parts."""
    return min(engine.cores, 1 + rows // (2 * ROWS_PER_PART))


def _expired(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """Returns the files of commits that were kept at the earlier run, or were made since, and are
    not kept now. Leaves out files in slices that were not closed at the earlier run.

    They are parts of INVENTORY_SCHEMA with keys; an address comes once for each node that has it.
    The dates of the files are not known. The rows have the time when the earlier run read the
    metadata, because the files existed then.
    """
    before = (earlier.folder, earlier.plan.commits)
    released = released_since(now.folder, now.trees, earlier=before)
    if unknown := released.unknown_count:
        raise NeedsCleanRunError(
            f"the checksums of {count_text(unknown, 'tree')} are not known any more"
        )
    if not released.trees:
        return []
    nodes = _lost_nodes(engine, released.trees, now)
    if sum(count for _, _, count in nodes) > engine.held_max:
        raise NeedsCleanRunError("so many files have expired that a full listing is as fast")
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

    return engine.run(split(nodes, tasks=engine.task_count), work).parts


def _lost_nodes(
    engine: Engine, trees: Sequence[tuple[str, str]], now: Now
) -> list[tuple[str, str, int]]:
    """Returns the nodes (rows of NODES_SCHEMA) of released trees, without the nodes of trees whose
    data stays. `trees` has the id and checksum of each released tree.

    The nodes are held in memory. If they have more addresses than the engine can hold, the caller
    makes a clean run.
    """
    place = replace(now.place, name="expired")
    released = MarkedTrees(
        recorded=frozenset(tree_id for tree_id, _ in trees),
        data=frozenset(tree_id for tree_id, _ in trees),
    )
    known = write_trees(place.folder, place.prefixed("released"), released, dict(trees))
    # Released trees are not added to the index, which has no use for them.
    index = None if now.index is None else replace(now.index, writable=False)
    found = tree_nodes(engine, place, known.trees, index).nodes
    lost = without(found, "node_id", now.nodes.filter(now.nodes.column("data")))
    batches = lost.select(NODES_SCHEMA.names).to_batches()
    return sorted(row for batch in batches for row in rows_in(batch))


def _news(engine: Engine, parts: list[Part], known: list[Part], folder: RunFolder) -> _Step:
    """Returns a step that writes the rows of `parts`, each address once, without the addresses in
    `known`."""
    # Rows with the same address can be in any parts. A task takes all rows of its addresses.
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
