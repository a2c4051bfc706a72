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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts, without
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.candidates import ROWS_PER_PART, SETTLED
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import INVENTORY_SCHEMA, REMEMBERED, in_closed_slices
from ebbtide.gc.keys import (
    KEYS,
    KEYS_SCHEMA,
    KeyArray,
    KeySet,
    KeyWriter,
    keys_of,
    read_keys,
    read_keys_in_order,
    to_key_parts,
)
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Part,
    PartRows,
    read_part,
    read_rows,
    read_tables,
    split,
)
from ebbtide.gc.plan import Plan, Settled, read_commits
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

REVIVED: Final = "-revived-"
"""What the names of record parts have in them that say what came back to life."""

_RECORD_SCHEMA: Final = make_schema(
    ("address", pa.string()), ("size_bytes", pa.int64()), ("kind", pa.string())
)


_JUDGED_SCHEMA: Final = pa.schema([INVENTORY_SCHEMA.field(n) for n in ("address", "target")])
_DOUBTED_SCHEMA: Final = pa.schema([*INVENTORY_SCHEMA, *KEYS_SCHEMA])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the run that is being planned knows."""

    folder: RunFolder
    storage: Storage
    layout: Layout
    data_trees: frozenset[str]
    checksums: Mapping[str, str]  # of trees, by their ids
    node_parts: list[Part]  # of all data trees
    dropped: list[Part]  # with the keys of what the format says was dropped


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
        return Recalled(
            # Where both have a row, that of the settled has its date.
            parts=remembered + _new_among(doubted + expired, remembered, now.folder),
            settled=_put_together(earlier.plan.settled, unsettled, now.folder),
            unsettled=unsettled,
        )
    except Refused as error:
        raise NeedsCleanRunError(error.message) from error


@dataclass(frozen=True, slots=True)
class Question:
    """What a run looks at: the addresses by which it is judged, and their keys."""

    addresses: pa.ChunkedArray[Any]
    keys: KeyArray

    @classmethod
    def of(cls, folder: RunFolder, inventory: Sequence[Part]) -> Question:
        """Read from parts of INVENTORY_SCHEMA."""
        rows = read_rows(folder, inventory, _JUDGED_SCHEMA)
        judged: Any = pc.coalesce(rows.column("target"), rows.column("address"))
        return cls(judged, keys_of(judged))

    def key_parts(self, folder: RunFolder) -> list[Part]:
        """The keys as parts of KEYS_SCHEMA: what else is live makes no difference to the run."""
        answer = PartRows()
        writer = KeyWriter("live/in-question", folder, answer, group=KEYS)
        writer.add(self.keys)
        writer.finish()
        return answer.parts()

    def left(self, folder: RunFolder, live: Iterable[Part]) -> list[str]:
        """The addresses that are not live, each once."""
        others = np.logical_not(KeySet.read(folder, live).has(self.keys))
        return texts(pc.unique(self.addresses.filter(pa.array(others))))


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


def _doubted(
    engine: Engine, earlier: EarlierRun, now: Now, expired: list[Part]
) -> tuple[list[Part], list[Part]]:
    """What of the settled was dropped, or is of a commit that expired: parts of INVENTORY_SCHEMA,
    in which an address may come more than once, where a slice was listed again; and the keys (parts
    of KEYS_SCHEMA) of all that was so since the last clean run."""
    if not engine.holds([*now.dropped, *expired]):
        raise NeedsCleanRunError("so much was dropped that listing everything is as quick")
    doubts = to_key_parts(engine, now.folder, [*now.dropped, *expired], name="doubt")

    def work(number: int, task: Sequence[Settled], answer: PartRows) -> None:
        doubted = KeySet.read(now.folder, doubts)
        known = KeySet.read(earlier.folder, earlier.plan.unsettled)
        tables = [_DOUBTED_SCHEMA.empty_table()]
        for settled in task:
            folder = RunFolder.at(settled.run_path)
            keys = read_keys_in_order(folder, settled.part)
            wanted = doubted.has(keys) & ~known.has(keys)
            if wanted.any():
                rows = read_rows(folder, [settled.part], _DOUBTED_SCHEMA)
                rows = rows.filter(pa.array(wanted))
                tables.append(in_closed_slices(rows, earlier.closed_after))
        table = pa.concat_tables(tables)
        answer.wrote(now.folder, f"doubt/part-{number:05d}.parquet", table, group="rows")

    tasks = split(earlier.plan.settled, tasks=engine.task_count)
    found = engine.run(tasks, work)
    answer = PartRows()
    writer = KeyWriter("unsettled/keys", now.folder, answer, group=KEYS)
    for part in earlier.plan.unsettled:
        writer.add(read_keys(earlier.folder, part))
    for part in found:
        writer.add(read_keys(now.folder, part))
    writer.finish()
    return found, answer.parts()


def _put_together(
    settled: Sequence[Settled], unsettled: Sequence[Part], folder: RunFolder
) -> tuple[Settled, ...]:
    """What is settled, in fewer parts where many are small: each run adds some."""
    small = [each for each in settled if each.part.rows < ROWS_PER_PART // 2]
    if len(small) <= SMALL_MAX:
        return tuple(settled)
    known = KeySet.read(folder, unsettled)
    tables = [_DOUBTED_SCHEMA.empty_table()]
    for each in small:
        rows = read_rows(RunFolder.at(each.run_path), [each.part], _DOUBTED_SCHEMA)
        keys: KeyArray = rows.column("key").to_numpy()
        tables.append(rows.filter(pa.array(~known.has(keys))))
    table = pa.concat_tables(tables)
    answer = PartRows()
    for start in range(0, table.num_rows, ROWS_PER_PART):
        name = f"{SETTLED}/together-{start // ROWS_PER_PART:05d}.parquet"
        answer.wrote(folder, name, table.slice(start, ROWS_PER_PART), group=SETTLED)
    large = [each for each in settled if each not in small]
    return (*large, *(Settled(folder.path, part) for part in answer.parts()))


def _expired(engine: Engine, earlier: EarlierRun, now: Now) -> list[Part]:
    """What commits refer to that were kept then, or made since, and are not kept now, and that
    lies in slices closed off then: each address as often as nodes have it. Their dates are not
    known: they were there when the earlier run read the metadata."""
    planned = read_commits(earlier.folder, earlier.plan.commits)
    made_since = now.checksums.keys() - planned.trees
    released = (planned.data_trees | made_since) - now.data_trees
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

    return engine.run(split(nodes, tasks=engine.task_count), work)


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
    answer.wrote(folder, "inventory/recalled.parquet", table, group="rows")
    return answer.parts()
