"""The relation `tree_nodes`: which nodes the trees that stay refer to.

Of what the index knows, a task goes through the parts of its bucket; the other trees are read from
their own files, and added to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, first_of_each, make_schema, rows_in, without
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA
from ebbtide.gc.ahead import fetched
from ebbtide.gc.engine import Engine
from ebbtide.gc.frames import Batches, Frame
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.relations.index import LOOSE, Index, bucket_of
from ebbtide.gc.relations.indexed import IndexedTrees, TreeRows, numbered_nodes
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.relations.keys import keys_of
from ebbtide.gc.relations.places import Place

MISSING_TREE: Final = "missing_tree"
NODE_ROWS_HELD_MAX: Final = 1_000_000

TREES_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("checksum", pa.string()),
    ("recorded", pa.bool_()),
    ("data", pa.bool_()),
    ("required", pa.bool_()),
)
"""A tree, the checksum of its file, whether it stays and is to be read (`recorded`), whether its
data does, so that its nodes are to be read, too, and whether it may not be missing."""

_BUCKET: Final = pa.field("bucket", pa.int32())
_NEEDED: Final = pa.schema([*(each for each in TREES_SCHEMA if each.name != "recorded"), _BUCKET])
"""A tree to read."""

TREE_NODES: Final = pa.schema(
    [
        *NODES_SCHEMA,
        pa.field("data", pa.bool_()),
        pa.field("required", pa.bool_()),
        pa.field("key", pa.int64()),
        _BUCKET,
    ]
)
"""A node, whether the data of a tree that has it stays, whether such a tree may not be missing; the
key of its id, and the bucket that it belongs to."""


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """Trees with their checksums, and which of them to read: parts of TREES_SCHEMA, and of the
    addresses (ADDRESS_SCHEMA) that are live with those that stay."""

    trees: list[Part]
    companions: list[Part]


@dataclass(frozen=True, slots=True)
class _NeededTree:
    """A row of _NEEDED."""

    tree_id: str
    checksum: str
    data: bool
    required: bool
    bucket: int


def tree_nodes(engine: Engine, place: Place, trees: Sequence[Part], index: Index | None) -> Frame:
    """The nodes of those of `trees` (parts of TREES_SCHEMA) that stay: TREE_NODES, each node once
    in a partition. Raises, when it is asked for, Refused by the first tree that can't be read."""
    folder, at_once = place.folder, engine.fetches_at_once
    spread = spread_over(engine, index)

    def needed(part: Part) -> Batches:
        assert part.name is not None
        table = read_part(folder, part.name, part.checksum)
        rows = table.filter(table.column("recorded")).drop_columns("recorded")
        buckets = pa.array(bucket_of(rows.column("tree_id")))
        yield from rows.append_column(_BUCKET, buckets).cast(_NEEDED).to_batches()

    def nodes(batches: Batches) -> Batches:
        table = pa.Table.from_batches(batches, _NEEDED)
        for bucket, rows in by_bucket(table, is_divided=spread > 1):
            found = _Found()
            _read_bucket(place, rows, index, bucket, found, at_once=at_once)
            yield from found.table().to_batches()

    given = engine.frame(list(trees), needed, _NEEDED)
    return given.gathered(spread, "bucket").map(nodes, TREE_NODES)


def spread_over(engine: Engine, index: Index | None) -> int:
    """Into how many tasks trees and nodes are divided."""
    return engine.task_count if index is None else index.spread


def by_bucket(table: pa.Table, *, is_divided: bool) -> Iterator[tuple[int, pa.Table]]:
    """Rows with a column `bucket`, those of one together; all together, as LOOSE, where there is
    but one task."""
    if not is_divided:
        yield LOOSE, table
        return
    buckets = table.column("bucket").to_numpy()
    for bucket in np.unique(buckets).tolist():
        yield bucket, table.filter(pa.array(buckets == bucket))


def _read_bucket(
    place: Place,
    needed: pa.Table,
    index: Index | None,
    bucket: int,
    found: _Found,
    *,
    at_once: int,
) -> None:
    """Find the nodes of the needed trees, which are all of a bucket; and keep the index as it
    should be."""
    rows = TreeRows()
    anew: Sequence[str] = ()
    if index is not None:
        unchanged, used = index.unchanged(), dict[str, tuple[int, int]]()
        known = [needed.select(["tree_id"]).slice(0, 0)]
        for name, part in index.tables(index.names("trees", bucket), at_once=at_once):
            indexed = IndexedTrees.of(part)
            places = indexed.matching(needed, place.layout, unchanged)
            used[name] = len(places) - places.null_count, len(places)
            found.add_known(indexed, needed.take(places))
            known.append(pa.table({"tree_id": indexed.ids.filter(pc.is_valid(places))}))
        anew = index.anew("trees", bucket, used)
        for _, part in index.tables(anew, at_once=at_once):
            indexed = IndexedTrees.of(part)
            places = indexed.matching(needed, place.layout, unchanged)
            rows.add_known(indexed, pc.is_valid(places))
        needed = without(needed, "tree_id", pa.concat_tables(known))
    unread = [_NeededTree(*row) for batch in needed.to_batches() for row in rows_in(batch)]

    def address_of(tree: _NeededTree) -> str:
        return place.layout.tree_address(tree.tree_id)

    for tree, storage in fetched(place.storage, unread, address_of, at_once=at_once):
        try:
            nodes = place.layout.read_tree(storage, tree.tree_id, tree.checksum)
        except EbbtideError as error:
            if tree.required or error.kind != MISSING_TREE:
                raise
            continue
        found.add(nodes, data=tree.data, required=tree.required)
        if index is not None:
            rows.add(tree.tree_id, tree.checksum, nodes, read_at=micros_of(index.read_at))
    if index is not None:
        written = index.write("trees", rows.table(), bucket=bucket)
        index.drop({*anew} - {written} - index.scattered)


class _Found:
    """Gathers the nodes that one task found."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, nodes: pa.Table, *, data: bool, required: bool) -> None:
        """Take nodes (NODES_SCHEMA) of trees of one kind."""
        table = nodes
        for name, flag in (("data", data), ("required", required)):
            table = table.append_column(
                pa.field(name, pa.bool_()), pa.repeat(pa.scalar(flag), nodes.num_rows)
            )
        self._tables.append(table)
        self._rows += nodes.num_rows
        if self._rows > NODE_ROWS_HELD_MAX:
            self._tables = [each_once(self._tables)]
            self._rows = 0  # counted anew, so that it grows by as much before the next time

    def add_known(self, indexed: IndexedTrees, rows: pa.Table) -> None:
        """Take what a part of the index says, of trees with these `rows` of _NEEDED; nulls for
        those that nobody asked for."""
        for data in (True, False):
            for required in (True, False):
                chosen = pc.and_(
                    _is(rows.column("data"), data), _is(rows.column("required"), required)
                )
                if pc.any(chosen).as_py():
                    self.add(indexed.nodes_of(chosen), data=data, required=required)

    def table(self) -> pa.Table:
        """All, as TREE_NODES."""
        table = each_once(self._tables)
        keys = keys_of(table.column("node_id"))
        buckets = bucket_of(table.column("node_id"))
        keyed = table.append_column("key", pa.array(keys)).append_column(
            "bucket", pa.array(buckets)
        )
        return keyed.cast(TREE_NODES)


def _is(column: Column, flag: bool) -> Any:  # an array of booleans
    """Where a column of booleans says so; not where it says nothing."""
    return pc.fill_null(pc.equal(column, pa.scalar(flag)), pa.scalar(False))


FLAGGED: Final = pa.schema([each for each in TREE_NODES if each.name not in ("key", "bucket")])
"""TREE_NODES without what follows from the ids."""


def each_once(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of TREE_NODES without key and bucket, each node once: with a flag where any of its rows
    has it."""
    table = pa.concat_tables([FLAGGED.empty_table(), *tables])
    numbers = numbered_nodes(table)
    is_first = first_of_each(numbers)
    once = table.filter(pa.array(is_first)).select(NODES_SCHEMA.names)
    for name in ("data", "required"):
        flags = np.zeros(int(is_first.sum()), np.bool_)
        flags[numbers[np.asarray(table.column(name))]] = True
        once = once.append_column(FLAGGED.field(name), pa.array(flags))
    return once
