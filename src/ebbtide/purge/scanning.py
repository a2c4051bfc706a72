"""Which trees refer to a set of addresses: every tree is looked at once, exactly.

What the address index of the collector knows of a range is enough to say that it has none of the
addresses; where it may have one, and where the index says nothing, the range itself is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.relations.index import LOOSE, Index
from ebbtide.gc.relations.indexed import Unchanged
from ebbtide.gc.relations.inventory import latest_micros
from ebbtide.gc.relations.keys import keys_of
from ebbtide.gc.runs import RunFolder
from ebbtide.model import EPOCH
from ebbtide.purge.addresses import AddressSet
from ebbtide.storage import Storage
from ebbtide.store.content.layout import RANGES_PREFIX
from ebbtide.store.content.ranges import read_range_columns

THREADS: Final = 8
TREES_PER_STEP: Final = 256
EXAMPLES_MAX: Final = 10

_Node = tuple[str, str, int]
"""A row of NODES_SCHEMA."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A range that refers to some of the addresses: by how many entries, the first of their paths,
    and which of the paths that were asked about are among them."""

    entry_count: int
    examples: tuple[str, ...]
    asked: frozenset[str]


@dataclass(slots=True)
class TreeScan:
    """What was found so far. `asked` are paths that are to be told of one by one.

    Trees and ranges never change, so that what was found of one stays true.
    """

    storage: Storage
    layout: Layout
    addresses: AddressSet
    asked: frozenset[str] = frozenset()
    _clean: set[_Node] = field(default_factory=set)
    _hits: dict[_Node, Hit] = field(default_factory=dict)
    _trees: dict[str, tuple[_Node, ...]] = field(default_factory=dict)

    def recall(self, folder: RunFolder) -> None:
        """Take over what the index knows. The collector's lease is held: no run is at the index."""
        index = Index.open(self.storage, folder, (), read_at=EPOCH, writable=False)
        names = index.names("nodes", LOOSE)
        if not names:
            return
        unchanged = _listed(self.storage)
        for name in names:
            table = index.read(name)
            if table is not None:
                self._clean.update(self._clean_nodes(table, unchanged))

    def _clean_nodes(self, table: pa.Table, unchanged: Unchanged) -> Iterator[_Node]:
        """The rows of an index part (KEYED_SCHEMA) that can be trusted and have none of them."""
        addresses = self.layout.node_addresses(table.column("node_id"))
        sound = unchanged.since(addresses, table.column("read_at").to_numpy())
        lists: Any = table.column("keys").combine_chunks()
        found = self.addresses.may_have(pc.list_flatten(lists).to_numpy())
        hit = np.zeros(table.num_rows, np.bool_)
        hit[pc.list_parent_indices(lists).to_numpy()[found]] = True
        rows = table.select(NODES_SCHEMA.names).filter(pa.array(sound & ~hit))
        columns = (rows.column(name).to_pylist() for name in NODES_SCHEMA.names)
        yield from zip(*columns, strict=True)

    def unseen(self, trees: Mapping[str, str]) -> dict[str, str]:
        """Those of the trees (checksums by id) that were not looked at."""
        return {
            tree_id: checksum for tree_id, checksum in trees.items() if tree_id not in self._trees
        }

    def look_at(self, trees: Mapping[str, str]) -> None:
        """Look at trees (checksums by id), with all their ranges, that were not looked at.

        Raises Refused (`missing_tree`, `corrupt_node` and so on): what cannot be read may refer to
        any address.
        """
        remaining = iter(self.unseen(trees).items())
        with ThreadPoolExecutor(THREADS) as pool:
            while step := list(islice(remaining, TREES_PER_STEP)):
                nodes = dict(zip(step, pool.map(self._nodes_of, step), strict=True))
                new = {
                    node
                    for listed in nodes.values()
                    for node in listed
                    if node not in self._clean and node not in self._hits
                }
                self._note(new, pool)
                for (tree_id, _), listed in nodes.items():
                    self._trees[tree_id] = tuple(node for node in listed if node in self._hits)

    def knows(self, tree_id: str) -> bool:
        """Whether a tree was looked at."""
        return tree_id in self._trees

    def hits(self, tree_id: str) -> list[Hit]:
        """Those of the ranges of a tree that was looked at that refer to the addresses."""
        return [self._hits[node] for node in self._trees[tree_id]]

    def _nodes_of(self, tree: tuple[str, str]) -> list[_Node]:
        table = self.layout.read_tree(self.storage, *tree)
        columns = (table.column(name).to_pylist() for name in NODES_SCHEMA.names)
        return list(zip(*columns, strict=True))

    def _note(self, nodes: Collection[_Node], pool: ThreadPoolExecutor) -> None:
        ordered = sorted(nodes)
        for node, hit in zip(ordered, pool.map(self._look_into, ordered), strict=True):
            if hit is None:
                self._clean.add(node)
            else:
                self._hits[node] = hit

    def _look_into(self, node: _Node) -> Hit | None:
        node_id, checksum, entry_count = node
        table = read_range_columns(
            self.storage, node_id, checksum, entry_count=entry_count, columns=["path", "address"]
        )
        found = table.filter(pa.array(self.addresses.has(table.column("address"))))
        if not found.num_rows:
            return None
        return _hit(texts(found.column("path")), self.asked)


def _hit(paths: list[str], asked: frozenset[str]) -> Hit:
    others = (path for path in paths if path not in asked)
    return Hit(len(paths), tuple(islice(others, EXAMPLES_MAX)), asked.intersection(paths))


def _listed(storage: Storage) -> Unchanged:
    """The files of ranges that are there, and when they were written."""
    tables = [
        pa.Table.from_batches([batch]).select(["address", "last_modified"])
        for batch in storage.list(RANGES_PREFIX)
    ]
    if not tables:
        empty = np.empty(0, np.int64)
        return Unchanged(empty, empty)
    table = pa.concat_tables(tables)
    keys = keys_of(table.column("address"))
    order = np.argsort(keys)
    return Unchanged(keys[order], latest_micros(table.column("last_modified"))[order])
