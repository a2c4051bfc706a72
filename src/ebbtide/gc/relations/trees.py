"""The relation `tree_nodes`: the nodes of the trees that stay.

A task looks up its trees in the index. It reads the files of the trees that the index lacks, and
adds these trees to the index.
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
from ebbtide.gc.engines.base import Batches, Engine, Relation, Step
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.prefetching import fetched
from ebbtide.gc.relations.index import LOOSE, Index, bucket_of
from ebbtide.gc.relations.indexed import IndexedTrees, TreeRows, numbered_nodes
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.relations.keys import keys_of
from ebbtide.gc.runs import TaskFiles

MISSING_TREE: Final = "missing_tree"
NODE_ROWS_HELD_MAX: Final = 1_000_000

TREES_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("checksum", pa.string()),
    ("recorded", pa.bool_()),
    ("data", pa.bool_()),
    ("required", pa.bool_()),
)
"""A tree and the checksum of its file. `recorded`: the tree stays, and is read. `data`: its data
stays too, so that its nodes are read. `required`: if its file is missing, the run is refused."""

_BUCKET: Final = pa.field("bucket", pa.int32())
_NEEDED: Final = pa.schema([*(each for each in TREES_SCHEMA if each.name != "recorded"), _BUCKET])
"""A tree to read, and the bucket of its id."""

TREE_NODES: Final = pa.schema(
    [
        *NODES_SCHEMA,
        pa.field("data", pa.bool_()),
        pa.field("required", pa.bool_()),
        pa.field("key", pa.int64()),
        _BUCKET,
    ]
)
"""A node of one or more trees. `data`: the data of at least one of these trees stays. `required`:
at least one of these trees is required. `key` and `bucket` are those of the node's id."""


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """The written form of the trees to mark: parts of trees (TREES_SCHEMA), and parts of the
    addresses that are live with them (ADDRESS_SCHEMA)."""

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


def tree_nodes(
    engine: Engine, place: TaskFiles, trees: Sequence[Part], index: Index | None
) -> Relation:
    """Returns the nodes of those `trees` (parts of TREES_SCHEMA) that stay, as TREE_NODES. A node
    comes once for each task that reads trees.

    Trees that the `index` lacks are added to it. When the rows are computed, Refused is
    raised for the first tree that cannot be read. A missing tree that is not required is ignored.
    """
    folder, at_once = place.folder, engine.fetches_at_once
    is_divided = are_divided(engine, index)
    layout = place.layout
    # If files of trees and nodes are never candidates, only trees whose data stays are needed.
    stay = bool(layout.checked_kinds) and not {*layout.checked_kinds} & {*layout.delete_order}
    which = "data" if stay else "recorded"

    def needed(part: Part) -> Batches:
        table = read_part(folder, part.name, part.checksum)
        rows = table.filter(table.column(which)).drop_columns("recorded")
        buckets = pa.array(bucket_of(rows.column("tree_id")))
        yield from rows.append_column(_BUCKET, buckets).cast(_NEEDED).to_batches()

    def nodes(batches: Batches) -> Batches:
        table, found = pa.Table.from_batches(batches, _NEEDED), _Found()
        for bucket, rows in by_bucket(table, is_divided=is_divided):
            _read_bucket(place, rows, index, bucket, found, at_once=at_once)
        yield from found.table().to_batches()

    return by_id(engine, engine.rows(list(trees), needed, _NEEDED), index, nodes, TREE_NODES)


def are_divided(engine: Engine, index: Index | None) -> bool:
    """Returns whether trees and nodes are divided among several tasks, by their buckets."""
    return engine.task_count > 1 if index is None else index.is_divided


def by_id(
    engine: Engine, rows: Relation, index: Index | None, step: Step, schema: pa.Schema
) -> Relation:
    """Returns the rows (`schema`) of a step that reads trees or nodes, each bucket in one task. A
    task can have several buckets: one task for each of the 32 buckets would take long to start."""
    tasks = engine.task_count if are_divided(engine, index) else 1
    return rows.map(step, schema, by=("bucket",), tasks=tasks)


def by_bucket(table: pa.Table, *, is_divided: bool) -> Iterator[tuple[int, pa.Table]]:
    """Yields each bucket with its rows, by the column `bucket`. If the rows are not divided among
    tasks, yields all rows once, as LOOSE."""
    if not is_divided:
        yield LOOSE, table
        return
    buckets = table.column("bucket").to_numpy()
    for bucket in np.unique(buckets).tolist():
        yield bucket, table.filter(pa.array(buckets == bucket))


def _read_bucket(
    place: TaskFiles,
    needed: pa.Table,
    index: Index | None,
    bucket: int,
    found: _Found,
    *,
    at_once: int,
) -> None:
    """Adds the nodes of the needed trees, which are of one bucket, to `found`. Adds unknown trees
    to the index, and replaces the parts that `Index.anew` names."""
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
    """Collects the nodes that a task found, each once."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, nodes: pa.Table, *, data: bool, required: bool) -> None:
        """Adds nodes (NODES_SCHEMA) of trees with these flags."""
        table = nodes
        for name, flag in (("data", data), ("required", required)):
            table = table.append_column(
                pa.field(name, pa.bool_()), pa.repeat(pa.scalar(flag), nodes.num_rows)
            )
        self._tables.append(table)
        self._rows += nodes.num_rows
        if self._rows > NODE_ROWS_HELD_MAX:
            self._tables = [each_once(self._tables)]
            self._rows = 0  # the next merge comes after NODE_ROWS_HELD_MAX new rows

    def add_known(self, indexed: IndexedTrees, rows: pa.Table) -> None:
        """Adds the nodes of trees from a part of the index. `rows` has a row of _NEEDED for each
        tree of the part, with nulls for trees that are not needed."""
        for data in (True, False):
            for required in (True, False):
                chosen = pc.and_(
                    _is(rows.column("data"), data), _is(rows.column("required"), required)
                )
                if pc.any(chosen).as_py():
                    self.add(indexed.nodes_of(chosen), data=data, required=required)

    def table(self) -> pa.Table:
        """Returns all nodes as TREE_NODES, each once."""
        table = each_once(self._tables)
        keys = keys_of(table.column("node_id"))
        buckets = bucket_of(table.column("node_id"))
        keyed = table.append_column("key", pa.array(keys)).append_column(
            "bucket", pa.array(buckets)
        )
        return keyed.cast(TREE_NODES)


def _is(column: Column, flag: bool) -> Any:  # an array of booleans
    """Returns where a column of booleans equals `flag`; nulls are not equal to it."""
    return pc.fill_null(pc.equal(column, pa.scalar(flag)), pa.scalar(False))


FLAGGED: Final = pa.schema([each for each in TREE_NODES if each.name not in ("key", "bucket")])
"""TREE_NODES without the columns that are computed from the id."""


def each_once(tables: Sequence[pa.Table]) -> pa.Table:
    """Merges rows of FLAGGED: returns each node once, with a flag that is true if it is true in any
    of its rows."""
    table = pa.concat_tables([FLAGGED.empty_table(), *tables])
    numbers = numbered_nodes(table)
    is_first = first_of_each(numbers)
    once = table.filter(pa.array(is_first)).select(NODES_SCHEMA.names)
    for name in ("data", "required"):
        flags = np.zeros(int(is_first.sum()), np.bool_)
        flags[numbers[np.asarray(table.column(name))]] = True
        once = once.append_column(FLAGGED.field(name), pa.array(flags))
    return once
