"""Which trees hold an address: from the address index, and from the files of what it lacks.

The index knows addresses by their keys, so that each node that seems to have one is read, too. All
that is missing of the trees and nodes which a run would read is read as a run does it, into a copy
of the index that is thrown away: explaining changes nothing.

Of commits whose data is not kept, only so many nodes are read which the index does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema, texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.engine import Engine
from ebbtide.gc.parts import Part, PartRows, read_rows, split
from ebbtide.gc.relations.index import LOOSE, Family, Index, parts_in
from ebbtide.gc.relations.indexed import IndexedTrees, Unchanged
from ebbtide.gc.relations.keys import KeyArray, keys_of
from ebbtide.gc.relations.mark import Mark, MarkedTrees, write_trees
from ebbtide.gc.relations.nodes import node_addresses, unknown_nodes
from ebbtide.gc.relations.places import Place
from ebbtide.gc.relations.trees import KnownTrees
from ebbtide.storage import Storage

UNKEPT_NODES_MAX: Final = 1_000
"""So many nodes of commits whose data is not kept are read, if the index does not know them."""
UNKEPT_NODES_MAX_ALONE: Final = 3_000
"""So many where no commit's data keeps the address: then one of those is what is looked for."""

_PAIRS_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("node_id", pa.string()),
    ("is_node", pa.bool_()),
)
"""A tree with a node that has the address, or, where it `is_node`, whose file has it."""


@dataclass(frozen=True, slots=True)
class Holders:
    """`data`: the trees with a node that refers to the address; `files`: those that it is the file
    of, or of a node of. Both may name trees that no commit has any more. `unread_nodes` of commits
    whose data is not kept were not looked at, as far as that can be told."""

    data: frozenset[str]
    files: frozenset[str]
    unread_nodes: int


NOTHING: Final = Holders(frozenset(), frozenset(), 0)
"""No tree holds it."""


@dataclass(frozen=True, slots=True)
class _AsEver(Unchanged):
    """What was read of a file is true of what is in it, whatever became of the file: what it has to
    be, its pointer's checksum says."""

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """All of them."""
        del read_at
        return np.ones(len(addresses), np.bool_)


@dataclass(frozen=True, slots=True)
class Recollection(Index):
    """The index, if there is one (`known`), and what it lacks beside it, in `scratch`. One task
    reads all of it."""

    scratch: Storage | None = None
    known: bool = True

    def now(self) -> Recollection:
        """The same, with the parts that are there now."""
        own = parts_in(self.storage) if self.known else ()
        return replace(self, listed=(*own, *parts_in(self._beside.storage)))

    def read(self, name: str) -> pa.Table | None:
        """From either."""
        beside = Index.read(self._beside, name)
        return Index.read(self, name) if beside is None and self.known else beside

    def unchanged(self) -> Unchanged:
        """See `_AsEver`."""
        none = np.empty(0, np.int64)
        return _AsEver(none, none)

    def write(self, family: Family, table: pa.Table, *, bucket: int) -> str | None:
        """Beside it."""
        return Index.write(self._beside, family, table, bucket=bucket)

    @property
    def _beside(self) -> Index:
        assert self.scratch is not None
        return Index(self.scratch, self.folder, (), self.read_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Looks for one address in trees. `place` is where it may write; `index` a Recollection that
    also writes there."""

    engine: Engine
    place: Place
    index: Recollection
    address: str

    def find(self, trees: MarkedTrees, checksums: Mapping[str, str]) -> Holders:
        """The trees that hold the address, of `trees` and of all that the index has.

        Refused, as a run is, by the first tree or node that can't be read.
        """
        key = keys_of(pa.array([self.address], pa.string()))
        known = write_trees(self.place.folder, self.place.prefixed("known"), trees, checksums)
        live = self._mark(self.place, known).live(key).collect()
        is_live = int(key[0]) in live.column("key").to_pylist()
        limit = UNKEPT_NODES_MAX if is_live else UNKEPT_NODES_MAX_ALONE
        unread = self._read_unkept(trees, checksums, key, limit=limit)
        hits = self._hits(int(key[0]))
        pairs = self._pairs(hits, checksums)
        confirmed = self._confirmed(hits, pairs, trees.data - trees.lenient)
        of_node = pairs.filter(pc.is_in(pairs.column("node_id"), value_set=confirmed))
        of_node = of_node.filter(pc.invert(of_node.column("is_node")))
        files = set(texts(pairs.filter(pairs.column("is_node")).column("tree_id")))
        layout = self.place.layout
        files.update(t for t in checksums if layout.tree_address(t) == self.address)
        return Holders(frozenset(texts(of_node.column("tree_id"))), frozenset(files), unread)

    def _mark(self, place: Place, trees: KnownTrees) -> Mark:
        return Mark.of(self.engine, place, trees, index=self.index.now())

    def _read_unkept(
        self, trees: MarkedTrees, checksums: Mapping[str, str], asked: KeyArray, *, limit: int
    ) -> int:
        """Read what the index lacks of the trees whose data is not kept, as far as it can be read:
        damage there stops no run. How many nodes were too many for that, or could not be read."""
        unkept = frozenset(checksums) - trees.data
        if not unkept:
            return 0
        place = replace(self.place, name=f"{self.place.name}-unkept")
        marked = MarkedTrees(recorded=unkept, data=unkept, lenient=unkept)
        count = len(unkept)
        try:
            known = write_trees(place.folder, place.prefixed("known"), marked, checksums)
            mark = self._mark(place, known)
            index = self.index.now()
            found = unknown_nodes(self.engine, place, mark.nodes, index).kept()
            count = found.collect().num_rows
            if count <= limit:
                node_addresses(self.engine, place, found, index, asked).collect()
                count = 0
        except Refused:
            pass
        return count

    def _hits(self, key: int) -> pa.Table:
        """The nodes (NODES_SCHEMA) with that key, of all that are known."""
        index, place = self.index, self.place

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            found = [NODES_SCHEMA.empty_table()]
            for name in task:
                table = index.read(name)
                if table is not None:
                    rows = _rows_with(table.column("keys"), np.int64(key))
                    found.append(table.select(NODES_SCHEMA.names).take(pa.array(rows)))
            answer.wrote(place.folder, place.named(f"hits-{number:05d}"), pa.concat_tables(found))

        parts = self._run("nodes", work)
        return _each_once(read_rows(place.folder, parts, NODES_SCHEMA))

    def _pairs(self, hits: pa.Table, checksums: Mapping[str, str]) -> pa.Table:
        """The trees (_PAIRS_SCHEMA) that have one of these nodes, or one whose file is asked for,
        of all that are known."""
        index, place, address = self.index, self.place, self.address
        hit_ids = hits.column("node_id")

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            found = [_PAIRS_SCHEMA.empty_table()]
            for name in task:
                table = index.read(name)
                if table is not None:
                    trees = IndexedTrees.of(table)
                    found += _pairs_in(trees, hit_ids, place.layout, address, checksums)
            answer.wrote(place.folder, place.named(f"pairs-{number:05d}"), pa.concat_tables(found))

        parts = self._run("trees", work)
        return read_rows(place.folder, parts, _PAIRS_SCHEMA)

    def _run(self, family: Family, work: Any) -> list[Part]:
        names = self.index.now().names(family, LOOSE)
        return self.engine.run(split(names, tasks=self.engine.task_count), work)

    def _confirmed(
        self, hits: pa.Table, pairs: pa.Table, required: frozenset[str]
    ) -> pa.ChunkedArray[Any]:
        """Ids of those nodes that do refer to the address. One that no required tree has, and that
        can't be read any more, is believed to."""
        wanted = pc.is_in(
            pairs.column("tree_id"), value_set=pa.array(sorted(required), pa.string())
        )
        needed = frozenset(texts(pairs.filter(wanted).column("node_id")))
        place, address = self.place, self.address

        def work(number: int, task: Sequence[tuple[str, str, int]], answer: PartRows) -> None:
            found: list[str] = []
            for node_id, checksum, count in task:
                try:
                    has = place.layout.read_node(
                        place.storage, node_id, checksum, entry_count=count
                    )
                except EbbtideError as error:
                    if node_id in needed:
                        answer.failed(error)
                    else:
                        found.append(node_id)
                    continue
                if pc.any(pc.equal(has, pa.scalar(address, pa.string()))).as_py():
                    found.append(node_id)
            table = pa.table({"node_id": pa.array(found, pa.string())})
            answer.wrote(place.folder, place.named(f"confirmed-{number:05d}"), table)

        columns = (hits.column(name).to_pylist() for name in NODES_SCHEMA.names)
        rows = list(zip(*columns, strict=True))
        parts = self.engine.run(split(rows, tasks=self.engine.task_count), work)
        schema = make_schema(("node_id", pa.string()))
        return read_rows(place.folder, parts, schema).column("node_id")


def _rows_with(keys: pa.ChunkedArray[Any], key: np.int64) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows whose lists have a key."""
    places = np.flatnonzero(pc.list_flatten(keys).to_numpy() == key)
    return _lists_of(keys, places)


def _lists_of(
    lists: pa.ChunkedArray[Any], places: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """In which of the lists each of these places lies, when all are put together."""
    ends = np.cumsum(pc.list_value_length(lists).to_numpy())
    return np.searchsorted(ends, places, side="right")


def _each_once(table: pa.Table) -> pa.Table:
    found: pa.Table = table.group_by(NODES_SCHEMA.names, use_threads=False).aggregate([])
    return found


def _pairs_in(
    indexed: IndexedTrees,
    hit_ids: pa.ChunkedArray[Any],
    layout: Layout,
    address: str,
    checksums: Mapping[str, str],
) -> Iterator[pa.Table]:
    """Rows of _PAIRS_SCHEMA of the trees of one part, but for those that should have another
    checksum."""
    node_ids = indexed.nodes.column("node_id")
    ids, tree_ids, found = map(texts, (node_ids, indexed.ids, indexed.checksums))
    hit = pc.is_in(node_ids, value_set=hit_ids).to_numpy(zero_copy_only=False)
    own = np.fromiter((layout.node_address(i) == address for i in ids), np.bool_, len(ids))
    if not (hit.any() or own.any()):
        return
    flat = pc.list_flatten(indexed.numbers).to_numpy()
    for chosen, is_node in ((hit, False), (own, True)):
        places = np.flatnonzero(chosen[flat])
        trees = _lists_of(indexed.numbers, places)
        sound = [checksums.get(tree_ids[tree], "") in ("", found[tree]) for tree in trees]
        keep = np.array(sound, np.bool_)
        places, trees = places[keep], trees[keep]
        columns: list[Any] = [
            [tree_ids[tree] for tree in trees],
            [ids[node] for node in flat[places]],
            [is_node] * len(places),
        ]
        yield pa.table(columns, schema=_PAIRS_SCHEMA)
