"""Trees of the mark: their addresses, those of their nodes, and the nodes to read.

Of what the index knows, a task goes through some of its parts; the other trees are read from their
own files, and added to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import EbbtideError
from ebbtide.gc.ahead import fetched
from ebbtide.gc.candidates import micros_of
from ebbtide.gc.engine import Engine
from ebbtide.gc.index import Index, count_use, outworn
from ebbtide.gc.indexed import IndexedTrees, TreeRows
from ebbtide.gc.meter import advance
from ebbtide.gc.nodes import each_once
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_rows, split
from ebbtide.gc.places import Place

MISSING_TREE: Final = "missing_tree"
TREES_PER_TASK_MIN: Final = 16
NODE_ROWS_HELD_MAX: Final = 1_000_000

_IDS_SCHEMA: Final = make_schema(
    ("id", pa.string()),
)
_FOUND: Final = "found"
"""The group of parts that name the trees which the index knows."""


@dataclass(frozen=True, slots=True)
class NeededTree:
    """A tree to read. If its `data` stays, its nodes are to be read, too. One that is not
    `required` may be missing."""

    tree_id: str
    checksum: str
    data: bool
    required: bool


def read_trees(
    engine: Engine, place: Place, trees: Mapping[str, NeededTree], index: Index | None
) -> list[Part]:
    """Parts of the groups `trees` (ADDRESS_SCHEMA: trees and their nodes) and `nodes`
    (MARKED_NODES: of trees whose data stays, each once in a part)."""
    recalled = [] if index is None else _recall(engine, place, trees, index)
    found_parts = [part for part in recalled if part.group == _FOUND]
    found = set(texts(read_rows(place.folder, found_parts, _IDS_SCHEMA).column("id")))
    others = [tree for tree in trees.values() if tree.tree_id not in found]

    def work(number: int, task: Sequence[NeededTree], answer: PartRows) -> None:
        marked = _MarkedTrees(place)
        rows = TreeRows()
        for tree, storage in fetched(place.storage, task, address_of, at_once=at_once):
            advance(1)
            try:
                nodes = place.layout.read_tree(storage, tree.tree_id, tree.checksum)
            except EbbtideError as error:
                if tree.required or error.kind != MISSING_TREE:
                    answer.failed(error)
                continue
            marked.add([tree.tree_id], nodes, data=tree.data, required=tree.required)
            if index is not None:
                rows.add(tree.tree_id, tree.checksum, nodes, read_at=micros_of(index.read_at))
        marked.write(f"{number:05d}", answer)
        if index is not None:
            index.write("trees", rows.table())

    def address_of(tree: NeededTree) -> str:
        return place.layout.tree_address(tree.tree_id)

    at_once = engine.fetches_at_once
    engine.meter.begin("trees", len(others))
    tasks = split(others, tasks=engine.task_count, items_min=TREES_PER_TASK_MIN)
    return [part for part in recalled if part.group != _FOUND] + engine.run(tasks, work)


def _recall(
    engine: Engine, place: Place, trees: Mapping[str, NeededTree], index: Index
) -> list[Part]:
    """As `read_trees`, of what the index knows; and parts (group _FOUND) of the trees' ids."""
    parts = index.parts("trees")
    checksums = {tree.tree_id: tree.checksum for tree in trees.values()}

    def work(number: int, task: Sequence[str], answer: PartRows) -> None:
        marked = _MarkedTrees(place)
        unchanged = index.unchanged()
        found: list[str] = []
        for name in task:
            table = index.read(name)
            if table is None:
                continue
            indexed = IndexedTrees.of(table)
            places = indexed.matching(checksums, place.layout, unchanged)
            count_use(answer, name, len(places), len(indexed.ids))
            alike: dict[tuple[bool, bool], list[int]] = {}
            for each in places:
                tree = trees[indexed.ids[each]]
                alike.setdefault((tree.data, tree.required), []).append(each)
            for (data, required), chosen in alike.items():
                ids = [indexed.ids[each] for each in chosen]
                marked.add(ids, indexed.nodes_of(chosen), data=data, required=required)
                found += ids
        marked.write(f"{number:05d}-known", answer)
        ids_table = pa.table([pa.array(found, pa.string())], schema=_IDS_SCHEMA)
        answer.wrote(place.folder, place.named(f"found-{number:05d}"), ids_table, group=_FOUND)

    answers = engine.run(split([part.name for part in parts], tasks=engine.task_count), work)
    if index.writable and (worn := outworn(parts, answers)):
        _rewrite(engine, place, index, worn, checksums)
    return [part for part in answers if part.name is not None]


def _rewrite(
    engine: Engine, place: Place, index: Index, names: Sequence[str], checksums: Mapping[str, str]
) -> None:
    """Write what is of use in parts of the index anew, and drop them."""

    def work(_number: int, task: Sequence[str], answer: PartRows) -> None:
        rows = TreeRows()
        unchanged = index.unchanged()
        for name in task:
            table = index.read(name)
            if table is None:
                continue
            indexed = IndexedTrees.of(table)
            for each in indexed.matching(checksums, place.layout, unchanged):
                nodes, read_at = indexed.nodes_of([each]), int(indexed.read_at[each])
                rows.add(indexed.ids[each], indexed.checksums[each], nodes, read_at=read_at)
        written = index.write("trees", rows.table())
        index.drop(set(task) - {written})
        del answer

    engine.run(split(names, tasks=engine.cores), work)


class _MarkedTrees:
    """Gathers what one task found."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._addresses: set[str] = set()
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, tree_ids: Sequence[str], nodes: pa.Table, *, data: bool, required: bool) -> None:
        """Take trees and all their nodes (NODES_SCHEMA)."""
        layout = self._place.layout
        self._addresses.update(map(layout.tree_address, tree_ids))
        self._addresses.update(map(layout.node_address, texts(nodes.column("node_id"))))
        if data:
            flags = pa.array([required] * nodes.num_rows, pa.bool_())
            self._tables.append(nodes.append_column("required", flags))
            self._rows += nodes.num_rows
            if self._rows > NODE_ROWS_HELD_MAX:
                self._tables = [each_once(self._tables)]
                self._rows = 0  # counted anew, so that it grows by as much before the next time

    def write(self, stem: str, answer: PartRows) -> None:
        """Write the parts."""
        folder, named = self._place.folder, self._place.named
        columns: list[Any] = [sorted(self._addresses)]
        table = pa.table(columns, schema=ADDRESS_SCHEMA)
        answer.wrote(folder, named(f"trees-{stem}"), table, group="trees")
        answer.wrote(folder, named(f"nodes-{stem}"), each_once(self._tables), group="nodes")
