"""The mark: from commits to trees, to nodes, to the addresses that are live.

Two depths. Of a commit whose data stays, all that its tree refers to is live. Of one whose record
alone stays, its tree and nodes are live as files, and the nodes are not read. What the address
index knows is not read from its own file again.

Parts: `<name>/trees-*` (addresses of trees and nodes), `<name>/companions-*` (of what goes with
them), `<name>/nodes-*` (node ids), `<name>/addresses-*` or `<name>/keys-*` (what the nodes refer
to).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.gc.engine import Engine
from ebbtide.gc.index import Index
from ebbtide.gc.nodes import REQUIRED, distinct_nodes, read_nodes
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows
from ebbtide.gc.places import Place
from ebbtide.gc.trees import NEEDED_SCHEMA, read_trees

TREES_SCHEMA: Final = make_schema(
    ("tree_id", pa.string()),
    ("checksum", pa.string()),
    ("recorded", pa.bool_()),
    ("data", pa.bool_()),
    ("required", pa.bool_()),
)
"""A tree, the checksum of its file, whether it stays, whether its data does, and whether it may not
be missing."""


@dataclass(frozen=True, slots=True)
class MarkedTrees:
    """Which trees to read, and how deep: ids of `data` are among those of `recorded`.

    Of trees that are `lenient`, what is missing is passed over. `companions` are addresses that
    are live with the trees.
    """

    recorded: frozenset[str]
    data: frozenset[str]
    lenient: frozenset[str] = frozenset()
    companions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """Trees with their checksums, and which of them to read, held small: a table (TREES_SCHEMA) of
    all, and the `companions` of those that stay."""

    table: pa.Table
    companions: pa.Array[Any]

    @classmethod
    def of(cls, marked: MarkedTrees, checksums: Mapping[str, str]) -> KnownTrees:
        """Trees of which all have a checksum."""
        ids = sorted(checksums)
        assert marked.recorded <= checksums.keys()
        columns: list[Any] = [  # of the schema's types
            ids,
            [checksums[tree_id] for tree_id in ids],
            [tree_id in marked.recorded for tree_id in ids],
            [tree_id in marked.data for tree_id in ids],
            [tree_id not in marked.lenient for tree_id in ids],
        ]
        companions = pa.array(sorted(marked.companions), pa.string())
        return cls(pa.table(columns, schema=TREES_SCHEMA), companions)

    @property
    def needed(self) -> pa.Table:
        """Those to read (NEEDED_SCHEMA)."""
        return self.table.filter(self.table.column("recorded")).select(NEEDED_SCHEMA.names)

    @property
    def data(self) -> frozenset[str]:
        """Those whose data stays."""
        return frozenset(texts(self.table.column("tree_id").filter(self.table.column("data"))))

    @property
    def checksums(self) -> dict[str, str]:
        """Checksums by the trees' ids."""
        columns = (texts(self.table.column(name)) for name in ("tree_id", "checksum"))
        return dict(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Reached:
    """`live`: parts (ADDRESS_SCHEMA) of the addresses of trees, nodes and what goes with them.
    `nodes`: parts (NODES_SCHEMA and more) of the nodes whose addresses are live, each once."""

    live: list[Part]
    nodes: list[Part]


@dataclass(frozen=True, slots=True)
class Marked:
    """`live`: parts of all that is live, of addresses (ADDRESS_SCHEMA) or keys (KEYS_SCHEMA).
    `required`: those of them whose addresses must be on the storage, of formats without checksums.
    """

    live: list[Part]
    required: list[Part]


def mark(
    engine: Engine, place: Place, *, trees: MarkedTrees, checksums: Mapping[str, str]
) -> Marked:
    """Read `trees`, and the nodes of those whose data stays, from their own files. Raises as the
    two steps that it consists of."""
    reached = reach(engine, place, KnownTrees.of(trees, checksums))
    return mark_reached(engine, place, reached)


def reach(
    engine: Engine, place: Place, trees: KnownTrees, *, index: Index | None = None
) -> Reached:
    """Read the trees that stay. Refused by the first thing unread. With an `index`, what it lacks
    is added to it."""
    answers = read_trees(engine, place, trees.needed, index)
    tree_parts = [part for part in answers if part.group == "trees"]
    nodes = distinct_nodes(engine, place, [part for part in answers if part.group == "nodes"])
    companions = PartRows()
    found = pa.table([trees.companions], schema=ADDRESS_SCHEMA)
    companions.wrote(place.folder, place.named("companions-00000"), found, group="companions")
    return Reached(tree_parts + companions.parts(), nodes)


def mark_reached(
    engine: Engine,
    place: Place,
    reached: Reached,
    *,
    index: Index | None = None,
    asked: list[Part] | None = None,
) -> Marked:
    """Read the nodes of what was reached. Refused by the first thing unread.

    With an `index`, what it lacks is added to it, and what the nodes refer to are keys: those that
    are `asked` for (parts of KEYS_SCHEMA), if anything is.
    """
    parts = read_nodes(engine, place, reached.nodes, index, asked)
    required = [part for part in parts if part.group == REQUIRED]
    return Marked(reached.live + parts, required)
