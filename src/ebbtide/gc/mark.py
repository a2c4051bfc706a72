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

import pyarrow as pa

from ebbtide.gc.engine import Engine
from ebbtide.gc.index import Index
from ebbtide.gc.nodes import REQUIRED, distinct_nodes, read_nodes
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows
from ebbtide.gc.places import Place
from ebbtide.gc.trees import NeededTree, read_trees


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
    reached = reach(engine, place, trees=trees, checksums=checksums)
    return mark_reached(engine, place, reached)


def reach(
    engine: Engine,
    place: Place,
    *,
    trees: MarkedTrees,
    checksums: Mapping[str, str],
    index: Index | None = None,
) -> Reached:
    """Read `trees`. Refused by the first thing unread.

    `checksums` maps tree ids to the checksums of their files. With an `index`, what it lacks is
    added to it.
    """
    needed = {
        t: NeededTree(t, checksums[t], data=t in trees.data, required=t not in trees.lenient)
        for t in sorted(trees.recorded)
    }
    answers = read_trees(engine, place, needed, index)
    tree_parts = [part for part in answers if part.group == "trees"]
    nodes = distinct_nodes(engine, place, [part for part in answers if part.group == "nodes"])
    companions = PartRows()
    found = pa.table([pa.array(sorted(trees.companions), pa.string())], schema=ADDRESS_SCHEMA)
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
