"""Finds the trees that refer to a set of addresses. Each tree is read once. The result is exact.

The collector's address index can show that a range has none of the addresses. If the range may have
one, or if the index does not know it, the range itself is read.

If there are many trees, the engine of runs reads them. If there are few, this process reads them,
because Spark takes longer to start. The driver holds each range once, and for each tree only the
ranges that refer to the addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, rows_in, texts
from ebbtide.formats.base import NODES_SCHEMA, Layout, tree_address
from ebbtide.gc.engines.base import Batches, Engine, Query
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.index import WRITTEN_SCHEMA, Index, UnchangedFiles, having, keys_name
from ebbtide.gc.keys import KeySet, keys_of
from ebbtide.gc.parts import split
from ebbtide.gc.prefetch import fetched
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import micros_of
from ebbtide.storage import Storage
from ebbtide.store.content.layout import RANGES_PREFIX, range_address
from ebbtide.store.content.ranges import read_range_columns

FEW_TREES: Final = 1_000
"""Up to this number, trees are read in this process. That takes less time than Spark's start, also
on S3."""
TREES_PER_TASK: Final = 1_000
"""The most trees that a task holds at a time, with their ranges."""
RANGES: Final = Query("SELECT DISTINCT node_id, checksum, entry_count FROM {ranges}", NODES_SCHEMA)
"""The ranges of some trees, each once."""
EXAMPLES_MAX: Final = 10

TREE_RANGES_SCHEMA: Final = pa.schema([pa.field("tree_id", pa.string()), *NODES_SCHEMA])
"""The ranges of trees, one row for each range of a tree."""
HITS_SCHEMA: Final = pa.schema(
    [
        *NODES_SCHEMA,
        *make_schema(
            ("hit_count", pa.int64()),
            ("examples", pa.list_(pa.string())),
            ("asked", pa.list_(pa.string())),
        ),
    ]
)
"""The ranges that refer to some of the addresses, with the fields of `Hit`."""

_Node = tuple[str, str, int]
"""A row of NODES_SCHEMA."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A range that refers to some of the addresses. `entry_count` is the number of its entries that
    do so. `asked` are those of their paths that the scan was asked about. `examples` are the first
    of their other paths."""

    entry_count: int
    examples: tuple[str, ...]
    asked: frozenset[str]


@dataclass(slots=True)
class TreeScan:
    """A scan of trees, with its results so far. `asked` are paths that are reported one by one.
    `engine` returns the engine that reads the trees, if there are many.

    Trees and ranges never change, so that a result stays valid.
    """

    storage: Storage
    layout: Layout
    addresses: frozenset[str]
    asked: frozenset[str] = frozenset()
    engine: Callable[[], Engine] = DuckEngine
    _clean: set[_Node] = field(default_factory=set)
    _hits: dict[_Node, Hit] = field(default_factory=dict)
    _trees: dict[str, tuple[_Node, ...]] = field(default_factory=dict)

    def recall(self, folder: RunFolder, *, now: datetime) -> None:
        """Reads the address index, to find ranges that have none of the addresses. The caller holds
        the collector's lease, so that no run changes the index."""
        index = Index.open(self.storage, folder, (), read_at=now, writable=False)
        if not index.names("nodes"):
            return
        unchanged = _listed(self.storage, micros_of(now))
        known = KeySet(keys_of(pa.array(list(self.addresses), pa.string())))
        for _, entries in index.tables("nodes", at_once=1):
            lists = index.key_lists(keys_name(entries), entries.num_rows)
            if lists is not None:
                addresses = self.layout.node_addresses(entries.column("node_id"))
                sound = unchanged.since(addresses, entries.column("read_at").to_numpy())
                has_none = pa.array(sound & ~having(lists, known))
                self._clean.update(_nodes_in(entries.filter(has_none)))

    def unseen(self, trees: Mapping[str, str]) -> dict[str, str]:
        """Returns the trees (checksums by id) that were not looked at yet."""
        return {
            tree_id: checksum for tree_id, checksum in trees.items() if tree_id not in self._trees
        }

    def look_at(self, trees: Mapping[str, str]) -> None:
        """Looks at trees (checksums by id), with all their ranges, unless they were looked at
        before.

        Raises Refused (`missing_tree`, `corrupt_node` and so on): a file that cannot be read may
        refer to any address. Also raises the errors of `Relation.collect`.
        """
        unseen = list(self.unseen(trees).items())
        engine = self.engine() if len(unseen) > FEW_TREES else DuckEngine()
        step = TREES_PER_TASK * engine.task_count
        try:
            for start in range(0, len(unseen), step):
                self._look_at(engine, unseen[start : start + step])
        finally:
            engine.close()

    def _look_at(self, engine: Engine, trees: Sequence[tuple[str, str]]) -> None:
        read = partial(_read_trees, self.storage, self.layout)
        ranges = engine.rows(split(trees, tasks=engine.task_count), read, TREE_RANGES_SCHEMA).kept()
        found = set(_nodes_in(engine.query(RANGES, ranges=ranges).collect()))
        self._look_into(engine, sorted(found.difference(self._clean, self._hits)))
        seen: dict[str, list[_Node]] = {tree_id: [] for tree_id, _ in trees}
        hits = frozenset(found.intersection(self._hits))
        if hits:
            referring = ranges.map(partial(_of_these, hits), TREE_RANGES_SCHEMA).collect()
            tree_ids = texts(referring.column("tree_id"))
            for tree_id, node in zip(tree_ids, _nodes_in(referring), strict=True):
                seen[tree_id].append(node)
        self._trees.update((tree_id, tuple(nodes)) for tree_id, nodes in seen.items())

    def knows(self, tree_id: str) -> bool:
        """Whether a tree was looked at."""
        return tree_id in self._trees

    def hits(self, tree_id: str) -> list[Hit]:
        """Returns the ranges of a tree that refer to the addresses. The tree must have been looked
        at."""
        return [self._hits[node] for node in self._trees[tree_id]]

    def addresses_in(self, tree_id: str, *, but: frozenset[str]) -> Iterator[str]:
        """Yields those of the addresses to which a tree refers at paths other than `but`. The tree
        must have been looked at. Raises as `read_range_columns` does."""
        for node_id, checksum, entry_count in self._trees[tree_id]:
            table = _referring(
                self.storage, self.addresses, node_id, checksum, entry_count=entry_count
            )
            others = [path not in but for path in texts(table.column("path"))]
            yield from texts(table.column("address").filter(pa.array(others, pa.bool_())))

    def narrowed(self, addresses: frozenset[str]) -> TreeScan:
        """Returns a scan for some of the addresses. Trees that have none of them all are not looked
        at again."""
        none = {tree_id: nodes for tree_id, nodes in self._trees.items() if not nodes}
        return replace(self, addresses=addresses, _clean=set(self._clean), _hits={}, _trees=none)

    def _look_into(self, engine: Engine, nodes: Sequence[_Node]) -> None:
        """Reads ranges, and notes which of them refer to the addresses."""
        if not nodes:
            return
        look = partial(_look_into, self.storage, self.addresses, self.asked)
        rows = engine.rows(split(nodes, tasks=engine.task_count), look, HITS_SCHEMA).collect()
        for batch in rows.to_batches():
            for *node, hit_count, examples, asked in rows_in(batch):
                self._hits[tuple(node)] = Hit(hit_count, tuple(examples), frozenset(asked))
        self._clean.update(node for node in nodes if node not in self._hits)


def _nodes_in(table: pa.Table) -> Iterator[_Node]:
    """Yields the rows of a table that has the columns of NODES_SCHEMA."""
    for batch in table.select(NODES_SCHEMA.names).to_batches():
        yield from rows_in(batch)


def _read_trees(storage: Storage, layout: Layout, trees: Sequence[tuple[str, str]]) -> Batches:
    """Yields the ranges of trees, which are given by id and checksum."""

    def address_of(tree: tuple[str, str]) -> str:
        return tree_address(layout, tree[0])

    with closing(fetched(storage, trees, address_of)) as files:
        for (tree_id, checksum), at_hand in files:
            table = layout.read_tree(at_hand, tree_id, checksum)
            ids = pa.repeat(pa.scalar(tree_id), table.num_rows)
            yield from table.add_column(0, "tree_id", ids).cast(TREE_RANGES_SCHEMA).to_batches()


def _look_into(
    storage: Storage, addresses: frozenset[str], asked: frozenset[str], nodes: Sequence[_Node]
) -> Batches:
    """Yields which of these ranges refer to the addresses (HITS_SCHEMA)."""

    def address_of(node: _Node) -> str:
        return range_address(node[0])

    with closing(fetched(storage, nodes, address_of)) as files:
        for node, at_hand in files:
            node_id, checksum, entry_count = node
            found = _referring(at_hand, addresses, node_id, checksum, entry_count=entry_count)
            if found.num_rows:
                hit = _hit(texts(found.column("path")), asked)
                row = [*node, hit.entry_count, hit.examples, sorted(hit.asked)]
                yield pa.record_batch([[each] for each in row], schema=HITS_SCHEMA)


def _referring(
    storage: Storage, addresses: frozenset[str], node_id: str, checksum: str, *, entry_count: int
) -> pa.Table:
    """Returns path and address of the entries of a range that refer to the addresses."""
    table = read_range_columns(
        storage, node_id, checksum, entry_count=entry_count, columns=["path", "address"]
    )
    is_one = [address in addresses for address in texts(table.column("address"))]
    return table.filter(pa.array(is_one, pa.bool_()))


def _of_these(hits: frozenset[_Node], batches: Batches) -> Batches:
    """Yields the rows of TREE_RANGES_SCHEMA whose ranges are in `hits`."""
    ids = pa.array({node_id for node_id, _, _ in hits}, pa.string())
    for batch in batches:
        likely = batch.filter(pc.is_in(batch.column("node_id"), value_set=ids))
        is_hit = [node in hits for node in _nodes_in(pa.Table.from_batches([likely]))]
        yield likely.filter(pa.array(is_hit, pa.bool_()))


def _hit(paths: list[str], asked: frozenset[str]) -> Hit:
    others = (path for path in paths if path not in asked)
    return Hit(len(paths), tuple(islice(others, EXAMPLES_MAX)), asked.intersection(paths))


def _listed(storage: Storage, now: int) -> UnchangedFiles:
    """Lists the files of ranges, with the time when each was written. `now` is in microseconds."""
    listed = (batch.select(WRITTEN_SCHEMA.names) for batch in storage.list(RANGES_PREFIX))
    batches = [batch.cast(WRITTEN_SCHEMA) for batch in listed]
    return UnchangedFiles.of(pa.Table.from_batches(batches, WRITTEN_SCHEMA), now=now)
