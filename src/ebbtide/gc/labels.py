"""The mark with labels: for each address that kept commits need, a number that says which of them.

A label is a small number. Its meaning is the caller's (`Merging`): a level of the curve
(`gc.curve`), or a set of holders (`gc.usage`). Labels pass from trees to nodes, where they are
merged, and from nodes to addresses. An address that several nodes name has several labels: the
query of the caller merges them.

Not for: plans. A plan needs no labels, and its mark (`gc.committed`) holds less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import first_of_each, make_schema, rows_in, table_of, texts
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, Layout, tree_address
from ebbtide.formats.capabilities import JoinedLayout, checked_kinds_of
from ebbtide.gc.committed import (
    FLAGGED,
    MISSING_TREE,
    ROWS_PER_TREE,
    by_index_part,
    divided,
    look_up_nodes,
    read_node_files,
)
from ebbtide.gc.engines.base import Batches, Engine, Relation
from ebbtide.gc.index import Index, IndexedTrees, WantedRows, keys_in, numbered_nodes
from ebbtide.gc.keys import KeyArray, keys_of, once
from ebbtide.gc.parts import Part, PartRows, read_part, split
from ebbtide.gc.prefetch import fetched
from ebbtide.gc.runs import TaskFiles

NO_LABEL: Final = -1
LABELLED_SCHEMA: Final = make_schema(("key", pa.int64()), ("label", pa.int32()))
"""The key of an address that stays at some point, and the label of what needs it. A key can come
with several labels, and several times."""

_OWN_SCHEMA: Final = make_schema(("address", pa.string()), ("label", pa.int32()))
_TREES_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()), ("checksum", pa.string()), ("kind", pa.int32())
)
"""A tree to read, and the number of its `_Kind`."""
_KINDED: Final = pa.schema([*NODES_SCHEMA, pa.field("kind", pa.int32())])
"""A node, and the kind of one of its trees."""
_LABELS: Final = make_schema(("record", pa.int32()), ("label", pa.int32()))
_ROWS_HELD_MAX: Final = 4_000_000
_KEYS_PER_BATCH: Final = 1_000_000


class Merging(Protocol):
    """The meaning of labels."""

    def merged(self, labels: Sequence[int]) -> int:
        """Returns the label of something that all of these need. There is at least one, and none is
        NO_LABEL."""


@dataclass(frozen=True, slots=True)
class LabelledTrees:
    """What needs the trees, and the files beside them.

    `records` has the label of each tree's own files, and `data` that of its data. A tree without
    data has no label there. `companions` are addresses with their labels. Missing files of
    `lenient` trees are ignored.
    """

    records: Mapping[str, int]
    data: Mapping[str, int]
    checksums: Mapping[str, str]
    companions: Mapping[str, int] = field(default_factory=dict)
    lenient: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all trees of one kind have in common."""

    record: int
    data: int
    required: bool


@dataclass(frozen=True, slots=True)
class LabelledMark:
    """The mark of trees with labels. `files` names the places of its parts. Trees and nodes that
    the `index` lacks are read, and not added."""

    engine: Engine
    files: TaskFiles
    needs: LabelledTrees
    merging: Merging
    index: Index | None = None

    def live(self) -> Relation:
        """Returns the addresses that stay (LABELLED_SCHEMA). Raises Refused as `Mark.live` does."""
        folder, layout, engine = self.files.folder, self.files.layout, self.engine
        files, index, at_once = self.files, self.index, engine.fetches_at_once

        def own(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            keys = pa.array(keys_of(table.column("address")))
            label = table.column("label").combine_chunks()
            yield pa.record_batch([keys, label], schema=LABELLED_SCHEMA)

        def of_nodes(part: Part) -> Batches:
            nodes = read_part(folder, part.name, part.checksum)
            writer = _Labelled()
            keys = keys_of(layout.node_addresses(nodes.column("node_id")))
            records = nodes.column("record").to_numpy()
            for label in np.unique(records).tolist():
                yield from writer.add(keys[records == label], label)
            yield from _keys_of(files, nodes, index, writer, at_once=at_once)
            yield from writer.finish()

        found = [engine.rows(self._own_files(), own, LABELLED_SCHEMA)]
        return engine.union(*found, engine.rows(self._tasks(), of_nodes, LABELLED_SCHEMA))

    def _own_files(self) -> list[Part]:
        """Writes the addresses of trees and companions with their labels."""
        layout, records = self.files.layout, self.needs.records
        trees = layout.tree_addresses(pa.array(list(records), pa.string()))
        addresses = [*trees.to_pylist(), *self.needs.companions]
        labels = [*records.values(), *self.needs.companions.values()]
        answer = PartRows()
        columns: list[Any] = [addresses, labels]
        table = pa.table(columns, schema=_OWN_SCHEMA)
        answer.wrote(self.files.folder, self.files.named("labelled-own"), table, relation="live")
        return answer.parts()

    def _tasks(self) -> list[Part]:
        """Writes the nodes with their labels and places in the index, in a part for each task."""
        answer, at_once = PartRows(), self.engine.fetches_at_once
        placed = look_up_nodes(self._nodes(), self.files.layout, self.index, at_once=at_once)
        for number, table in enumerate(divided(self.engine, placed.nodes)):
            name = self.files.named(f"labelled-{number:05d}")
            answer.wrote(self.files.folder, name, table, relation="nodes")
        return answer.parts()

    def _nodes(self) -> pa.Table:
        """Returns the nodes (FLAGGED and _LABELS), each once."""
        kinds: dict[_Kind, int] = {}
        found = _Kinded()
        for table in self._kinded(self._trees(kinds), list(kinds)):
            found.add(table)
        return _labelled(found.table(), list(kinds), self.merging)

    def _trees(self, kinds: dict[_Kind, int]) -> pa.Table:
        """Returns the trees to read (_TREES_SCHEMA), and numbers their kinds."""
        needs, layout = self.needs, self.files.layout
        # If files of trees and nodes are never candidates, only trees whose data stays are needed.
        checked = checked_kinds_of(layout)
        stay = bool(checked) and not {*checked} & {*layout.delete_order}
        joined = self.index is None and isinstance(layout, JoinedLayout)
        rows = []
        for tree_id, record in needs.records.items():
            kind = _Kind(record, needs.data.get(tree_id, NO_LABEL), tree_id not in needs.lenient)
            if (stay or joined) and kind.data == NO_LABEL:
                continue
            number = kinds.setdefault(kind, len(kinds))
            rows.append((tree_id, needs.checksums[tree_id], number))
        return table_of(rows, _TREES_SCHEMA)

    def _kinded(self, trees: pa.Table, kinds: Sequence[_Kind]) -> Iterator[pa.Table]:
        """Yields the nodes of trees (_KINDED)."""
        layout = self.files.layout
        if self.index is not None:
            trees, known = self._indexed(self.index, trees)
            yield from known
        if self.index is None and isinstance(layout, JoinedLayout):
            # Trees that are read together have nodes together, so that a kind is read alone.
            of_trees = trees.column("kind").to_numpy()
            for number in range(len(kinds)):
                own = trees.filter(pa.array(of_trees == number))
                of_kind = layout.for_trees(texts(own.column("tree_id")))
                yield self._read(own, kinds, of_kind)
        elif trees.num_rows:
            yield self._read(trees, kinds, layout)

    def _indexed(self, index: Index, trees: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """Returns the trees that the index lacks, and the nodes of the others."""
        layout, unchanged = self.files.layout, index.unchanged()
        wanted = WantedRows(trees.select(["tree_id", "checksum"]))
        kind_of, is_known = trees.column("kind").to_numpy(), np.zeros(trees.num_rows, np.bool_)
        found = _Kinded()
        for _, part in index.tables("trees", at_once=self.engine.fetches_at_once):
            indexed = IndexedTrees.of(part)
            places = indexed.matching(wanted, layout, unchanged)
            has = places.is_valid()
            rows = places.drop_null().to_numpy()
            is_known[rows] = True
            lists: Any = indexed.numbers.filter(has)
            lengths = pc.list_value_length(lists).to_numpy()
            pairs = np.unique(
                np.repeat(kind_of[rows].astype(np.int64), lengths) * indexed.nodes.num_rows
                + pc.list_flatten(lists).to_numpy()
            )
            count = max(indexed.nodes.num_rows, 1)
            nodes = indexed.nodes.take(pa.array(pairs % count))
            kinds: Any = pa.array((pairs // count).astype(np.int32))
            found.add(nodes.append_column(_KINDED.field("kind"), kinds))
        return trees.filter(pa.array(~is_known)), [found.table()]

    def _read(self, trees: pa.Table, kinds: Sequence[_Kind], layout: Layout) -> pa.Table:
        """Reads trees in tasks, and returns their nodes (_KINDED)."""
        at_once, storage = self.engine.fetches_at_once, self.files.storage

        def address_of(tree: tuple[str, str, int]) -> str:
            return tree_address(layout, tree[0])

        def read(task: Sequence[tuple[str, str, int]]) -> Batches:
            found = _Kinded()
            for tree, held in fetched(storage, task, address_of, at_once=at_once):
                tree_id, checksum, kind = tree
                try:
                    nodes = layout.read_tree(held, tree_id, checksum)
                except EbbtideError as error:
                    if kinds[kind].required or error.kind != MISSING_TREE:
                        raise
                    continue
                numbers: Any = pa.repeat(pa.scalar(kind, pa.int32()), nodes.num_rows)
                found.add(nodes.append_column(_KINDED.field("kind"), numbers))
            yield from found.table().to_batches()

        rows: list[Any] = [row for batch in trees.to_batches() for row in rows_in(batch)]
        tasks = split(rows, tasks=self.engine.tasks_for(ROWS_PER_TREE * len(rows)))
        return self.engine.rows(tasks, read, _KINDED).collect()


class _Kinded:
    """Collects rows of _KINDED, each once."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = [_KINDED.empty_table()]
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Adds rows."""
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows > _ROWS_HELD_MAX:
            self._tables, self._rows = [self.table()], 0

    def table(self) -> pa.Table:
        """Returns all rows, each once."""
        whole = pa.concat_tables(self._tables)
        once_each = whole.group_by(_KINDED.names, use_threads=False).aggregate([])
        return once_each.select(_KINDED.names).cast(_KINDED)


def _labelled(kinded: pa.Table, kinds: Sequence[_Kind], merging: Merging) -> pa.Table:
    """Returns the nodes of _KINDED, each once, with merged labels (FLAGGED and _LABELS)."""
    numbers = numbered_nodes(kinded)
    is_first = first_of_each(numbers)
    nodes = kinded.filter(pa.array(is_first)).select(NODES_SCHEMA.names)
    of_rows = kinded.column("kind").to_numpy()
    order = np.lexsort((of_rows, numbers))
    ends = np.flatnonzero(np.diff(numbers[order], append=-1)) + 1
    known: dict[bytes, tuple[int, int, bool]] = {}
    rows: list[tuple[int, int, bool]] = []
    start = 0
    for end in ends.tolist():
        own = of_rows[order[start:end]]
        start = end
        found = known.get(own.tobytes())
        if found is None:
            found = known[own.tobytes()] = _merged([kinds[kind] for kind in own], merging)
        rows.append(found)
    # Nodes come in the order of their first rows, which is that of their numbers.
    data = [label != NO_LABEL for _, label, _ in rows]
    columns: list[Any] = [
        *nodes.columns,
        pa.array(data, pa.bool_()),
        pa.array([required for *_, required in rows], pa.bool_()),
        pa.array([record for record, *_ in rows], pa.int32()),
        pa.array([label for _, label, _ in rows], pa.int32()),
    ]
    return pa.table(columns, schema=pa.schema([*FLAGGED, *_LABELS]))


def _merged(kinds: Sequence[_Kind], merging: Merging) -> tuple[int, int, bool]:
    """Returns the labels of a node with trees of these kinds: that of its file, and that of its
    addresses; and whether one of the trees is required."""
    record = merging.merged(sorted({each.record for each in kinds}))
    data = sorted({each.data for each in kinds} - {NO_LABEL})
    label = merging.merged(data) if data else NO_LABEL
    return record, label, any(each.required for each in kinds)


def _keys_of(
    files: TaskFiles, nodes: pa.Table, index: Index | None, writer: _Labelled, *, at_once: int
) -> Batches:
    """Yields the keys of the addresses in nodes whose data stays, with the nodes' labels."""
    needed = nodes.filter(nodes.column("data"))
    unread = [needed.filter(pc.is_null(needed.column("entries")))]
    for rows, lists in by_index_part(index, needed):
        if lists is None:
            unread.append(rows)
            continue
        places, labels = rows.column("row").to_numpy(), rows.column("label").to_numpy()
        for label in np.unique(labels).tolist():
            chosen = np.zeros(lists.num_rows, np.bool_)
            chosen[places[labels == label]] = True
            for keys in keys_in(lists, chosen):
                yield from writer.add(keys, label)
    missing = pa.concat_tables(unread)
    names = (missing.column(name).to_pylist() for name in (*NODES_SCHEMA.names, "label"))
    label_of = {tuple(node): label for *node, label in zip(*names, strict=True)}
    for node, named in read_node_files(files, missing, at_once=at_once):
        yield from writer.add(once(keys_of(named)), label_of[node[:3]])


class _Labelled:
    """Collects keys into batches of LABELLED_SCHEMA."""

    def __init__(self) -> None:
        self._keys: dict[int, list[KeyArray]] = {}
        self._count = 0

    def add(self, keys: KeyArray, label: int) -> Batches:
        """Adds keys, in any order. Yields batches when there are enough keys."""
        self._keys.setdefault(label, []).append(keys)
        self._count += len(keys)
        if self._count >= _KEYS_PER_BATCH:
            yield from self.finish()

    def finish(self) -> Batches:
        """Yields the keys that are left."""
        for label, arrays in self._keys.items():
            keys = once(np.concatenate(arrays))
            labels: Any = pa.repeat(pa.scalar(label, pa.int32()), len(keys))
            yield pa.record_batch([pa.array(keys), labels], schema=LABELLED_SCHEMA)
        self._keys, self._count = {}, 0
