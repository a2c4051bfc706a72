"""The content of a part of the address index: trees with their nodes, or nodes with keys.

This module also decides which entries are still valid. Not for: reading and writing the files of
parts (`index`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import (
    Column,
    Numbers,
    first_of_each,
    make_schema,
    numbered,
    table_of,
    texts,
)
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.parts import Part, read_rows
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA, latest_micros
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.runs import RunFolder

TREES_SCHEMA: Final = make_schema(
    ("id", pa.string()),
    ("checksum", pa.string()),
    ("entry_count", pa.int64()),
    ("nodes", pa.list_(pa.int32())),
    ("read_at", pa.int64()),
)
"""A part of trees. The first rows are the nodes of these trees, each once: `nodes` and `read_at`
are null there. The other rows are the trees: `nodes` has the row numbers of a tree's nodes, and
`entry_count` is null. `read_at` is the start of the run that read the tree, in microseconds since
1970."""

KEYED_SCHEMA: Final = pa.schema(
    [*NODES_SCHEMA, pa.field("read_at", pa.int64()), pa.field("keys", pa.list_(pa.int64()))]
)
"""A part of nodes. `keys` has the keys of a node's addresses, ascending and each once. `read_at` is
the start of the run that read the node, in microseconds since 1970."""

NODE_ROWS_AT_ONCE: Final = 100_000
_NodeNumbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

_POINTERS_SCHEMA: Final = pa.schema(
    [INVENTORY_SCHEMA.field(name) for name in ("address", "last_modified")]
)


@dataclass(frozen=True, slots=True)
class UnchangedFiles:
    """The listed files. `keys` are those of their addresses, ascending. `written` is the latest
    instant at which each file can have been written, in microseconds since 1970."""

    keys: KeyArray
    written: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def read(cls, folder: RunFolder, pointers: Sequence[Part]) -> UnchangedFiles:
        """Reads parts of INVENTORY_SCHEMA."""
        table = read_rows(folder, pointers, _POINTERS_SCHEMA)
        keys = keys_of(table.column("address"))
        order = np.argsort(keys)
        return cls(keys[order], latest_micros(table.column("last_modified"))[order])

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns for each address whether it was listed, and was last written before `read_at`."""
        if not len(self.keys):
            return np.zeros(len(addresses), np.bool_)
        wanted = keys_of(addresses)
        places = np.searchsorted(self.keys, wanted)
        places[places == len(self.keys)] = 0
        found: np.ndarray[Any, np.dtype[np.bool_]] = (self.keys[places] == wanted) & (
            self.written[places] < read_at
        )
        return found


class TreeRows:
    """Builds the table of a part of trees."""

    def __init__(self, at_once: int = NODE_ROWS_AT_ONCE) -> None:
        """`at_once`: the number of node rows that are numbered together."""
        self._at_once = at_once
        self._nodes = NODES_SCHEMA.empty_table()
        """The numbered nodes. A node's number is its row here."""
        self._trees: list[tuple[str, str, None, int]] = []  # all columns but `nodes`
        self._lengths: list[int] = []
        self._numbers: list[_NodeNumbers] = []
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self._known: list[pa.Table] = []

    def add(self, tree_id: str, checksum: str, nodes: pa.Table, *, read_at: int) -> None:
        """Adds a tree with its nodes (NODES_SCHEMA)."""
        self._trees.append((tree_id, checksum, None, read_at))
        self._lengths.append(nodes.num_rows)
        self._gathered.append(nodes)
        self._gathered_rows += nodes.num_rows
        if self._gathered_rows >= self._at_once:
            self._number_gathered()

    def add_known(self, trees: IndexedTrees, chosen: Column) -> None:
        """Adds the trees for which `chosen` is true, and their nodes, each once."""
        lists: Any = trees.numbers.filter(chosen)
        of_nodes = pc.list_flatten(lists).to_numpy()
        used, places = np.unique(of_nodes, return_inverse=True)
        numbers = self._numbered(trees.nodes.take(pa.array(used)))[places]
        columns: list[Any] = [
            trees.ids.filter(chosen),
            trees.checksums.filter(chosen),
            pa.nulls(len(lists), pa.int64()),
            _lists(numbers, pc.list_value_length(lists).to_numpy()),
            pa.array(trees.read_at[np.asarray(chosen)]),
        ]
        self._known.append(pa.table(columns, schema=TREES_SCHEMA))

    def _number_gathered(self) -> None:
        self._numbers.append(self._numbered(pa.concat_tables(self._gathered)))
        self._gathered, self._gathered_rows = [], 0

    def _numbered(self, nodes: pa.Table) -> _NodeNumbers:
        """Adds nodes (NODES_SCHEMA) that are new, and returns the number of each node."""
        known = self._nodes.num_rows
        table = pa.concat_tables([self._nodes, nodes])
        numbers = numbered_nodes(table)
        self._nodes = table.filter(pa.array(first_of_each(numbers)))
        return numbers[known:].astype(np.int32)

    def table(self) -> pa.Table:
        """Returns the part as a table of TREES_SCHEMA."""
        if self._gathered:
            self._number_gathered()
        nodes = self._nodes.rename_columns(["id", "checksum", "entry_count"])
        for field in (TREES_SCHEMA.field("nodes"), TREES_SCHEMA.field("read_at")):
            nodes = nodes.append_column(field, pa.nulls(nodes.num_rows, field.type))
        others = pa.schema([each for each in TREES_SCHEMA if each.name != "nodes"])
        numbers = np.concatenate([np.empty(0, np.int32), *self._numbers])
        lists = _lists(numbers, np.array(self._lengths, np.int32))
        read = table_of(self._trees, others).append_column(TREES_SCHEMA.field("nodes"), lists)
        tables = [nodes, read.select(TREES_SCHEMA.names), *self._known]
        return pa.concat_tables(tables).combine_chunks()


def numbered_nodes(table: pa.Table) -> Numbers:
    """Returns a number for each row of NODES_SCHEMA: equal nodes have equal numbers, from 0 in
    order of first appearance. An id with two checksums counts as two nodes; one of them cannot be
    read."""
    numbers = numbered(table.column("node_id"))
    first = pa.array(np.flatnonzero(first_of_each(numbers))[numbers], pa.int64())
    others = [table.column(name) for name in ("checksum", "entry_count")]
    if all(pc.all(pc.equal(each, each.take(first))).as_py() for each in others):
        return numbers
    for each in others:
        pairs = numbers.astype(np.int64) * table.num_rows + numbered(each)
        numbers = numbered(pa.array(pairs))
    return numbers


@dataclass(frozen=True, slots=True)
class IndexedTrees:
    """A part of trees by columns. `nodes` (NODES_SCHEMA) are the nodes of all trees. `numbers` has
    the row numbers of each tree's nodes, and `read_at` the time when each tree was read."""

    nodes: pa.Table
    ids: pa.ChunkedArray[Any]
    checksums: pa.ChunkedArray[Any]
    numbers: pa.ChunkedArray[Any]
    read_at: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, table: pa.Table) -> IndexedTrees:
        """Splits a table of TREES_SCHEMA into nodes and trees."""
        count = table.num_rows - table.column("entry_count").null_count
        nodes = table.slice(0, count).select(["id", "checksum", "entry_count"])
        trees = table.slice(count)
        return cls(
            nodes=nodes.rename_columns(NODES_SCHEMA.names),
            ids=trees.column("id"),
            checksums=trees.column("checksum"),
            numbers=trees.column("nodes"),
            read_at=trees.column("read_at").to_numpy(),
        )

    def matching(
        self, needed: pa.Table, layout: Layout, unchanged: UnchangedFiles
    ) -> pa.Array[Any]:
        """Returns for each tree the row of `needed` (columns `tree_id` and `checksum`) with its id
        and checksum. Null if there is no such row, or if the tree's file may have changed."""
        sound = unchanged.since(layout.tree_addresses(self.ids), self.read_at)
        places: Any = pc.index_in(self.ids, value_set=needed.column("tree_id"))
        same = pc.equal(needed.column("checksum").take(places), self.checksums)
        return _only(places, pc.and_(pa.array(sound), same))

    def nodes_of(self, chosen: Column) -> pa.Table:
        """Returns the nodes of the trees for which `chosen` is true, each once."""
        of_tree = pc.list_value_length(self.numbers).to_numpy()
        is_of_chosen = np.repeat(np.asarray(chosen), of_tree)
        has = np.zeros(self.nodes.num_rows, np.bool_)
        has[pc.list_flatten(self.numbers).to_numpy()[is_of_chosen]] = True
        return self.nodes if has.all() else self.nodes.filter(pa.array(has))


class WantedNodes:
    """Nodes (NODES_SCHEMA) to find in many parts. The dictionary of their ids is made once; Arrow
    would hash all ids again for each part."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()  # `take` needs half the time on a single chunk
        self._places = {name: n for n, name in enumerate(texts(table.column("node_id")))}

    def places(self, table: pa.Table) -> pa.Array[Any]:
        """Returns for each row of `table` the row of the wanted node with the same id, checksum and
        entry count. Null if there is none."""
        found = map(self._places.get, texts(table.column("node_id")))
        places: Any = pa.array(found, pa.int32(), size=table.num_rows)
        same: Any = pa.scalar(True)
        for name in ("checksum", "entry_count"):
            same = pc.and_(
                same, pc.equal(self._table.column(name).take(places), table.column(name))
            )
        return _only(places, same)


def _only(places: Column, wanted: Column) -> pa.Array[Any]:
    """Returns the places where `wanted` is true, and null elsewhere."""
    found: Any = pc.if_else(wanted, places, pa.scalar(None, pa.int32()))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def known_nodes(
    table: pa.Table, wanted: WantedNodes, layout: Layout, unchanged: UnchangedFiles
) -> pa.Array[Any]:
    """Returns for each node of `table` (KEYED_SCHEMA) the row of the same node among the wanted
    ones. Null if the node is not wanted, or if its file may have changed."""
    addresses = layout.node_addresses(table.column("node_id"))
    sound = unchanged.since(addresses, table.column("read_at").to_numpy())
    return _only(wanted.places(table), pa.array(sound))


def key_counts(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the number of keys in each row of a table of KEYED_SCHEMA."""
    counts: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.list_value_length(table.column("keys")).to_numpy().astype(np.int64)
    )
    return counts


def keys_in(
    table: pa.Table, chosen: np.ndarray[Any, np.dtype[np.bool_]], *, among: KeySet | None = None
) -> Iterator[KeyArray]:
    """Yields the keys of the chosen rows (KEYED_SCHEMA).

    Without `among`, neighbouring rows are yielded together, as views of the table: a copy would
    take as long as the search in them. With `among`, only the keys of that set are yielded. All
    rows are then searched at once, since most rows are chosen and few keys are found.
    """
    start = 0
    chunks: list[Any] = table.column("keys").chunks  # arrays of lists
    for chunk in chunks:
        offsets, keys = chunk.offsets.to_numpy(), chunk.values.to_numpy()
        here = chosen[start : start + len(chunk)]
        if among is None:
            padded = np.concatenate(([False], here, [False]))
            edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
            for first, end in zip(edges[::2], edges[1::2], strict=True):
                yield keys[offsets[first] : offsets[end]]
        else:
            places = among.places(keys[offsets[0] : offsets[-1]]) + offsets[0]
            rows = np.searchsorted(offsets, places, side="right") - 1
            yield keys[places[here[rows]]]
        start += len(chunk)


def having(table: pa.Table, keys: KeySet) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row of a table of KEYED_SCHEMA whether it has one of the `keys`."""
    ends = np.cumsum(key_counts(table))
    found = np.zeros(table.num_rows, np.bool_)
    values: Any = pc.list_flatten(table.column("keys"))
    found[np.searchsorted(ends, keys.places(values.to_numpy()), side="right")] = True
    return found


def keyed(
    nodes: Sequence[tuple[str, str, int]], keys: Sequence[KeyArray], *, read_at: int
) -> pa.Table:
    """Returns nodes (rows of NODES_SCHEMA) with their keys as a table of KEYED_SCHEMA."""
    lengths = np.fromiter(map(len, keys), np.int32, len(keys))
    values = np.concatenate([np.empty(0, np.int64), *keys])
    rows = [(*node, read_at) for node in nodes]
    others = table_of(rows, pa.schema(list(KEYED_SCHEMA)[:-1]))
    return others.append_column("keys", _lists(values, lengths)).cast(KEYED_SCHEMA)


def _lists(
    values: np.ndarray[Any, np.dtype[Any]], lengths: np.ndarray[Any, np.dtype[np.int32]]
) -> pa.ListArray[Any]:
    """Returns the values, divided into lists of these lengths."""
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values))
