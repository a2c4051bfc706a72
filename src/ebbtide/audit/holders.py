"""Finds the trees that hold an address, by the address index and by files that the index lacks.

The index has only the keys of addresses. Each node that has the key is therefore read, to be sure.
Trees and nodes that the index lacks are read as in a run. Their entries go to a temporary directory
beside the index: explaining changes nothing.

For commits whose data is not kept, the number of nodes to read is limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema, texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.parts import Part, PartRows, read_rows, split
from ebbtide.gc.relations.index import (
    Family,
    Index,
    IndexedTrees,
    UnchangedFiles,
    keys_name,
    parts_in,
)
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.relations.keys import KeyArray, keys_of
from ebbtide.gc.relations.live import Mark, MarkedTrees, write_trees
from ebbtide.gc.relations.trees import KnownTrees
from ebbtide.gc.runs import TaskFiles
from ebbtide.storage import Storage

UNKEPT_NODES_MAX: Final = 1_000
"""The maximum number of nodes that are read for commits whose data is not kept, because the index
lacks these nodes. If there are more, none of them is read."""
UNKEPT_NODES_MAX_ALONE: Final = 3_000
"""This limit applies if no kept commit refers to the address: the user then looks for one of these
commits."""

_PAIRS_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("node_id", pa.string()),
    ("is_node", pa.bool_()),
)
"""A tree with one of its nodes. If `is_node`, the address is the node's own file. Otherwise the
node has the key of the address."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The trees that hold an address.

    `data`: trees with a node that refers to the address. `files`: trees whose own file has the
    address, or a node of which has its file there. Both can name trees that no commit has any more.
    `unread_nodes` is the number of nodes that were not searched; they belong to commits whose data
    is not kept.
    """

    data: frozenset[str]
    files: frozenset[str]
    unread_nodes: int


NOTHING: Final = Holders(frozenset(), frozenset(), 0)
"""No tree holds the address."""


@dataclass(frozen=True, slots=True)
class _AsEver(UnchangedFiles):
    """Treats all entries of the index as valid. An entry has the references of the file with its
    checksum, even if that file was changed or deleted since."""

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns true for each address."""
        del read_at
        return np.ones(len(addresses), np.bool_)


@dataclass(frozen=True, slots=True)
class Recollection(Index):
    """The index, if the format has one (`known`), with new entries in `scratch` beside it."""

    scratch: Storage | None = None
    known: bool = True

    def now(self) -> Recollection:
        """Returns this with the parts that exist now."""
        own = parts_in(self.storage) if self.known else ()
        return replace(self, listed=(*own, *parts_in(self._beside.storage)))

    def read(self, name: str) -> pa.Table | None:
        """Returns the table of a part from `scratch` or from the index; None if it is missing or
        damaged."""
        beside = Index.read(self._beside, name)
        return Index.read(self, name) if beside is None and self.known else beside

    def unchanged(self) -> UnchangedFiles:
        """Returns an object that treats all entries as valid."""
        none = np.empty(0, np.int64)
        return _AsEver(none, none, micros_of(self.read_at))

    def _write(
        self, family: Family, table: pa.Table, *, compression: Literal["zstd"] | None
    ) -> str:
        return Index._write(self._beside, family, table, compression=compression)

    @property
    def is_tidied(self) -> bool:
        """False: explaining changes no part."""
        return False

    @property
    def _beside(self) -> Index:
        assert self.scratch is not None
        return Index(self.scratch, self.folder, (), self.read_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch:
    """Searches trees for one address. `place` has the temporary folder that the search may write
    to."""

    engine: Engine
    place: TaskFiles
    index: Recollection
    address: str

    def find(self, trees: MarkedTrees, checksums: Mapping[str, str]) -> Holders:
        """Returns the trees that hold the address, among `trees` and all trees in the index.

        Raises Refused as a run does, for the first tree or node that cannot be read.
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

    def _mark(self, place: TaskFiles, trees: KnownTrees) -> Mark:
        return Mark(self.engine, place, trees, index=self.index.now())

    def _read_unkept(
        self, trees: MarkedTrees, checksums: Mapping[str, str], asked: KeyArray, *, limit: int
    ) -> int:
        """Reads the nodes that the index lacks, for trees whose data is not kept.

        Returns 0 if all were read. If there are more than `limit` nodes, or if one cannot be read,
        returns the number of these nodes. If a tree cannot be read, returns the number of trees.
        Such damage is no error here, since it stops no run.
        """
        unkept = frozenset(checksums) - trees.data
        if not unkept:
            return 0
        place = replace(self.place, name=f"{self.place.name}-unkept")
        marked = MarkedTrees(recorded=unkept, data=unkept, lenient=unkept)
        count = len(unkept)
        try:
            known = write_trees(place.folder, place.prefixed("known"), marked, checksums)
            mark = self._mark(place, known)
            count = mark.unknown_count
            if count <= limit:
                mark.live(asked).collect()  # adds them to the index
                count = 0
        except Refused:
            pass
        return count

    def _hits(self, key: int) -> pa.Table:
        """Returns the nodes in the index that have the key (NODES_SCHEMA), each once."""
        index, place = self.index, self.place

        def work(number: int, task: Sequence[str], answer: PartRows) -> None:
            found = [NODES_SCHEMA.empty_table()]
            for name in task:
                entries = index.read(name)
                lists = entries and index.key_lists(keys_name(entries), entries.num_rows)
                if entries is not None and lists is not None:
                    rows = _rows_with(lists.column("keys"), np.int64(key))
                    found.append(entries.select(NODES_SCHEMA.names).take(pa.array(rows)))
            answer.wrote(place.folder, place.named(f"hits-{number:05d}"), pa.concat_tables(found))

        parts = self._run("nodes", work)
        return _each_once(read_rows(place.folder, parts, NODES_SCHEMA))

    def _pairs(self, hits: pa.Table, checksums: Mapping[str, str]) -> pa.Table:
        """Returns the trees in the index that have one of the nodes in `hits`, or a node whose file
        has the address (_PAIRS_SCHEMA)."""
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
        names = self.index.now().names(family)
        return self.engine.run(split(names, tasks=self.engine.task_count), work).parts

    def _confirmed(
        self, hits: pa.Table, pairs: pa.Table, required: frozenset[str]
    ) -> pa.ChunkedArray[Any]:
        """Returns the ids of the nodes that refer to the address, by their own files.

        If a node of a required tree cannot be read, raises Refused. Any other node that cannot be
        read counts as a node that refers to the address.
        """
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
        parts = self.engine.run(split(rows, tasks=self.engine.task_count), work).parts
        schema = make_schema(("node_id", pa.string()))
        return read_rows(place.folder, parts, schema).column("node_id")


def _rows_with(keys: pa.ChunkedArray[Any], key: np.int64) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the numbers of the rows whose lists have the key."""
    places = np.flatnonzero(pc.list_flatten(keys).to_numpy() == key)
    return _lists_of(keys, places)


def _lists_of(
    lists: pa.ChunkedArray[Any], places: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns for each place in the flattened lists the number of the list that has it."""
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
    """Yields rows of _PAIRS_SCHEMA for the trees of one part, without trees whose checksum is not
    the one in `checksums`."""
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
