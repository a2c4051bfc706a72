"""The mark: from commits to trees, to nodes, to the addresses that are live.

Two depths. Of a commit whose data stays, all that its tree refers to is live. Of one whose record
alone stays, its tree and nodes are live as files, and the nodes are not read. What the address
index knows is not read from its own file again.

Parts: `<name>/trees-*` (addresses of trees and nodes), `<name>/nodes-*` (node ids),
`<name>/addresses-*` or `<name>/keys-*` (what the nodes refer to).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ebbtide.gc.engine import Engine
from ebbtide.gc.index import Index
from ebbtide.gc.nodes import REQUIRED, distinct_nodes, read_nodes
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows
from ebbtide.gc.places import Place
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.trees import TREES_SCHEMA, KnownTrees, read_trees


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
    trees.wrote(folder, f"{prefix}trees.parquet", table, group="trees")
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
    group: str = "companions",
) -> None:
    table = pa.table([sorted(addresses)], schema=ADDRESS_SCHEMA)
    answer.wrote(folder, f"{name}.parquet", table, group=group)


@dataclass(frozen=True, slots=True)
class Reached:
    """`live`: parts (ADDRESS_SCHEMA) of the addresses of trees, nodes and what goes with them; of
    the group REQUIRED where those must be on the storage.
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
    known = write_trees(place.folder, place.prefixed("known"), trees, checksums)
    return mark_reached(engine, place, reach(engine, place, known))


def reach(
    engine: Engine, place: Place, trees: KnownTrees, *, index: Index | None = None
) -> Reached:
    """Read the trees that stay. Refused by the first thing unread. With an `index`, what it lacks
    is added to it."""
    answers = read_trees(engine, place, trees, index)
    tree_parts = [part for part in answers if part.group == "trees"]
    nodes = distinct_nodes(engine, place, [part for part in answers if part.group == "nodes"])
    return Reached(tree_parts + trees.companions, nodes)


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
    live = reached.live + parts
    return Marked(live, [part for part in live if part.group == REQUIRED])
