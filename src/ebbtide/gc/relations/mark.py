"""The mark: the relation `live`, from trees over nodes to the addresses that stay.

Two depths. Of a commit whose data stays, all that its tree refers to is live. Of one whose record
alone stays, its tree and nodes are live as files, and the nodes are not read. What the address
index knows is not read from its own file again.
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
from ebbtide.gc.relations.places import Place
from ebbtide.gc.relations.trees import TREES_SCHEMA, KnownTrees, tree_nodes
from ebbtide.gc.runs import RunFolder

REQUIRED: Final = "required"
"""The group of parts of companions that must be on the storage."""


@dataclass(frozen=True, slots=True)
class MarkedTrees:
    """Which trees to read, and how deep: ids of `data` are among those of `recorded`.

    Of trees that are `lenient`, what is missing is passed over. `companions` are addresses that
    are live with the trees; those that are `required` must be on the storage.
    """

    recorded: frozenset[str]
    data: frozenset[str]
    lenient: frozenset[str] = frozenset()
    companions: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()


def write_trees(
    folder: RunFolder, prefix: str, marked: MarkedTrees, checksums: Mapping[str, str]
) -> KnownTrees:
    """Write all trees that have a checksum, those that are marked among them, as parts whose names
    begin with `prefix`."""
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
    if required:  # most formats have none, and need not look for any
        _write_addresses(folder, f"{prefix}required", companions, required, group=REQUIRED)
    return KnownTrees(trees.parts(), companions.parts())


def _write_addresses(
    folder: RunFolder,
    name: str,
    answer: PartRows,
    addresses: Iterable[str],
    *,
    group: str = "",
) -> None:
    table = pa.table([sorted(addresses)], schema=ADDRESS_SCHEMA)
    answer.wrote(folder, f"{name}.parquet", table, relation="live", group=group)


def required_of(live: Frame) -> Frame:
    """Of LIVE_SCHEMA the rows of what must be on the storage."""

    def required(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.filter(batch.column("required"))

    return live.map(required, LIVE_SCHEMA)


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of some trees. Its relations are made anew whenever they are asked for, but for
    those that are kept."""

    engine: Engine
    place: Place
    trees: KnownTrees
    nodes: Frame
    index: Index | None = None

    @classmethod
    def of(
        cls, engine: Engine, place: Place, trees: KnownTrees, *, index: Index | None = None
    ) -> Mark:
        """Of trees that were written. With an `index`, what that lacks is added to it."""
        return cls(engine, place, trees, tree_nodes(engine, place, trees.trees, index), index)

    def live(self, asked: KeyArray | None = None) -> Frame:
        """LIVE_SCHEMA. Where some keys are `asked` for, others may be left out. Raises as
        `tree_nodes` and `node_addresses`."""
        engine, place = self.engine, self.place
        folder, layout = place.folder, place.layout

        def own(part: Part) -> Batches:
            assert part.name is not None
            table = read_part(folder, part.name, part.checksum)
            if part.relation == "trees":
                ids = table.filter(table.column("recorded")).column("tree_id")
                keys = keys_of(layout.tree_addresses(ids))
            else:
                keys = keys_of(table.column("address"))
            flags = pa.repeat(pa.scalar(part.group == REQUIRED), len(keys))
            yield pa.record_batch([pa.array(keys), flags], schema=LIVE_SCHEMA)

        of_nodes = node_addresses(engine, place, self.nodes, self.index, asked)
        written = [*self.trees.trees, *self.trees.companions]
        return engine.frame(written, own, LIVE_SCHEMA).union(of_nodes) if written else of_nodes

    def addresses(self, keys: KeyArray) -> Frame:
        """The addresses (ADDRESS_SCHEMA) that have one of some required keys, some of them twice
        perhaps."""
        folder = self.place.folder

        def of_companions(part: Part) -> Batches:
            assert part.name is not None
            table = read_part(folder, part.name, part.checksum)
            is_asked = pa.array([key in wanted for key in keys_of(table.column("address"))])
            yield from table.filter(is_asked).select(ADDRESS_SCHEMA.names).to_batches()

        wanted = frozenset(keys.tolist())
        of_nodes = addresses_among(self.engine, self.place, self.nodes, keys)
        required = [part for part in self.trees.companions if part.group == REQUIRED]
        return self.engine.frame(required, of_companions, ADDRESS_SCHEMA).union(of_nodes)

    def kept(self) -> Mark:
        """The same, whose nodes are found once."""
        return replace(self, nodes=self.nodes.kept())

    def done(self) -> None:
        """Whatever was asked for is read: what the index has in buckets is dropped from where it
        was in none."""
        if self.index is not None and self.index.scattered:
            self.index.drop(self.index.scattered)
