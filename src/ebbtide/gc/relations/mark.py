"""The mark: computes the relation `live`, from trees over nodes to addresses.

There are two depths. If a commit's data stays, its tree, its nodes and all addresses in them are
live. If only its record stays, its tree and nodes are live as files, and the nodes are not read.
Trees and nodes that the address index knows are not read from their files again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ebbtide.gc.engine import Engine
from ebbtide.gc.frames import Batches, Frame
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part
from ebbtide.gc.relations.index import Index
from ebbtide.gc.relations.keys import KeyArray, keys_of
from ebbtide.gc.relations.nodes import LIVE_SCHEMA, addresses_among, node_addresses
from ebbtide.gc.relations.trees import TREES_SCHEMA, KnownTrees, tree_nodes
from ebbtide.gc.runs import RunFolder, TaskFiles

REQUIRED: Final = "required"
"""The group of parts with companions that must be on the storage."""


@dataclass(frozen=True, slots=True)
class MarkedTrees:
    """The trees to read, by their ids, and the depth. The files of `recorded` trees stay; `data`
    are those of them whose data stays too.

    Missing files of `lenient` trees are ignored. `companions` are addresses that are live with the
    trees; the `required` ones of them must be on the storage.
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
    columns: list[Any] = [  # of the schema's types
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


def required_of(live: Frame) -> Frame:
    """Returns the rows of LIVE_SCHEMA for addresses that must be on the storage."""

    def required(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.filter(batch.column("required"))

    return live.map(required, LIVE_SCHEMA)


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of some trees. Its relations are computed again for each use, unless they are
    kept."""

    engine: Engine
    place: TaskFiles
    trees: KnownTrees
    nodes: Frame
    index: Index | None = None

    @classmethod
    def of(
        cls, engine: Engine, place: TaskFiles, trees: KnownTrees, *, index: Index | None = None
    ) -> Mark:
        """Returns the mark of trees that were written. Trees and nodes that the `index` lacks are
        added to it."""
        return cls(engine, place, trees, tree_nodes(engine, place, trees.trees, index), index)

    def live(self, asked: KeyArray | None = None) -> Frame:
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

        of_nodes = node_addresses(engine, place, self.nodes, self.index, asked)
        written = [*self.trees.trees, *self.trees.companions]
        return engine.frame(written, own, LIVE_SCHEMA).union(of_nodes) if written else of_nodes

    def addresses(self, keys: KeyArray) -> Frame:
        """Returns the required addresses (ADDRESS_SCHEMA) that have one of the `keys`. An address
        may come more than once."""
        folder = self.place.folder

        def of_companions(part: Part) -> Batches:
            table = read_part(folder, part.name, part.checksum)
            is_asked = pa.array([key in wanted for key in keys_of(table.column("address"))])
            yield from table.filter(is_asked).select(ADDRESS_SCHEMA.names).to_batches()

        wanted = frozenset(keys.tolist())
        of_nodes = addresses_among(self.engine, self.place, self.nodes, keys)
        required = [part for part in self.trees.companions if part.relation == REQUIRED]
        return self.engine.frame(required, of_companions, ADDRESS_SCHEMA).union(of_nodes)

    def kept(self) -> Mark:
        """Returns the same mark, which computes its nodes only once."""
        return replace(self, nodes=self.nodes.kept())

    def done(self) -> None:
        """Deletes the loose parts of the index whose rows were divided among the buckets. To be
        called when all relations were computed."""
        if self.index is not None and self.index.scattered:
            self.index.drop(self.index.scattered)
