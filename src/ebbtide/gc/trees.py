"""Trees of the mark: their addresses, those of their nodes, and the nodes to read.

Of what the index knows, a task goes through some of its parts; the other trees are read from their
own files, and added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, distinct, make_schema, without
from ebbtide.errors import EbbtideError
from ebbtide.gc.ahead import fetched
from ebbtide.gc.candidates import micros_of
from ebbtide.gc.engine import Engine
from ebbtide.gc.index import Index, count_use, dealt, outworn
from ebbtide.gc.indexed import IndexedTrees, TreeRows
from ebbtide.gc.keys import rows_of, with_keys
from ebbtide.gc.meter import advance
from ebbtide.gc.nodes import each_once
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_rows, split
from ebbtide.gc.places import Place

MISSING_TREE: Final = "missing_tree"
TREES_PER_TASK_MIN: Final = 16
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
NEEDED_SCHEMA: Final = pa.schema([each for each in TREES_SCHEMA if each.name != "recorded"])
"""A tree to read."""

_IDS_SCHEMA: Final = pa.schema([NEEDED_SCHEMA.field("tree_id")])
_FOUND: Final = "found"
"""The group of parts that name the trees which the index knows."""


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """Trees with their checksums, and which of them to read: parts of TREES_SCHEMA, and of the
    addresses (ADDRESS_SCHEMA) that are live with those that stay."""

    trees: list[Part]
    companions: list[Part]


@dataclass(frozen=True, slots=True)
class _NeededTree:
    """A row of NEEDED_SCHEMA."""

    tree_id: str
    checksum: str
    data: bool
    required: bool


def read_trees(engine: Engine, place: Place, trees: KnownTrees, index: Index | None) -> list[Part]:
    """Of those of `trees` that stay, parts of the groups `trees` (ADDRESS_SCHEMA, with keys: trees
    and their nodes) and `nodes` (MARKED_NODES: of trees whose data stays, each once in a part)."""
    recalled = [] if index is None else _recall(engine, place, trees, index)
    found = [part for part in recalled if part.group == _FOUND]
    unread = _without_found(engine, place, trees, found)

    def work(number: int, task: range, answer: PartRows) -> None:
        marked = _MarkedTrees(place)
        rows = TreeRows()
        needed = _read_unread(place, unread)[task.start : task.stop]
        for tree, storage in fetched(place.storage, needed, address_of, at_once=at_once):
            advance(1)
            try:
                nodes = place.layout.read_tree(storage, tree.tree_id, tree.checksum)
            except EbbtideError as error:
                if tree.required or error.kind != MISSING_TREE:
                    answer.failed(error)
                continue
            ids = pa.array([tree.tree_id], pa.string())
            marked.add(ids, nodes, data=tree.data, required=tree.required)
            if index is not None:
                rows.add(tree.tree_id, tree.checksum, nodes, read_at=micros_of(index.read_at))
        marked.write(f"{number:05d}", answer)
        if index is not None:
            index.write("trees", rows.table())

    def address_of(tree: _NeededTree) -> str:
        return place.layout.tree_address(tree.tree_id)

    at_once = engine.fetches_at_once
    count = rows_of(unread)
    engine.meter.begin("trees", count)
    tasks = split(range(count), tasks=engine.task_count, items_min=TREES_PER_TASK_MIN)
    return [part for part in recalled if part.group != _FOUND] + engine.run(tasks, work)


def _without_found(
    engine: Engine, place: Place, trees: KnownTrees, found: Sequence[Part]
) -> list[Part]:
    """The trees to read that are not found, as a part (NEEDED_SCHEMA): sent with each task they
    would be held as often."""

    def work(_number: int, task: Sequence[Part], answer: PartRows) -> None:
        known = read_rows(place.folder, task, _IDS_SCHEMA)
        others = without(_needed(place, trees), "tree_id", known)
        answer.wrote(place.folder, place.named("unread"), others, group="needed")

    return engine.run([found], work) if trees.trees else []


def _needed(place: Place, trees: KnownTrees) -> pa.Table:
    """Those to read (NEEDED_SCHEMA)."""
    table = read_rows(place.folder, trees.trees, TREES_SCHEMA)
    return table.filter(table.column("recorded")).select(NEEDED_SCHEMA.names)


def _read_unread(place: Place, parts: Sequence[Part]) -> list[_NeededTree]:
    table = read_rows(place.folder, parts, NEEDED_SCHEMA)
    columns = (table.column(name).to_pylist() for name in NEEDED_SCHEMA.names)
    return [_NeededTree(*row) for row in zip(*columns, strict=True)]


def _recall(engine: Engine, place: Place, trees: KnownTrees, index: Index) -> list[Part]:
    """As `read_trees`, of what the index knows; and parts (group _FOUND) of the trees' ids."""
    parts = index.parts("trees")
    if not parts:
        return []
    at_once = engine.fetches_at_once

    def work(number: int, task: Sequence[str], answer: PartRows) -> None:
        needed = _needed(place, trees)
        marked = _MarkedTrees(place)
        unchanged = index.unchanged()
        found = [_IDS_SCHEMA.empty_table()]
        for name, table in index.tables(task, at_once=at_once):
            indexed = IndexedTrees.of(table)
            places = indexed.matching(needed, place.layout, unchanged)
            count_use(answer, name, len(places) - places.null_count, len(places))
            rows = needed.take(places)
            for data, required in product((True, False), repeat=2):
                flags = (("data", data), ("required", required))
                chosen = reduce(pc.and_, [_is(rows.column(name), flag) for name, flag in flags])
                ids = indexed.ids.filter(chosen)
                if len(ids):
                    marked.add(ids, indexed.nodes_of(chosen), data=data, required=required)
                    found.append(pa.table([ids], schema=_IDS_SCHEMA))
        marked.write(f"{number:05d}-known", answer)
        ids_table = pa.concat_tables(found)
        answer.wrote(place.folder, place.named(f"found-{number:05d}"), ids_table, group=_FOUND)

    # No more tasks than cores: each has to read what is asked for.
    answers = engine.run(dealt(parts, tasks=engine.cores), work)
    if index.writable and (worn := outworn(parts, answers)):
        _rewrite(engine, place, index, worn, trees)
    return [part for part in answers if part.name is not None]


def _is(column: Column, flag: bool) -> Any:  # an array of booleans
    """Where a column of booleans says so; not where it says nothing."""
    return pc.fill_null(pc.equal(column, pa.scalar(flag)), pa.scalar(False))


def _rewrite(
    engine: Engine, place: Place, index: Index, names: Sequence[str], trees: KnownTrees
) -> None:
    """Write what is of use in parts of the index anew, and drop them."""
    at_once = engine.fetches_at_once

    def work(_number: int, task: Sequence[str], answer: PartRows) -> None:
        rows = TreeRows()
        needed = _needed(place, trees)
        unchanged = index.unchanged()
        for _, table in index.tables(task, at_once=at_once):
            indexed = IndexedTrees.of(table)
            known = pc.is_valid(indexed.matching(needed, place.layout, unchanged))
            rows.add_known(indexed, known)
        written = index.write("trees", rows.table())
        index.drop(set(task) - {written})
        del answer

    engine.run(split(names, tasks=engine.cores), work)


class _MarkedTrees:
    """Gathers what one task found."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tree_ids: list[Column] = []
        self._node_ids: list[Column] = []
        self._node_count = 0
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, tree_ids: Column, nodes: pa.Table, *, data: bool, required: bool) -> None:
        """Take trees and all their nodes (NODES_SCHEMA)."""
        self._tree_ids.append(tree_ids)
        self._node_ids.append(nodes.column("node_id"))
        self._node_count += nodes.num_rows
        if self._node_count > NODE_ROWS_HELD_MAX:
            self._node_ids = [distinct(self._node_ids)]
            self._node_count = 0  # as below
        if data:
            flags = pa.array([required] * nodes.num_rows, pa.bool_())
            self._tables.append(nodes.append_column("required", flags))
            self._rows += nodes.num_rows
            if self._rows > NODE_ROWS_HELD_MAX:
                self._tables = [each_once(self._tables)]
                self._rows = 0  # counted anew, so that it grows by as much before the next time

    def write(self, stem: str, answer: PartRows) -> None:
        """Write the parts."""
        folder, named, layout = self._place.folder, self._place.named, self._place.layout
        tables = [
            pa.table([addresses], schema=ADDRESS_SCHEMA)
            for addresses in (
                layout.tree_addresses(distinct(self._tree_ids)),
                layout.node_addresses(distinct(self._node_ids)),
            )
        ]
        table = pa.concat_tables(tables)
        # Several steps look their keys up, in each of their tasks.
        keyed = with_keys(table, table.column("address"))
        answer.wrote(folder, named(f"trees-{stem}"), keyed, group="trees")
        answer.wrote(folder, named(f"nodes-{stem}"), each_once(self._tables), group="nodes")
