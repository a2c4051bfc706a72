"""The relation `live`: the keys of the addresses that kept commits need, from trees and nodes.

There are two depths. If a commit's data stays, its tree, its nodes and all addresses in them are
live. If only its record stays, its tree and nodes are live as files, and the nodes are not read.
Trees and nodes that the address index knows are not read from their files again: many trees can
have the same node, and a node that stays unchanged is read only by the first run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, AskedNode, Layout, Slices
from ebbtide.gc.engines.base import Batches, Engine, Relation
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part
from ebbtide.gc.prefetching import fetched
from ebbtide.gc.relations.index import KEYS_PER_PART, Index
from ebbtide.gc.relations.indexed import (
    KEYED_SCHEMA,
    WantedNodes,
    having,
    key_counts,
    keyed,
    keys_in,
    known_nodes,
)
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.relations.keys import KeyArray, KeySet, keys_of, once
from ebbtide.gc.relations.trees import (
    FLAGGED,
    TREE_NODES,
    TREES_SCHEMA,
    KnownTrees,
    are_divided,
    by_bucket,
    by_id,
    each_once,
    tree_nodes,
)
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.storage import Storage

REQUIRED: Final = "required"
"""The relation of parts with companions that must be on the storage."""
LIVE_SCHEMA: Final = make_schema(("key", pa.int64()), ("required", pa.bool_()))
"""The key of an address that stays, and whether its file must be on the storage. For a key from the
index it is not known whether a listing leaves the address out."""
HELD_SCHEMA: Final = make_schema(("address", pa.string()), ("node_id", pa.string()))
"""An address, and a node that has it. The node is null if the address comes with a tree."""
MISSING_NODE: Final = "missing_node"
KEYS_PER_BATCH: Final = 1_000_000
NODES_TOGETHER: Final = 256
ENTRIES_TOGETHER: Final = 20_000
"""Nodes are read in groups. A group is full when it has NODES_TOGETHER nodes or ENTRIES_TOGETHER
entries."""
_Node = tuple[str, str, int, bool]
"""A row of NODES_SCHEMA, and whether the node is required."""


@dataclass(frozen=True, slots=True)
class MarkedTrees:
    """The trees to read, by their ids, and the depth. The files of `recorded` trees stay. The
    `data` trees are recorded trees whose data stays too.

    Missing files of `lenient` trees are ignored. `companions` are addresses that are live with the
    trees; the `required` companions must be on the storage.
    """

    recorded: frozenset[str]
    data: frozenset[str]
    lenient: frozenset[str] = frozenset()
    companions: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()


def write_trees(
    folder: RunFolder, prefix: str, marked: MarkedTrees, checksums: Mapping[str, str]
) -> KnownTrees:
    """Writes all trees of `checksums` as parts whose names begin with `prefix`, with columns that
    say which of them are marked. All marked trees must have a checksum."""
    ids = sorted(checksums)
    assert marked.recorded <= checksums.keys()
    columns: list[Any] = [  # a list for each column of TREES_SCHEMA
        ids,
        [checksums[tree_id] for tree_id in ids],
        [tree_id in marked.recorded for tree_id in ids],
        [tree_id in marked.data for tree_id in ids],
        [tree_id not in marked.lenient for tree_id in ids],
    ]
    trees, companions = PartRows(), PartRows()
    table = pa.table(columns, schema=TREES_SCHEMA)
    trees.wrote(folder, f"{prefix}trees.parquet", table, relation="trees")
    required = marked.required & marked.companions
    _write_addresses(folder, f"{prefix}companions", companions, marked.companions - required)
    if required:  # most formats require no companions
        _write_addresses(folder, f"{prefix}required", companions, required, relation=REQUIRED)
    return KnownTrees(trees.parts(), companions.parts())


def _write_addresses(
    folder: RunFolder,
    name: str,
    answer: PartRows,
    addresses: Iterable[str],
    *,
    relation: str = "live",
) -> None:
    table = pa.table([sorted(addresses)], schema=ADDRESS_SCHEMA)
    answer.wrote(folder, f"{name}.parquet", table, relation=relation)


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of some trees. Its relations are computed again for each use, unless they are
    kept. Addresses that a listing of `slices` leaves out are not required."""

    engine: Engine
    place: TaskFiles
    trees: KnownTrees
    nodes: Relation
    index: Index | None = None
    slices: Slices | None = None

    @classmethod
    def of(
        cls,
        engine: Engine,
        place: TaskFiles,
        trees: KnownTrees,
        *,
        index: Index | None = None,
        slices: Slices | None = None,
    ) -> Mark:
        """Returns the mark of trees that were written. Trees and nodes that the `index` lacks are
        added to it."""
        nodes = tree_nodes(engine, place, trees.trees, index)
        return cls(engine, place, trees, nodes, index, slices)

    def live(self, asked: KeyArray | None = None) -> Relation:
        """Returns the relation `live` (LIVE_SCHEMA). If `asked` is given, keys that are not in it
        may be left out. Raises as `tree_nodes` and `node_addresses` do."""
        engine, place = self.engine, self.place
        folder, layout = place.folder, place.layout

        def own(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            if part.relation == "trees":
                ids = table.filter(table.column("recorded")).column("tree_id")
                keys = keys_of(layout.tree_addresses(ids))
            else:
                keys = keys_of(table.column("address"))
            flags = pa.repeat(pa.scalar(part.relation == REQUIRED), len(keys))
            yield pa.record_batch([pa.array(keys), flags], schema=LIVE_SCHEMA)

        of_nodes = node_addresses(engine, place, self.nodes, self.index, asked, self.slices)
        written = [*self.trees.trees, *self.trees.companions]
        own_files = [engine.rows(written, own, LIVE_SCHEMA)] if written else []
        return engine.union(*own_files, of_nodes)

    def addresses(self, keys: KeyArray) -> Relation:
        """Returns the required addresses that have one of the `keys` (HELD_SCHEMA). An address may
        come more than once."""
        folder = self.place.folder

        def of_companions(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            is_asked = pa.array([key in wanted for key in keys_of(table.column("address"))])
            yield from with_node(table.column("address").filter(is_asked), None).to_batches()

        wanted = frozenset(keys.tolist())
        of_nodes = addresses_among(self.engine, self.place, self.nodes, keys, self.index)
        required = [part for part in self.trees.companions if part.relation == REQUIRED]
        named = [self.engine.rows(required, of_companions, HELD_SCHEMA)] if required else []
        return self.engine.union(*named, of_nodes)

    def kept(self) -> Mark:
        """Returns the same mark, which computes its nodes only once."""
        return replace(self, nodes=self.nodes.kept())

    def done(self) -> None:
        """Deletes the loose parts of the index whose rows were divided among the buckets. Called
        when all relations are computed."""
        if self.index is not None and self.index.scattered:
            self.index.drop(self.index.scattered)


def node_addresses(
    engine: Engine,
    place: TaskFiles,
    nodes: Relation,
    index: Index | None,
    asked: KeyArray | None = None,
    slices: Slices | None = None,
) -> Relation:
    """Returns LIVE_SCHEMA: the key of each node's own file, and the keys of the addresses in each
    node whose data stays. `nodes` are rows of TREE_NODES.

    Nodes that the `index` lacks are added to it. If `asked` is given, keys that are not in it may
    be left out. Addresses that a listing of `slices` leaves out are not required. When the rows
    are computed, it raises Refused for the first node that cannot be read. A missing node that is
    not required is ignored.
    """
    at_once, is_divided = engine.fetches_at_once, are_divided(engine, index)

    def live(batches: Batches) -> Batches:
        wanted_keys = None if asked is None else KeySet(asked)
        table = pa.Table.from_batches(batches, TREE_NODES)
        for bucket, rows in by_bucket(table, is_divided=is_divided):
            each = each_once([rows.select(FLAGGED.names)])
            writer = _KeyBatches(wanted_keys, place.layout, slices)
            yield from writer.add(keys_of(place.layout.node_addresses(each.column("node_id"))))
            wanted = each.filter(each.column("data"))
            yield from _read_bucket(place, wanted, index, bucket, writer, at_once=at_once)
            yield from writer.finish()

    return by_id(engine, nodes, index, live, LIVE_SCHEMA)


def with_node(addresses: Column, node_id: str | None) -> pa.Table:
    """Returns addresses with the node that has them, as HELD_SCHEMA."""
    nodes: Any = pa.repeat(pa.scalar(node_id, pa.string()), len(addresses))
    columns: list[Any] = [addresses, nodes]
    return pa.table(columns, schema=HELD_SCHEMA)


def addresses_among(
    engine: Engine, place: TaskFiles, nodes: Relation, asked: KeyArray, index: Index | None
) -> Relation:
    """Returns the addresses in required nodes of `nodes` (TREE_NODES) that have one of the keys in
    `asked`, as HELD_SCHEMA. Reads the files of the nodes, without those of which the `index` knows
    that they have no such key."""
    at_once, is_divided = engine.fetches_at_once, are_divided(engine, index)

    def addresses(batches: Batches) -> Batches:
        known = KeySet(asked)
        table = pa.Table.from_batches(batches, TREE_NODES)
        for bucket, rows in by_bucket(table, is_divided=is_divided):
            each = each_once([rows.select(FLAGGED.names)])
            wanted = each.filter(pc.and_(each.column("data"), each.column("required")))
            if index is not None:
                wanted = _perhaps_having(place, wanted, index, bucket, known, at_once=at_once)
            for node, named in _read(place, wanted, at_once=at_once):
                found = named.filter(pa.array(known.has(keys_of(named))))
                yield from with_node(found.unique(), node[0]).to_batches()

    return by_id(engine, nodes, index, addresses, HELD_SCHEMA)


def _perhaps_having(
    place: TaskFiles, wanted: pa.Table, index: Index, bucket: int, keys: KeySet, *, at_once: int
) -> pa.Table:
    """Returns the wanted nodes of a bucket that have one of the keys, or that the index does not
    know."""
    nodes, unchanged = WantedNodes(wanted), index.unchanged()
    lacks = np.zeros(wanted.num_rows, np.bool_)
    for _, part in index.tables(index.names("nodes", bucket), at_once=at_once):
        places = known_nodes(part, nodes, place.layout, unchanged)
        without_keys = places.filter(pa.array(~having(part, keys)))
        lacks[without_keys.drop_null().to_numpy()] = True
    return wanted.filter(pa.array(~lacks))


def unknown_nodes(engine: Engine, place: TaskFiles, nodes: Relation, index: Index) -> Relation:
    """Returns the rows of `nodes` (TREE_NODES) whose nodes the index does not know."""
    at_once, is_divided = engine.fetches_at_once, are_divided(engine, index)

    def unknown(batches: Batches) -> Batches:
        table = pa.Table.from_batches(batches, TREE_NODES)
        for bucket, rows in by_bucket(table, is_divided=is_divided):
            wanted = WantedNodes(rows.select(NODES_SCHEMA.names))
            is_known, unchanged = np.zeros(rows.num_rows, np.bool_), index.unchanged()
            for _, part in index.tables(index.names("nodes", bucket), at_once=at_once):
                places = known_nodes(part, wanted, place.layout, unchanged).drop_null()
                is_known[places.to_numpy()] = True
            yield from rows.filter(pa.array(~is_known)).to_batches()

    return by_id(engine, nodes, index, unknown, TREE_NODES)


def _read_bucket(
    place: TaskFiles,
    wanted: pa.Table,
    index: Index | None,
    bucket: int,
    writer: _KeyBatches,
    *,
    at_once: int,
) -> Batches:
    """Yields batches of LIVE_SCHEMA with the addresses in the wanted nodes, which are of one
    bucket. Adds unknown nodes to the index, and replaces the parts that `Index.anew` names."""
    kept = None if index is None else _Kept(index, bucket)
    anew: Sequence[str] = ()
    if index is not None and kept is not None:
        nodes, unchanged = WantedNodes(wanted), index.unchanged()
        is_known, used = np.zeros(wanted.num_rows, np.bool_), dict[str, tuple[int, int]]()
        for name, part in index.tables(index.names("nodes", bucket), at_once=at_once):
            places = known_nodes(part, nodes, place.layout, unchanged)
            known = places.is_valid().to_numpy(zero_copy_only=False)
            numbers = key_counts(part)
            used[name] = int(numbers[known].sum()), int(numbers.sum())
            for keys in keys_in(part, known, among=writer.asked):
                yield from writer.take(keys, required=writer.slices is not None)
            is_known[places.drop_null().to_numpy()] = True
        anew = index.anew("nodes", bucket, used)
        for _, part in index.tables(anew, at_once=at_once):
            kept.add_table(
                part.filter(known_nodes(part, nodes, place.layout, unchanged).is_valid())
            )
        wanted = wanted.filter(pa.array(~is_known))
    for node, named in _read(place, wanted, at_once=at_once):
        keys = keys_of(named)
        yield from writer.add_read(named, keys, required=node[3])
        if kept is not None:
            kept.add(node, once(keys))
    if index is not None and kept is not None:
        index.drop({*anew} - kept.finish() - index.scattered)


def _read(
    place: TaskFiles, wanted: pa.Table, *, at_once: int
) -> Iterator[tuple[_Node, pa.StringArray]]:
    """Reads the files of the wanted nodes, and yields each node with its addresses. Raises as
    `node_addresses` does."""
    columns = (wanted.column(name).to_pylist() for name in (*NODES_SCHEMA.names, "required"))
    nodes: list[_Node] = list(zip(*columns, strict=True))

    def address_of(node: _Node) -> str:
        return place.layout.node_address(node[0])

    files = fetched(place.storage, nodes, address_of, at_once=at_once)
    for chosen in _together(files):
        asked = [AskedNode(storage, *node[:3]) for node, storage in chosen]
        for (node, _), found in zip(chosen, place.layout.read_nodes(asked), strict=True):
            if not isinstance(found, EbbtideError):
                yield node, found
            elif node[3] or found.kind != MISSING_NODE:
                raise found


def _together(files: Iterator[tuple[_Node, Storage]]) -> Iterator[list[tuple[_Node, Storage]]]:
    """Divides nodes into small groups that are read together."""
    chosen: list[tuple[_Node, Storage]] = []
    entries = 0
    for node, storage in files:
        chosen.append((node, storage))
        entries += node[2]
        if len(chosen) >= NODES_TOGETHER or entries >= ENTRIES_TOGETHER:
            yield chosen
            chosen, entries = [], 0
    if chosen:
        yield chosen


class _KeyBatches:
    """Collects keys into batches of LIVE_SCHEMA."""

    def __init__(self, asked: KeySet | None, layout: Layout, slices: Slices | None) -> None:
        """If `asked` is given, `add` leaves out all other keys. `slices` are those of the
        listing."""
        self.asked = asked
        self.slices = slices
        self._layout = layout
        self._keys: dict[bool, list[KeyArray]] = {True: [], False: []}
        self._count = 0

    def add(self, keys: KeyArray, *, required: bool = False) -> Batches:
        """Adds keys, in any order. Yields batches when there are enough keys."""
        return self.take(keys if self.asked is None else self.asked.among(keys), required=required)

    def add_read(self, named: pa.StringArray, keys: KeyArray, *, required: bool) -> Batches:
        """Adds the addresses of a node that was read, with their keys. An address that a listing
        leaves out is not required."""
        if self.slices is None or not len(keys):
            yield from self.add(once(keys), required=required)
            return
        left_out = np.asarray(self._layout.left_out(named, self.slices))
        yield from self.add(once(keys[left_out]))
        yield from self.add(once(keys[~left_out]), required=required)

    def take(self, keys: KeyArray, *, required: bool = False) -> Batches:
        """Adds keys that are all in `asked`. Yields batches when there are enough keys."""
        self._keys[required].append(keys)
        self._count += len(keys)
        if self._count >= KEYS_PER_BATCH:
            yield from self.finish()

    def finish(self) -> Batches:
        """Yields the keys that are left."""
        for required, arrays in self._keys.items():
            if arrays:
                keys = once(np.concatenate(arrays))
                flags = pa.repeat(pa.scalar(required), len(keys))
                yield pa.record_batch([pa.array(keys), flags], schema=LIVE_SCHEMA)
        self._keys, self._count = {True: [], False: []}, 0


class _Kept:
    """Collects nodes with their keys, and writes them to a bucket of the index in parts of a
    bounded size."""

    def __init__(self, index: Index, bucket: int) -> None:
        self._index = index
        self._bucket = bucket
        self._read_at = micros_of(index.read_at)
        self._nodes: list[tuple[str, str, int]] = []
        self._keys: list[KeyArray] = []
        self._tables: list[pa.Table] = []
        self._count = 0
        self._written: set[str] = set()

    def add(self, node: _Node, keys: KeyArray) -> None:
        """Adds a node that was read, with the keys of its addresses."""
        self._nodes.append(node[:3])
        self._keys.append(keys)
        self._grown(len(keys))

    def add_table(self, table: pa.Table) -> None:
        """Adds nodes that the index knew already (KEYED_SCHEMA)."""
        for piece in _pieces(table):
            self._tables.append(piece)
            self._grown(int(key_counts(piece).sum()))

    def _grown(self, count: int) -> None:
        self._count += count
        if self._count >= KEYS_PER_PART:
            self.finish()

    def finish(self) -> frozenset[str]:
        """Writes the nodes that are left. Returns the names of all parts written so far."""
        read = keyed(self._nodes, self._keys, read_at=self._read_at)
        table = pa.concat_tables([KEYED_SCHEMA.empty_table(), read, *self._tables])
        name = self._index.write("nodes", table.combine_chunks(), bucket=self._bucket)
        if name is not None:
            self._written.add(name)
        self._nodes, self._keys, self._tables, self._count = [], [], [], 0
        return frozenset(self._written)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Divides a table of KEYED_SCHEMA into groups of consecutive rows, each as large as a part."""
    ends = np.cumsum(key_counts(table))
    start = 0
    while start < table.num_rows:
        before = ends[start - 1] if start else 0
        end = int(np.searchsorted(ends, before + KEYS_PER_PART)) + 1
        yield table.slice(start, end - start)
        start = end
