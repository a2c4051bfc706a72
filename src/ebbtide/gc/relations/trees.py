"""The nodes of the trees that stay.

The driver looks the trees up in the index. Tasks read the files of the trees that the index lacks,
and add these trees to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, first_of_each, make_schema, rows_in, without
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.engines.base import Batches, Engine
from ebbtide.gc.parts import Part, read_rows, split
from ebbtide.gc.prefetching import fetched
from ebbtide.gc.relations.index import (
    Index,
    IndexedTrees,
    PartUse,
    TreeRows,
    anew,
    is_small,
    numbered_nodes,
)
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.runs import TaskFiles

MISSING_TREE: Final = "missing_tree"
NODE_ROWS_HELD_MAX: Final = 1_000_000
ROWS_PER_TREE: Final = 100
"""The rows that take as long as reading one tree, for the number of tasks."""

TREES_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("checksum", pa.string()),
    ("recorded", pa.bool_()),
    ("data", pa.bool_()),
    ("required", pa.bool_()),
)
"""A tree and the checksum of its file. `recorded`: the tree stays, and is read. `data`: its data
stays too, so that its nodes are read. `required`: if its file is missing, the run is refused."""

FLAGGED: Final = pa.schema(
    [*NODES_SCHEMA, pa.field("data", pa.bool_()), pa.field("required", pa.bool_())]
)
"""A node of one or more trees. `data`: the data of at least one of these trees stays. `required`:
at least one of these trees is required."""

_Tree: TypeAlias = "tuple[str, str, bool, bool]"
"""The id and checksum of a tree to read, and its flags `data` and `required`."""


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """The written form of the trees to mark: parts of trees (TREES_SCHEMA), and parts of the
    addresses that are live with them (ADDRESS_SCHEMA)."""

    trees: list[Part]
    companions: list[Part]


@dataclass(frozen=True, slots=True)
class TreeNodes:
    """The nodes of some trees (FLAGGED), each once. `replaced` are the parts of the index that the
    run has written anew, or could not read."""

    nodes: pa.Table
    replaced: frozenset[str]


def tree_nodes(
    engine: Engine, place: TaskFiles, trees: Sequence[Part], index: Index | None
) -> TreeNodes:
    """Returns the nodes of those `trees` (parts of TREES_SCHEMA) that stay.

    Trees that the `index` lacks are added to it. Raises Refused for the first tree that cannot be
    read. A missing tree that is not required is ignored.
    """
    layout = place.layout
    # If files of trees and nodes are never candidates, only trees whose data stays are needed.
    stay = bool(layout.checked_kinds) and not {*layout.checked_kinds} & {*layout.delete_order}
    given = read_rows(place.folder, trees, TREES_SCHEMA)
    needed = given.filter(given.column("data" if stay else "recorded")).drop_columns("recorded")
    found, replaced = _Found(), frozenset[str]()
    if index is not None and needed.num_rows:
        at_once = engine.fetches_at_once
        needed, replaced = _look_up(index, needed, layout, found, at_once=at_once)
    if needed.num_rows:
        found.add_flagged(_read(engine, place, needed, index))
    return TreeNodes(found.table(), replaced)


def _look_up(
    index: Index, needed: pa.Table, layout: Layout, found: _Found, *, at_once: int
) -> tuple[pa.Table, frozenset[str]]:
    """Adds the nodes of the trees that the index has to `found`. Returns the other trees, and the
    parts that are no longer needed: the useful rows of `anew` are in a new part."""
    unchanged, uses = index.unchanged(), list[PartUse]()
    known = [needed.select(["tree_id"]).slice(0, 0)]
    sizes = {part.name: part.size_bytes for part in index.listed}
    for name, part in index.tables("trees", at_once=at_once):
        indexed = IndexedTrees.of(part)
        places = indexed.matching(needed, layout, unchanged)
        found.add_known(indexed, needed.take(places))
        known.append(pa.table({"tree_id": indexed.ids.filter(pc.is_valid(places))}))
        used = len(places) - places.null_count
        uses.append(PartUse(name, used, len(places), is_small(sizes[name])))
    left = without(needed, "tree_id", pa.concat_tables(known))
    if not index.is_tidied:
        return left, frozenset()
    rows, merged = TreeRows(), anew(uses)
    for name in sorted(merged):
        part_again = index.read(name)
        if part_again is not None:
            indexed = IndexedTrees.of(part_again)
            rows.add_known(indexed, pc.is_valid(indexed.matching(needed, layout, unchanged)))
    index.write_trees(rows.table())
    return left, merged | (frozenset(index.names("trees")) - {each.name for each in uses})


def _read(engine: Engine, place: TaskFiles, needed: pa.Table, index: Index | None) -> pa.Table:
    """Reads trees in tasks. Returns their nodes (FLAGGED)."""
    at_once = engine.fetches_at_once

    def address_of(tree: _Tree) -> str:
        return place.layout.tree_address(tree[0])

    def read(task: Sequence[_Tree]) -> Batches:
        found, rows = _Found(), TreeRows()
        for tree, storage in fetched(place.storage, task, address_of, at_once=at_once):
            tree_id, checksum, data, required = tree
            try:
                nodes = place.layout.read_tree(storage, tree_id, checksum)
            except EbbtideError as error:
                if required or error.kind != MISSING_TREE:
                    raise
                continue
            found.add(nodes, data=data, required=required)
            if index is not None:
                rows.add(tree_id, checksum, nodes, read_at=micros_of(index.read_at))
        if index is not None:
            index.write_trees(rows.table())
        yield from found.table().to_batches()

    trees: list[_Tree] = [row for batch in needed.to_batches() for row in rows_in(batch)]
    tasks = split(trees, tasks=engine.tasks_for(ROWS_PER_TREE * len(trees)))
    return engine.rows(tasks, read, FLAGGED).collect()


class _Found:
    """Collects nodes, each once."""

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
        self.add_flagged(table)

    def add_flagged(self, nodes: pa.Table) -> None:
        """Adds nodes (FLAGGED)."""
        self._tables.append(nodes)
        self._rows += nodes.num_rows
        if self._rows > NODE_ROWS_HELD_MAX:
            self._tables = [each_once(self._tables)]
            self._rows = 0  # the next merge comes after NODE_ROWS_HELD_MAX new rows

    def add_known(self, indexed: IndexedTrees, rows: pa.Table) -> None:
        """Adds the nodes of trees from a part of the index. `rows` has the needed tree for each
        tree of the part, with nulls for trees that are not needed."""
        for data in (True, False):
            for required in (True, False):
                chosen = pc.and_(
                    _is(rows.column("data"), data), _is(rows.column("required"), required)
                )
                if pc.any(chosen).as_py():
                    self.add(indexed.nodes_of(chosen), data=data, required=required)

    def table(self) -> pa.Table:
        """Returns all nodes (FLAGGED), each once."""
        return each_once(self._tables)


def _is(column: Column, flag: bool) -> Any:  # an array of booleans
    """Returns where a column of booleans equals `flag`; nulls are not equal to it."""
    return pc.fill_null(pc.equal(column, pa.scalar(flag)), pa.scalar(False))


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
