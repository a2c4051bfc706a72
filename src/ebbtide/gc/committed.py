"""The relation `committed`: the keys of the addresses that kept commits need, from trees and nodes.

There are two depths. If a commit's data stays, its tree, its nodes and all addresses in them are
live. If only its record stays, its tree and nodes are live as files, and the nodes are not read.
Trees and nodes that the address index knows are not read from their files again: many trees can
have the same node, and a node that stays unchanged is read only by the first run.

The driver looks trees and nodes up in the index, and divides the nodes that stay among tasks. A
task has all nodes of a part of the index, or trees or nodes whose files it reads. It adds what it
read to the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, first_of_each, make_schema, numbered, rows_in, texts, without
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, AskedNode, Layout, Slices, node_address, tree_address
from ebbtide.formats.capabilities import (
    JoinedLayout,
    checked_kinds_of,
    left_out_of,
    read_nodes,
)
from ebbtide.gc.engines.base import Batches, Engine, Relation
from ebbtide.gc.index import (
    Index,
    IndexedTrees,
    KeptNodes,
    PartUse,
    TreeRows,
    WantedRows,
    anew,
    having,
    keys_in,
    keys_name,
    known_nodes,
    numbered_nodes,
)
from ebbtide.gc.keys import KeyArray, KeySet, keys_of, once
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part, read_rows, split
from ebbtide.gc.prefetch import fetched
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.gc.store import micros_of
from ebbtide.storage import Storage

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
REQUIRED: Final = "required"
"""The relation of parts with companions that must be on the storage."""
LIVE_SCHEMA: Final = make_schema(("key", pa.int64()), ("required", pa.bool_()))
"""The key of an address that stays, and whether its file must be on the storage. For a key from the
index it is not known whether a listing leaves the address out."""
HELD_SCHEMA: Final = make_schema(("address", pa.string()), ("node_id", pa.string()))
"""An address, and a node that has it. The node is null if the address comes with a tree."""
PLACED_NODES: Final = pa.schema(
    [
        *FLAGGED,
        pa.field("entries", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("row", pa.int32()),
        pa.field("row_count", pa.int64()),
        pa.field("anew", pa.bool_()),
    ]
)
"""A node, and its place in the index: the part of nodes that has it (`entries`), the part of keys,
and the row in both, of `row_count`. Null if its file has to be read, or if it is not needed.
`anew`: this run writes its keys into a new part."""
MISSING_NODE: Final = "missing_node"
KEYS_PER_BATCH: Final = 1_000_000
NODES_TOGETHER: Final = 256
ENTRIES_TOGETHER: Final = 20_000
"""Nodes are read in groups. A group is full when it has NODES_TOGETHER nodes or ENTRIES_TOGETHER
entries."""
ROWS_PER_NODE: Final = 500
"""The rows that take as long as reading one node, besides its entries, for the division of
tasks."""
_Node = tuple[str, str, int, bool]
"""A row of NODES_SCHEMA, and whether the node is required."""


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
    checked = checked_kinds_of(layout)
    stay = bool(checked) and not {*checked} & {*layout.delete_order}
    given = read_rows(place.folder, trees, TREES_SCHEMA)
    needed = given.filter(given.column("data" if stay else "recorded")).drop_columns("recorded")
    found, replaced = _Found(), frozenset[str]()
    if index is not None and needed.num_rows:
        at_once = engine.fetches_at_once
        needed, replaced = _look_up_trees(index, needed, layout, found, at_once=at_once)
    if index is None and isinstance(layout, JoinedLayout):
        # The nodes of trees whose data goes name nothing that stays.
        needed = needed.filter(needed.column("data"))
        place = replace(place, layout=layout.for_trees(texts(needed.column("tree_id"))))
    if needed.num_rows:
        found.add_flagged(_read_trees(engine, place, needed, index))
    return TreeNodes(found.table(), replaced)


def _look_up_trees(
    index: Index, needed: pa.Table, layout: Layout, found: _Found, *, at_once: int
) -> tuple[pa.Table, frozenset[str]]:
    """Adds the nodes of the trees that the index has to `found`. Returns the other trees, and the
    parts that are no longer needed: the useful rows of `anew` are in a new part."""
    unchanged, uses = index.unchanged(), list[PartUse]()
    wanted = WantedRows(needed.select(["tree_id", "checksum"]))
    known = [needed.select(["tree_id"]).slice(0, 0)]
    sizes = {part.name: part.size_bytes for part in index.listed}
    for name, part in index.tables("trees", at_once=at_once):
        indexed = IndexedTrees.of(part)
        places = indexed.matching(wanted, layout, unchanged)
        found.add_known(indexed, needed.take(places))
        known.append(pa.table({"tree_id": indexed.ids.filter(pc.is_valid(places))}))
        used = len(places) - places.null_count
        uses.append(PartUse(name, used, len(places), sizes[name]))
    left = without(needed, "tree_id", pa.concat_tables(known))
    if not index.is_tidied:
        return left, frozenset()
    rows, merged = TreeRows(), anew(uses)
    for name in sorted(merged):
        part_again = index.read(name)
        if part_again is not None:
            indexed = IndexedTrees.of(part_again)
            rows.add_known(indexed, pc.is_valid(indexed.matching(wanted, layout, unchanged)))
    index.write_trees(rows.table())
    return left, merged | (frozenset(index.names("trees")) - {each.name for each in uses})


def _read_trees(
    engine: Engine, place: TaskFiles, needed: pa.Table, index: Index | None
) -> pa.Table:
    """Reads trees in tasks. Returns their nodes (FLAGGED)."""
    at_once = engine.fetches_at_once

    def address_of(tree: _Tree) -> str:
        return tree_address(place.layout, tree[0])

    def read(task: Sequence[_Tree]) -> Batches:
        found, rows = _Found(), TreeRows()
        with closing(fetched(place.storage, task, address_of, at_once=at_once)) as files:
            for tree, storage in files:
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
        nodes = indexed.nodes
        for name in ("data", "required"):
            nodes = nodes.append_column(FLAGGED.field(name), indexed.has(rows.column(name)))
        self.add_flagged(nodes.filter(indexed.has(pc.is_valid(rows.column("tree_id")))))

    def table(self) -> pa.Table:
        """Returns all nodes (FLAGGED), each once."""
        return each_once(self._tables)


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


class Mark:
    """The mark of some trees. Its nodes are found when they are first needed. Addresses that a
    listing of `slices` leaves out are not required. Trees and nodes that the `index` lacks are
    added to it."""

    def __init__(
        self,
        engine: Engine,
        place: TaskFiles,
        trees: KnownTrees,
        *,
        index: Index | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.engine = engine
        self.place = place
        self.trees = trees
        self.index = index
        self.slices = slices

    @property
    def nodes(self) -> pa.Table:
        """The nodes that stay (FLAGGED), each once. Raises as `tree_nodes` does."""
        return self._tree_nodes.nodes

    @cached_property
    def _tree_nodes(self) -> TreeNodes:
        return tree_nodes(self.engine, self.place, self.trees.trees, self.index)

    @cached_property
    def _placed(self) -> PlacedNodes:
        at_once = self.engine.fetches_at_once
        return look_up_nodes(self.nodes, self.place.layout, self.index, at_once=at_once)

    @cached_property
    def _tasks(self) -> list[Part]:
        """The nodes (PLACED_NODES), in a part for each task."""
        answer = PartRows()
        for number, table in enumerate(divided(self.engine, self._placed.nodes)):
            name = self.place.named(f"nodes-{number:05d}")
            answer.wrote(self.place.folder, name, table, relation="nodes")
        return answer.parts()

    @property
    def unknown_count(self) -> int:
        """The number of nodes whose files have to be read."""
        nodes = self._placed.nodes
        unknown = pc.and_(nodes.column("data"), pc.is_null(nodes.column("entries")))
        return int(pc.sum(unknown).as_py() or 0)

    def live(self, asked: KeyArray | None = None) -> Relation:
        """Returns the relation `live` (LIVE_SCHEMA). If `asked` is given, keys that are not in it
        may be left out.

        Raises as `tree_nodes` does. When the rows are computed, Refused is raised for the first
        node that cannot be read. A missing node that is not required is ignored.
        """
        engine, place, index, slices = self.engine, self.place, self.index, self.slices
        folder, layout, at_once = place.folder, place.layout, engine.fetches_at_once

        def own(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            if part.relation == "trees":
                ids = table.filter(table.column("recorded")).column("tree_id")
                keys = keys_of(layout.tree_addresses(ids))
            else:
                keys = keys_of(table.column("address"))
            flags = pa.repeat(pa.scalar(part.relation == REQUIRED), len(keys))
            yield pa.record_batch([pa.array(keys), flags], schema=LIVE_SCHEMA)

        def of_nodes(part: Part) -> Batches:
            nodes = _read_placed(folder, part)
            writer = _KeyBatches(None if asked is None else KeySet(asked), layout, slices)
            yield from writer.add(keys_of(layout.node_addresses(nodes.column("node_id"))))
            yield from _keys_of_nodes(place, nodes, index, writer, at_once=at_once)
            yield from writer.finish()

        written = [*self.trees.trees, *self.trees.companions]
        own_files = [engine.rows(written, own, LIVE_SCHEMA)] if written else []
        return engine.union(*own_files, engine.rows(self._tasks, of_nodes, LIVE_SCHEMA))

    def addresses(self, keys: KeyArray) -> Relation:
        """Returns the required addresses that have one of the `keys` (HELD_SCHEMA). An address may
        come more than once. Reads the files of the nodes that have one, or that the index lacks."""
        place, index, at_once = self.place, self.index, self.engine.fetches_at_once
        folder = place.folder

        def of_companions(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            is_asked = pa.array([key in wanted for key in keys_of(table.column("address"))])
            yield from with_node(table.column("address").filter(is_asked), None).to_batches()

        def of_nodes(part: Part) -> Batches:
            known = KeySet(keys)
            nodes = _read_placed(folder, part)
            nodes = nodes.filter(pc.and_(nodes.column("data"), nodes.column("required")))
            chosen = [nodes.filter(pc.is_null(nodes.column("entries")))]
            for rows, lists in by_index_part(index, nodes):
                if lists is not None:
                    has = having(lists, known)[rows.column("row").to_numpy()]
                    rows = rows.filter(pa.array(has))
                chosen.append(rows)
            for node, named in read_node_files(place, pa.concat_tables(chosen), at_once=at_once):
                found = named.filter(pa.array(known.has(keys_of(named))))
                yield from with_node(found.unique(), node[0]).to_batches()

        wanted = frozenset(keys.tolist())
        required = [part for part in self.trees.companions if part.relation == REQUIRED]
        named = [self.engine.rows(required, of_companions, HELD_SCHEMA)] if required else []
        return self.engine.union(*named, self.engine.rows(self._tasks, of_nodes, HELD_SCHEMA))

    def done(self) -> None:
        """Deletes the parts of the index that nothing needs any more. Called when all relations are
        computed."""
        if self.index is not None and self.index.is_tidied:
            replaced = self._tree_nodes.replaced | self._placed.replaced
            self.index.drop_unused(replaced, self._placed.named)


@dataclass(frozen=True, slots=True)
class PlacedNodes:
    """Nodes (PLACED_NODES); the parts of the index that were replaced or could not be read; and
    the parts of keys that parts of nodes name."""

    nodes: pa.Table
    replaced: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


def look_up_nodes(
    nodes: pa.Table, layout: Layout, index: Index | None, *, at_once: int
) -> PlacedNodes:
    """Looks nodes (FLAGGED) up in the index. Only nodes whose data stays are looked for."""
    count = nodes.num_rows
    part_of = np.full(count, -1, np.int32)
    row_of = np.zeros(count, np.int32)
    names: list[str] = []
    keys: list[str] = []
    row_counts: list[int] = []
    uses: list[PartUse] = []
    if index is not None:
        numbers = np.flatnonzero(np.asarray(nodes.column("data")))
        data: Any = pa.array(numbers)
        wanted = WantedRows(nodes.take(data).select(NODES_SCHEMA.names))
        unchanged = index.unchanged()
        there = frozenset(index.names("keys"))
        for name, entries in index.tables("nodes", at_once=at_once):
            if keys_name(entries) not in there:
                continue
            places = known_nodes(entries, wanted, layout, unchanged)
            rows = np.flatnonzero(np.asarray(places.is_valid()))
            found = numbers[places.drop_null().to_numpy()]
            first = part_of[found] < 0
            part_of[found[first]], row_of[found[first]] = len(names), rows[first]
            key_counts = entries.column("key_count").to_numpy()
            size = int(key_counts.sum())
            used = int(key_counts[rows[first]].sum())
            uses.append(PartUse(name, used, size, 8 * size))
            names.append(name)
            keys.append(keys_name(entries))
            row_counts.append(entries.num_rows)
    merged = anew(uses) if index is not None and index.is_tidied else frozenset[str]()
    is_known = part_of >= 0
    places_of: Any = pa.array(part_of, mask=~is_known)
    is_anew = [name in merged for name in names]
    columns: list[Any] = [  # an array for each column that PLACED_NODES has more
        pa.array(names, pa.string()).take(places_of),
        pa.array(keys, pa.string()).take(places_of),
        pa.array(row_of, mask=~is_known),
        pa.array(row_counts, pa.int64()).take(places_of),
        pc.fill_null(pa.array(is_anew, pa.bool_()).take(places_of), pa.scalar(False)),
    ]
    for field, column in zip(list(PLACED_NODES)[len(FLAGGED) :], columns, strict=True):
        nodes = nodes.append_column(field, column)
    unread = frozenset() if index is None else frozenset(index.names("nodes")) - {*names}
    gone = {key for name, key in zip(names, keys, strict=True) if name in merged}
    return PlacedNodes(nodes, merged | unread | gone, frozenset(keys))


def divided(engine: Engine, nodes: pa.Table) -> Iterator[pa.Table]:
    """Divides nodes (PLACED_NODES) among tasks of about the same work. All nodes of one part of the
    index are in one task, as are all that are written anew."""
    if not nodes.num_rows:
        return
    is_known = np.asarray(pc.is_valid(nodes.column("entries")))
    work = nodes.column("entry_count").to_numpy() + np.where(is_known, 1, ROWS_PER_NODE)
    count = engine.tasks_for(int(work.sum()))
    # Nodes without a part are divided into about as many groups of neighbours as there are tasks.
    share = np.cumsum(np.where(is_known, 0, work))
    neighbours = pa.array(share * count // max(int(share[-1]), 1)).cast(pa.string())
    anew_ones: Any = pa.scalar("anew")
    parts = pc.coalesce(nodes.column("entries"), neighbours)
    group_of = numbered(pc.if_else(nodes.column("anew"), anew_ones, parts))
    sizes = np.bincount(group_of, work)
    loads, task_of = np.zeros(count), np.zeros(len(sizes), np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        task_of[group] = np.argmin(loads)
        loads[task_of[group]] += sizes[group]
    for task in range(count):
        yield nodes.filter(pa.array(task_of[group_of] == task))


def _read_placed(folder: RunFolder, part: Part) -> pa.Table:
    return read_part(folder, part.name, part.checksum).select(PLACED_NODES.names)


def by_index_part(
    index: Index | None, nodes: pa.Table
) -> Iterator[tuple[pa.Table, pa.Table | None]]:
    """Yields the nodes of each part of the index, in the order of its rows, with the part of keys,
    or None if that is missing or damaged."""
    for name in texts(pc.unique(nodes.column("entries").drop_null())):
        assert index is not None  # only an index has places
        rows = nodes.filter(pc.equal(nodes.column("entries"), pa.scalar(name, pa.string())))
        keys, count = rows.column("keys")[0].as_py(), rows.column("row_count")[0].as_py()
        assert keys is not None
        assert count is not None
        yield rows.sort_by("row"), index.key_lists(keys, count)


def _keys_of_nodes(
    place: TaskFiles, nodes: pa.Table, index: Index | None, writer: _KeyBatches, *, at_once: int
) -> Batches:
    """Yields batches of LIVE_SCHEMA with the addresses in nodes (PLACED_NODES) whose data stays.
    Adds nodes that were read, and those to write anew, to the index."""
    kept = None if index is None else KeptNodes(index)
    needed = nodes.filter(nodes.column("data"))
    unread = [needed.filter(pc.is_null(needed.column("entries")))]
    for rows, lists in by_index_part(index, needed):
        assert index is not None
        assert kept is not None
        if lists is None:
            # The entries are of no use to anybody.
            if index.is_tidied:
                index.drop(texts(rows.slice(0, 1).column("entries")))
            unread.append(rows)
            continue
        chosen = np.zeros(lists.num_rows, np.bool_)
        chosen[rows.column("row").to_numpy()] = True
        for keys in keys_in(lists, chosen):
            yield from writer.add(keys, required=writer.slices is not None)
        if rows.column("anew")[0].as_py():
            own = rows.select(NODES_SCHEMA.names).to_batches()
            known: Any = lists.column("keys").filter(pa.array(chosen))
            for node, keys_of_node in zip(
                (node for batch in own for node in rows_in(batch)), known, strict=True
            ):
                kept.add(node, keys_of_node.values.to_numpy())
    for node, named in read_node_files(place, pa.concat_tables(unread), at_once=at_once):
        found = keys_of(named)
        yield from writer.add_read(node[0], named, found, required=node[3])
        if kept is not None:
            kept.add(node[:3], once(found))
    if kept is not None:
        kept.finish()


def with_node(addresses: Column, node_id: str | None) -> pa.Table:
    """Returns addresses with the node that has them, as HELD_SCHEMA."""
    nodes: Any = pa.repeat(pa.scalar(node_id, pa.string()), len(addresses))
    columns: list[Any] = [addresses, nodes]
    return pa.table(columns, schema=HELD_SCHEMA)


def read_node_files(
    place: TaskFiles, wanted: pa.Table, *, at_once: int
) -> Iterator[tuple[_Node, pa.StringArray]]:
    """Reads the files of the wanted nodes, and yields each node with its addresses. Raises as
    `node_addresses` does."""
    columns = (wanted.column(name).to_pylist() for name in (*NODES_SCHEMA.names, "required"))
    nodes: list[_Node] = list(zip(*columns, strict=True))

    def address_of(node: _Node) -> str:
        return node_address(place.layout, node[0])

    with closing(fetched(place.storage, nodes, address_of, at_once=at_once)) as files:
        for chosen in _together(files):
            asked = [AskedNode(storage, *node[:3]) for node, storage in chosen]
            for (node, _), found in zip(chosen, read_nodes(place.layout, asked), strict=True):
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
        self._asked = asked
        self.slices = slices
        self._layout = layout
        self._is_checked = bool(checked_kinds_of(layout))
        self._keys: dict[bool, list[KeyArray]] = {True: [], False: []}
        self._count = 0

    def add(self, keys: KeyArray, *, required: bool = False) -> Batches:
        """Adds keys, in any order. Yields batches when there are enough keys."""
        found = keys if self._asked is None else self._asked.among(keys)
        self._keys[required].append(found)
        self._count += len(found)
        if self._count >= KEYS_PER_BATCH:
            yield from self.finish()

    def add_read(
        self, node_id: str, named: pa.StringArray, keys: KeyArray, *, required: bool
    ) -> Batches:
        """Adds the addresses of a node that was read, with their keys. An address that a listing
        leaves out is not required, unless the node may be a damaged one of the listed folders."""
        if self.slices is None or not len(keys) or self._may_be_damaged(node_id):
            yield from self.add(once(keys), required=required)
            return
        left_out = np.asarray(left_out_of(self._layout, named, self.slices))
        yield from self.add(once(keys[left_out]))
        yield from self.add(once(keys[~left_out]), required=required)

    def _may_be_damaged(self, node_id: str) -> bool:
        """Whether a node has no checksum, and lies where a listing looks: a wrong address in it may
        be anywhere, and be written in place of a listed one."""
        if self._is_checked or self.slices is None:
            return False
        address = self._layout.node_addresses(pa.array([node_id], pa.string()))
        left_out = left_out_of(self._layout, cast("pa.StringArray", address), self.slices)
        return not left_out[0].as_py()

    def finish(self) -> Batches:
        """Yields the keys that are left."""
        for required, arrays in self._keys.items():
            if arrays:
                keys = once(np.concatenate(arrays))
                flags = pa.repeat(pa.scalar(required), len(keys))
                yield pa.record_batch([pa.array(keys), flags], schema=LIVE_SCHEMA)
        self._keys, self._count = {True: [], False: []}, 0
