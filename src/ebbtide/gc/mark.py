"""The mark: from commits to trees, to nodes, to the addresses that are live.

Two depths. Of a commit whose data stays, all that its tree refers to is live. Of one whose record
alone stays, its tree and nodes are live as files, and the nodes are not read.

Parts: `<name>/trees-*` (addresses of trees and nodes), `<name>/companions-*` (of what goes with
them), `<name>/nodes-*` (node ids still to be read), `<name>/addresses-*` (what the nodes refer to).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.engine import Engine
from ebbtide.gc.parts import Part, PartRows, read_rows, split
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

ADDRESS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
)
_MARKED_NODES: Final = pa.schema([*NODES_SCHEMA, pa.field("required", pa.bool_())])
_Node = tuple[str, str, int, bool]
"""A row of _MARKED_NODES."""

REQUIRED: Final = "addresses"
"""The group of parts whose addresses must all be there."""

MISSING_TREE: Final = "missing_tree"
MISSING_NODE: Final = "missing_node"
TREES_PER_TASK_MIN: Final = 16
NODES_PER_TASK_MIN: Final = 64
ROWS_PER_PART: Final = 1_000_000


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
class Marked:
    """`live`: parts (ADDRESS_SCHEMA) of all that is live; those of the group REQUIRED have what
    nodes refer to, but for those of lenient trees alone. `nodes`: parts (NODES_SCHEMA and more) of
    the nodes that were read, once for each task that met them."""

    live: list[Part]
    nodes: list[Part]


def mark(
    engine: Engine,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    trees: MarkedTrees,
    checksums: Mapping[str, str],
) -> Marked:
    """Read `trees`, and the nodes of those whose data stays. Refused by the first thing unread.

    `checksums` maps tree ids to the checksums of their files.
    """
    answers = _read_trees(
        engine,
        storage=storage,
        layout=layout,
        folder=folder,
        name=name,
        trees=[
            _Tree(t, checksums[t], data=t in trees.data, required=t not in trees.lenient)
            for t in sorted(trees.recorded)
        ],
    )
    node_parts = [part for part in answers if part.group == "nodes"]
    tree_parts = [part for part in answers if part.group == "trees"]
    address_parts = _read_nodes(
        engine, storage=storage, layout=layout, folder=folder, name=name, node_parts=node_parts
    )
    companions = PartRows()
    found = pa.table([pa.array(sorted(trees.companions), pa.string())], schema=ADDRESS_SCHEMA)
    companions.wrote(folder, f"{name}/companions-00000.parquet", found, group="companions")
    return Marked(tree_parts + companions.parts() + address_parts, node_parts)


@dataclass(frozen=True, slots=True)
class _Tree:
    tree_id: str
    checksum: str
    data: bool
    required: bool


def _read_trees(
    engine: Engine,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    trees: Collection[_Tree],
) -> list[Part]:
    def work(number: int, task: list[_Tree], answer: PartRows) -> None:
        addresses: set[str] = set()
        nodes: set[tuple[str, str, int, bool]] = set()
        for tree in task:
            try:
                found = layout.read_tree(storage, tree.tree_id, tree.checksum)
            except EbbtideError as error:
                if tree.required or error.kind != MISSING_TREE:
                    answer.failed(error)
                continue
            node_ids = texts(found.column("node_id"))
            addresses.add(layout.tree_address(tree.tree_id))
            addresses.update(layout.node_address(node_id) for node_id in node_ids)
            if tree.data:
                required = pa.array([tree.required] * len(node_ids))
                nodes.update(_rows(found.append_column("required", required)))
        answer.wrote(
            folder,
            f"{name}/trees-{number:05d}.parquet",
            pa.table([pa.array(sorted(addresses), pa.string())], schema=ADDRESS_SCHEMA),
            group="trees",
        )
        columns = zip(*sorted(nodes), strict=True) if nodes else [()] * len(_MARKED_NODES)
        answer.wrote(
            folder,
            f"{name}/nodes-{number:05d}.parquet",
            pa.table([list(column) for column in columns], schema=_MARKED_NODES),
            group="nodes",
        )

    tasks = split(list(trees), tasks=engine.task_count, items_min=TREES_PER_TASK_MIN)
    return engine.run(tasks, work)


def _read_nodes(
    engine: Engine,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    node_parts: list[Part],
) -> list[Part]:
    """Read each node once, though many trees refer to it."""
    if not node_parts:
        return []

    def work(number: int, nodes: Iterable[_Node], answer: PartRows) -> None:
        stem = f"{name}/addresses-{number:05d}"
        writers = {
            True: _AddressWriter(stem, folder, answer, group=REQUIRED),
            False: _AddressWriter(f"{stem}-lenient", folder, answer, group="lenient"),
        }
        for node_id, checksum, count, required in nodes:
            try:
                found = layout.read_node(storage, node_id, checksum, entry_count=count)
                writers[required].add(found)
            except EbbtideError as error:
                if required or error.kind != MISSING_NODE:
                    answer.failed(error)
        for writer in writers.values():
            writer.flush()

    if engine.holds(node_parts):
        found = read_rows(folder, node_parts, _MARKED_NODES)
        once = found.group_by(NODES_SCHEMA.names).aggregate([("required", "any")])
        nodes = sorted(_rows(once.rename_columns(_MARKED_NODES.names)))
        tasks = split(nodes, tasks=engine.task_count, items_min=NODES_PER_TASK_MIN)
        return engine.run(tasks, work)

    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    from ebbtide.gc.spark import read_frame, write_frame

    def write(partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        work(partition, (row for batch in batches for row in _rows(batch)), answer)

    frame = read_frame(engine.spark(), folder, node_parts, _MARKED_NODES)
    distinct = frame.groupBy(*NODES_SCHEMA.names).agg(F.max("required").alias("required"))
    return write_frame(distinct.repartition(engine.task_count, F.col("node_id")), write)


def _rows(nodes: pa.Table | pa.RecordBatch) -> Iterator[_Node]:
    """The rows of _MARKED_NODES."""
    return zip(*(nodes.column(name).to_pylist() for name in _MARKED_NODES.names), strict=True)


class _AddressWriter:
    """Gathers addresses into parts of a bounded size, each without repetitions."""

    def __init__(self, stem: str, folder: RunFolder, answer: PartRows, *, group: str) -> None:
        self._group = group
        self._stem = stem
        self._folder = folder
        self._answer = answer
        self._arrays: list[pa.StringArray] = []
        self._rows = 0
        self._parts = 0

    def add(self, addresses: pa.StringArray) -> None:
        self._arrays.append(addresses)
        self._rows += len(addresses)
        if self._rows >= ROWS_PER_PART:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        distinct = pa.chunked_array(self._arrays, pa.string()).unique()
        self._answer.wrote(
            self._folder,
            f"{self._stem}-{self._parts:03d}.parquet",
            pa.table([distinct], schema=ADDRESS_SCHEMA),
            group=self._group,
        )
        self._arrays, self._rows, self._parts = [], 0, self._parts + 1
