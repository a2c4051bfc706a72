"""What a part of the address index holds: trees with their nodes, or nodes with the keys of their
addresses; and which of it can be trusted.
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
"""First the nodes that the part's trees have, each once, with their entry counts and nulls behind
them; then the trees, with the numbers of the rows of their nodes, and microseconds since 1970 at
which the run began that read them."""

KEYED_SCHEMA: Final = pa.schema(
    [*NODES_SCHEMA, pa.field("read_at", pa.int64()), pa.field("keys", pa.list_(pa.int64()))]
)
"""Nodes, each with the keys of its addresses, ascending and each once; `read_at` as above."""

NODE_ROWS_AT_ONCE: Final = 100_000
_NodeNumbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

_POINTERS_SCHEMA: Final = pa.schema(
    [INVENTORY_SCHEMA.field(name) for name in ("address", "last_modified")]
)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The files that were listed: keys of their addresses, ascending, and the latest instant at
    which each can have been written, in microseconds since 1970."""

    keys: KeyArray
    written: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def read(cls, folder: RunFolder, pointers: Sequence[Part]) -> Unchanged:
        """From parts of INVENTORY_SCHEMA."""
        table = read_rows(folder, pointers, _POINTERS_SCHEMA)
        keys = keys_of(table.column("address"))
        order = np.argsort(keys)
        return cls(keys[order], latest_micros(table.column("last_modified"))[order])

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each address whether it was listed, and last written before it was read."""
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
        """`at_once`: how many rows of nodes are numbered together."""
        self._at_once = at_once
        self._nodes = NODES_SCHEMA.empty_table()
        """Those numbered, each at the row that is its number."""
        self._trees: list[tuple[str, str, None, int]] = []  # all columns but `nodes`
        self._lengths: list[int] = []
        self._numbers: list[_NodeNumbers] = []
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self._known: list[pa.Table] = []

    def add(self, tree_id: str, checksum: str, nodes: pa.Table, *, read_at: int) -> None:
        """Take a tree with its nodes (NODES_SCHEMA)."""
        self._trees.append((tree_id, checksum, None, read_at))
        self._lengths.append(nodes.num_rows)
        self._gathered.append(nodes)
        self._gathered_rows += nodes.num_rows
        if self._gathered_rows >= self._at_once:
            self._number_gathered()

    def add_known(self, trees: IndexedTrees, chosen: Column) -> None:
        """Take the trees for which `chosen` is true, each of their nodes once."""
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
        """The numbers of the rows that nodes (NODES_SCHEMA) have here."""
        known = self._nodes.num_rows
        table = pa.concat_tables([self._nodes, nodes])
        numbers = numbered_nodes(table)
        self._nodes = table.filter(pa.array(first_of_each(numbers)))
        return numbers[known:].astype(np.int32)

    def table(self) -> pa.Table:
        """A table of TREES_SCHEMA."""
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
    """For each row of NODES_SCHEMA a number that stands for it, from 0 up, as they come. One id
    with two checksums is two nodes, one of which nobody can read."""
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
    """A part of trees, taken apart: its nodes (NODES_SCHEMA), the trees' ids and checksums, the
    numbers of their nodes, and when they were read."""

    nodes: pa.Table
    ids: pa.ChunkedArray[Any]
    checksums: pa.ChunkedArray[Any]
    numbers: pa.ChunkedArray[Any]
    read_at: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, table: pa.Table) -> IndexedTrees:
        """From a table of TREES_SCHEMA."""
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

    def matching(self, needed: pa.Table, layout: Layout, unchanged: Unchanged) -> pa.Array[Any]:
        """For each tree the row of `needed` (columns `tree_id` and `checksum`) that asks for it by
        its checksum; null where none does, and where its file is not as it was."""
        sound = unchanged.since(layout.tree_addresses(self.ids), self.read_at)
        places: Any = pc.index_in(self.ids, value_set=needed.column("tree_id"))
        same = pc.equal(needed.column("checksum").take(places), self.checksums)
        return _only(places, pc.and_(pa.array(sound), same))

    def nodes_of(self, chosen: Column) -> pa.Table:
        """The nodes of the trees for which `chosen` is true, each once."""
        of_tree = pc.list_value_length(self.numbers).to_numpy()
        is_of_chosen = np.repeat(np.asarray(chosen), of_tree)
        has = np.zeros(self.nodes.num_rows, np.bool_)
        has[pc.list_flatten(self.numbers).to_numpy()[is_of_chosen]] = True
        return self.nodes if has.all() else self.nodes.filter(pa.array(has))


class WantedNodes:
    """Nodes (NODES_SCHEMA) that many parts are looked through for: Arrow would hash all their ids
    for each."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()  # of which rows are taken in half the time
        self._places = {name: n for n, name in enumerate(texts(table.column("node_id")))}

    def places(self, table: pa.Table) -> pa.Array[Any]:
        """For each row of `table` which of the nodes it is, by id, checksum and entry count
        (NODES_SCHEMA); null where it is none of them."""
        found = map(self._places.get, texts(table.column("node_id")))
        places: Any = pa.array(found, pa.int32(), size=table.num_rows)
        same: Any = pa.scalar(True)
        for name in ("checksum", "entry_count"):
            same = pc.and_(
                same, pc.equal(self._table.column(name).take(places), table.column(name))
            )
        return _only(places, same)


def _only(places: Column, wanted: Column) -> pa.Array[Any]:
    """Those places, null elsewhere."""
    found: Any = pc.if_else(wanted, places, pa.scalar(None, pa.int32()))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def known_nodes(
    table: pa.Table, wanted: WantedNodes, layout: Layout, unchanged: Unchanged
) -> pa.Array[Any]:
    """For each row of `table` (KEYED_SCHEMA) which of the wanted nodes it is; null where it is none
    of them, or its file is not as it was."""
    addresses = layout.node_addresses(table.column("node_id"))
    sound = unchanged.since(addresses, table.column("read_at").to_numpy())
    return _only(wanted.places(table), pa.array(sound))


def key_counts(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many keys each row of a table of KEYED_SCHEMA has."""
    counts: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.list_value_length(table.column("keys")).to_numpy().astype(np.int64)
    )
    return counts


def keys_in(
    table: pa.Table, chosen: np.ndarray[Any, np.dtype[np.bool_]], *, among: KeySet | None = None
) -> Iterator[KeyArray]:
    """The keys of the rows (KEYED_SCHEMA) that are chosen, those of neighbours together, as they
    lie in memory: to copy them would take as long as to go through them. Or those of them that are
    `among` others: all rows are gone through at once, since most are chosen, and few keys are."""
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


def keyed(
    nodes: Sequence[tuple[str, str, int]], keys: Sequence[KeyArray], *, read_at: int
) -> pa.Table:
    """Nodes (rows of NODES_SCHEMA) with their keys, as a table of KEYED_SCHEMA."""
    lengths = np.fromiter(map(len, keys), np.int32, len(keys))
    values = np.concatenate([np.empty(0, np.int64), *keys])
    rows = [(*node, read_at) for node in nodes]
    others = table_of(rows, pa.schema(list(KEYED_SCHEMA)[:-1]))
    return others.append_column("keys", _lists(values, lengths)).cast(KEYED_SCHEMA)


def _lists(
    values: np.ndarray[Any, np.dtype[Any]], lengths: np.ndarray[Any, np.dtype[np.int32]]
) -> pa.ListArray[Any]:
    """The values as lists of these lengths."""
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values))
