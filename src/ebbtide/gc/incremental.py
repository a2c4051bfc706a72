"""What an incremental run looks at in place of a whole listing.

A run that was swept knows every file that was there: what stayed because a commit needed it, and
what stayed for another reason. The next run looks at

- the slices that were not closed off then, and everything that lies in no slice: a listing;
- what the earlier run considered and did not delete: its remainder, and what came back to life;
- what commits that were kept then and are not now refer to, through nodes that no kept commit has.

Whatever else is there was needed by commits that are still kept, or has gone. What is new among
commits, trees and nodes is a difference of sets of ids, never of dates.

Looking at too little keeps garbage until the next clean run; it can't lose anything, since what is
live and protected is read as in any run. Not for: choosing between the two kinds (`modes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import INVENTORY_SCHEMA, REMEMBERED, in_closed_slices
from ebbtide.gc.keys import KEYS, KeySet, KeyWriter, keys_of, read_keys_in_order
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Part,
    PartRows,
    read_part,
    read_rows,
    read_tables,
    split,
)
from ebbtide.gc.plan import Plan, read_commits
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

REVIVED: Final = "-revived-"
"""What the names of record parts have in them that say what came back to life."""

_RECORD_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)


_JUDGED_SCHEMA: Final = pa.schema([INVENTORY_SCHEMA.field(n) for n in ("address", "target")])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the run that is being planned knows."""

    folder: RunFolder
    storage: Storage
    layout: Layout
    data_trees: frozenset[str]
    checksums: Mapping[str, str]  # of trees, by their ids
    node_parts: list[Part]  # of all data trees


def recall(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """Parts (INVENTORY_SCHEMA) of what the listing of an incremental run leaves out and the run
    must look at all the same. Raises NeedsCleanRunError, also for files that are damaged: those of
    the earlier run, and trees and nodes that nothing but this needs."""
    try:
        remembered = _remembered(engine, earlier, now)
        return remembered + _expired(engine, earlier, now, remembered)
    except Refused as error:
        raise NeedsCleanRunError(error.message) from error


def in_question(
    folder: RunFolder, inventory: Sequence[Part], protected: Sequence[Part]
) -> list[Part]:
    """The keys (parts of KEYS_SCHEMA) by which those of the inventory are judged that nothing
    protects: what else is live makes no difference to this run."""
    kept = KeySet.read(folder, protected)
    answer = PartRows()
    writer = KeyWriter("live/in-question", folder, answer, group=KEYS)
    for part in inventory:
        if part.group == REMEMBERED:
            keys = read_keys_in_order(folder, part)
        else:
            table = read_rows(folder, [part], _JUDGED_SCHEMA)
            keys = keys_of(pc.coalesce(table.column("target"), table.column("address")))
        writer.add(keys[np.logical_not(kept.has(keys))])
    writer.finish()
    return answer.parts()


def _remembered(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """What the earlier run considered and did not delete, of the slices that it closed off."""
    records = [name for name in earlier.folder.names("deleted") if REVIVED in name]
    tasks: list[Part | str] = [*earlier.plan.remaining, *records]

    def work(number: int, task: Part | str, answer: PartRows) -> None:
        name = f"inventory/remembered-{number:05d}.parquet"
        if isinstance(task, Part):
            answer.copied(now.folder, name, earlier.folder, task, group=REMEMBERED)
            return
        table = _revived(read_part(earlier.folder, task), earlier, now.layout)
        table = in_closed_slices(table, earlier.closed_after)
        answer.wrote(now.folder, name, table, group="rows")

    return engine.run(tasks, work)


def _revived(record: pa.Table, earlier: EarlierRun, layout: Layout) -> pa.Table:
    """Rows of a record as rows of an inventory: they were older than the earlier cutoff."""
    found = record.select(_RECORD_SCHEMA.names)
    addresses: Any = found.column("address").combine_chunks()
    return _rows(found, addresses, earlier.plan.cutoff, found.column("kind"), layout)


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


def _expired(engine: Engine, earlier: EarlierRun, now: Now, remembered: list[Part]) -> list[Part]:
    """What commits refer to that were kept then and are not now, and that lies in slices closed
    off then. Their dates are not known: they were there when the earlier run read the metadata."""
    released = read_commits(earlier.folder, earlier.plan.commits).data_trees - now.data_trees
    nodes = _nodes_of(engine, sorted(released), now)
    if not nodes:
        return []
    if sum(count for _, _, count in nodes) > engine.held_max:
        raise NeedsCleanRunError("so much has expired that listing everything is as quick")

    def work(number: int, task: Sequence[tuple[str, str, int]], answer: PartRows) -> None:
        tables = [INVENTORY_SCHEMA.empty_table()]
        for node_id, checksum, count in task:
            try:
                found = now.layout.read_files(now.storage, node_id, checksum, entry_count=count)
            except EbbtideError as error:
                answer.failed(error)
                continue
            addresses: Any = found.column("address").combine_chunks()
            kinds = now.layout.classify(addresses)
            rows = _rows(found, addresses, earlier.plan.read_at, kinds, now.layout)
            tables.append(in_closed_slices(rows, earlier.closed_after))
        table = pa.concat_tables(tables)
        answer.wrote(now.folder, f"expired/part-{number:05d}.parquet", table, group="rows")

    parts = engine.run(split(nodes, tasks=engine.task_count), work)
    return _new_among(parts, remembered, now.folder)


def _nodes_of(engine: Engine, trees: Sequence[str], now: Now) -> list[tuple[str, str, int]]:
    """The nodes (rows of NODES_SCHEMA) of released trees that no tree has whose data stays."""
    unknown = [tree_id for tree_id in trees if tree_id not in now.checksums]
    if unknown:
        raise NeedsCleanRunError(f"nobody knows any more what {len(unknown):,} trees held")

    def work(number: int, task: Sequence[str], answer: PartRows) -> None:
        tables = [NODES_SCHEMA.empty_table()]
        for tree_id in task:
            try:
                tables.append(now.layout.read_tree(now.storage, tree_id, now.checksums[tree_id]))
            except EbbtideError as error:
                answer.failed(error)
        table = pa.concat_tables(tables).group_by(NODES_SCHEMA.names).aggregate([])
        name = f"expired/nodes-{number:05d}.parquet"
        answer.wrote(now.folder, name, table.select(NODES_SCHEMA.names), group="nodes")

    if not trees:
        return []
    parts = engine.run(split(trees, tasks=engine.task_count), work)
    if not engine.holds(parts):
        raise NeedsCleanRunError("so much has expired that listing everything is as quick")
    found = read_rows(now.folder, parts, NODES_SCHEMA)
    for kept in read_tables(now.folder, now.node_parts, NODES_SCHEMA):
        found = without(found, "node_id", kept)
    once = found.group_by(NODES_SCHEMA.names).aggregate([])
    columns = (once.column(name).to_pylist() for name in NODES_SCHEMA.names)
    return sorted(zip(*columns, strict=True))


def _new_among(parts: Iterable[Part], known: list[Part], folder: RunFolder) -> list[Part]:
    """The rows of `parts`, each address once, without those of `known`."""
    found = read_rows(folder, parts, INVENTORY_SCHEMA)
    keys = keys_of(found.column("address"))
    for part in known:
        if KeySet([keys]).has(read_keys_in_order(folder, part)).any():
            found = without(found, "address", read_rows(folder, [part], ADDRESS_SCHEMA))
    once = found.group_by("address", use_threads=False).aggregate(
        [(name, "first") for name in INVENTORY_SCHEMA.names if name != "address"]
    )
    answer = PartRows()
    table = once.rename_columns(INVENTORY_SCHEMA.names).cast(INVENTORY_SCHEMA)
    answer.wrote(folder, "inventory/expired.parquet", table, group="rows")
    return answer.parts()
