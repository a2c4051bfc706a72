"""Finds the trees that hold an address, by the address index and by files that the index lacks.

The index has only the keys of addresses. Each node that has the key is therefore read, to be sure.
Trees and nodes that the index lacks are read as in a run. Their entries go to a temporary directory
beside the index: explaining changes nothing.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema, rows_in
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import (
    NODES_SCHEMA,
    AskedNode,
    RepositoryFormat,
    node_address,
    tree_address,
)
from ebbtide.formats.capabilities import Searching, checked_kinds_of, read_nodes
from ebbtide.gc.committed import Mark, MarkedTrees, write_trees
from ebbtide.gc.decisions import trees_of
from ebbtide.gc.engines.base import Batches, Engine
from ebbtide.gc.index import (
    Family,
    Index,
    IndexedTrees,
    UnchangedFiles,
    having,
    keys_name,
    parts_in,
)
from ebbtide.gc.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.parts import Count, PartRows, split
from ebbtide.gc.runs import RunFolder, TaskFiles
from ebbtide.gc.store import micros_of
from ebbtide.retention.decision import Decision, Roots
from ebbtide.storage import open_storage

UNKEPT_NODES_MAX: Final = 1_000
"""The maximum number of nodes that are read for commits whose data is not kept, because the index
lacks these nodes. If there are more, none of them is read."""
UNKEPT_NODES_MAX_ALONE: Final = 3_000
"""This limit applies if no kept commit refers to the address: the user then looks for one of these
commits."""

_PAIRS_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()), ("checksum", pa.string()), ("node_id", pa.string())
)
"""A tree of the index with one of its nodes."""
_Node = tuple[str, str, int]
"""A row of NODES_SCHEMA."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The trees that hold an address.

    `data`: trees with a node that refers to the address. `files`: trees whose own file has the
    address, or a node of which has its file there. Both can name trees that no commit has any more.
    `unread_nodes` is the number of nodes that were not searched; they belong to commits whose data
    is not kept.
    """

    data: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    unread_nodes: int = 0


def find_holders(
    repository: RepositoryFormat, engine: Engine, roots: Roots, decision: Decision, address: str
) -> Holders:
    """Returns the trees that hold the address, among the trees of all commits and of the index.

    Raises Refused as a run does, for the first tree or node that cannot be read.
    """
    if isinstance(repository, Searching):
        return Holders(repository.holding(address))
    with tempfile.TemporaryDirectory(prefix="ebbtide-explain-") as directory:
        folder = RunFolder(open_storage(directory), "work/")
        place = TaskFiles(repository.storage, repository.layout, folder, "kept")
        beside = Index(folder.storage, folder, (), roots.now)
        # A format whose references have no checksum has no index.
        storage = repository.storage if checked_kinds_of(place.layout) else folder.storage
        index = _Recollection(storage, folder, (), roots.now, beside=beside)
        search = _Search(engine, place, index, address, roots.tree_checksums)
        return search.find(trees_of(roots, decision))


class _AllUnchanged(UnchangedFiles):
    """Treats all entries of the index as valid. An entry has the references of the file with its
    checksum, even if that file was changed or deleted since."""

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns true for each address."""
        del read_at
        return np.ones(len(addresses), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recollection(Index):
    """The index, with another one `beside` it that gets the new entries."""

    beside: Index

    def now(self) -> _Recollection:
        """Returns this with the parts that exist now."""
        found = {*parts_in(self.storage), *parts_in(self.beside.storage)}
        return replace(self, listed=tuple(found))

    def read(self, name: str) -> pa.Table | None:
        """Returns the table of a part, or None if the part is missing or damaged."""
        found = self.beside.read(name)
        return Index.read(self, name) if found is None else found

    def readable(self, names: Iterable[str]) -> Iterator[pa.Table]:
        """Yields the tables of those of the parts that can be read."""
        return (table for table in map(self.read, names) if table is not None)

    def unchanged(self) -> UnchangedFiles:
        """Returns an object that treats all entries as valid."""
        none = np.empty(0, np.int64)
        return _AllUnchanged(none, none, micros_of(self.read_at))

    @property
    def is_tidied(self) -> bool:
        """False: explaining changes no part."""
        return False

    def _write(
        self, family: Family, table: pa.Table, *, compression: Literal["zstd"] | None
    ) -> str:
        return self.beside._write(family, table, compression=compression)


@dataclass(frozen=True, slots=True)
class _Search:
    """Searches trees for one address. `place` has the temporary folder that the search may write
    to. `checksums` has the trees of all commits."""

    engine: Engine
    place: TaskFiles
    index: _Recollection
    address: str
    checksums: Mapping[str, str]

    def find(self, trees: MarkedTrees) -> Holders:
        """Returns the trees that hold the address. `trees` are those that stay."""
        key = keys_of(pa.array([self.address], pa.string()))
        live = self._mark(self.place, trees).live(key).collect()
        is_live = int(key[0]) in live.column("key").to_pylist()
        limit = UNKEPT_NODES_MAX if is_live else UNKEPT_NODES_MAX_ALONE
        unread = self._read_unkept(frozenset(self.checksums) - trees.data, key, limit=limit)
        nodes = self._nodes_with(key)
        trees_of_node = self._trees_with({node[0] for node in nodes})
        required = trees.data - trees.lenient
        needed = {node_id for node_id, found in trees_of_node.items() if found & required}
        layout, data, files = self.place.layout, set[str](), set[str]()
        for node_id in self._confirmed(nodes, needed):
            data |= trees_of_node.get(node_id, set())
        for node_id, found in trees_of_node.items():
            files |= found if node_address(layout, node_id) == self.address else set()
        files.update(t for t in self.checksums if tree_address(layout, t) == self.address)
        return Holders(frozenset(data), frozenset(files), unread)

    def _mark(self, place: TaskFiles, trees: MarkedTrees) -> Mark:
        """Returns the mark of `trees`. It adds to the index what the index lacks."""
        known = write_trees(place.folder, place.prefixed("known"), trees, self.checksums)
        return Mark(self.engine, place, known, index=self.index.now())

    def _read_unkept(self, unkept: frozenset[str], key: KeyArray, *, limit: int) -> int:
        """Reads the nodes that the index lacks, for trees whose data is not kept.

        Returns 0 if all were read. If there are more than `limit` nodes, or if one cannot be read,
        returns the number of these nodes. If a tree cannot be read, returns the number of trees.
        Such damage is no error here, since it stops no run.
        """
        count = len(unkept)
        with suppress(Refused):
            marked = MarkedTrees(recorded=unkept, data=unkept, lenient=unkept)
            mark = self._mark(replace(self.place, name="unkept"), marked)
            count = mark.unknown_count
            if count <= limit:
                mark.live(key).collect()  # adds them to the index
                count = 0
        return count

    def _nodes_with(self, key: KeyArray) -> set[_Node]:
        """Returns the nodes in the index that have the key."""
        index = self.index

        def step(names: Sequence[str]) -> Batches:
            for nodes in index.readable(names):
                keys = index.key_lists(keys_name(nodes), nodes.num_rows)
                if keys is not None:
                    has = pa.array(having(keys, KeySet(key)))
                    yield from nodes.select(NODES_SCHEMA.names).filter(has).to_batches()

        return set(self._rows("nodes", step, NODES_SCHEMA))

    def _trees_with(self, node_ids: Collection[str]) -> dict[str, set[str]]:
        """Returns the trees in the index that have one of these nodes, or a node whose file has the
        address, by node. Leaves out trees with another checksum than the tree of a commit."""
        index, layout, address = self.index, self.place.layout, self.address
        wanted = pa.array(sorted(node_ids), pa.string())

        def step(names: Sequence[str]) -> Batches:
            for trees in map(IndexedTrees.of, index.readable(names)):
                ids = trees.nodes.column("node_id").combine_chunks()
                is_file = pc.equal(layout.node_addresses(ids), pa.scalar(address, pa.string()))
                is_wanted = pc.or_(pc.is_in(ids, value_set=wanted), is_file)
                if pc.any(is_wanted).as_py():
                    yield from _pairs_in(trees, ids, is_wanted)

        found: defaultdict[str, set[str]] = defaultdict(set)
        for tree_id, checksum, node_id in self._rows("trees", step, _PAIRS_SCHEMA):
            # The trees of some formats have no checksum.
            if (self.checksums.get(tree_id) or checksum) == checksum:
                found[node_id].add(tree_id)
        return found

    def _rows(
        self, family: Family, step: Callable[[Sequence[str]], Batches], schema: pa.Schema
    ) -> list[tuple[Any, ...]]:
        """Returns the rows that a step yields for the parts of a family of the index."""
        tasks = split(self.index.now().names(family), tasks=self.engine.task_count)
        found = self.engine.rows(tasks, step, schema).collect()
        return [row for batch in found.to_batches() for row in rows_in(batch)]

    def _confirmed(self, nodes: Collection[_Node], needed: Collection[str]) -> list[str]:
        """Returns the ids of the nodes that refer to the address, by their own files.

        If a `needed` node cannot be read, raises Refused. Any other node that cannot be read counts
        as a node that refers to the address.
        """
        place, wanted = self.place, pa.scalar(self.address, pa.string())

        def work(_number: int, task: Sequence[_Node], answer: PartRows) -> None:
            for node in task:
                (named,) = read_nodes(place.layout, [AskedNode(place.storage, *node)])
                has = isinstance(named, EbbtideError) or pc.any(pc.equal(named, wanted)).as_py()
                if isinstance(named, EbbtideError) and node[0] in needed:
                    answer.failed(named)
                elif has:
                    answer.counted(Count(1), of=node[0])

        tasks = split(sorted(nodes), tasks=self.engine.task_count)
        return [each.of for each in self.engine.run(tasks, work).counts]


def _pairs_in(trees: IndexedTrees, ids: Column, is_wanted: Column) -> Batches:
    """Yields the trees of a part with each of their nodes that is wanted (_PAIRS_SCHEMA). `ids` and
    `is_wanted` have a value for each node of the part."""
    numbers = pc.list_flatten(trees.numbers)
    is_chosen = is_wanted.take(numbers)
    of_tree: Any = pc.list_parent_indices(trees.numbers).filter(is_chosen)
    found: list[Any] = [trees.ids.take(of_tree), trees.checksums.take(of_tree)]
    found.append(ids.take(numbers.filter(is_chosen)))
    yield from pa.table(found, schema=_PAIRS_SCHEMA).to_batches()
