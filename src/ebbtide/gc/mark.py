"""The mark: from commits to trees, to nodes, to the addresses that are live.

Two depths. Of a commit whose data stays, all that its tree refers to is live. Of one whose record
alone stays, its tree and nodes are live as files, and the nodes are not read.

Parts: `<name>/trees-*` (addresses of trees and nodes), `<name>/nodes-*` (node ids still to be
read), `<name>/addresses-*` (what the nodes refer to).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA, Layout
from ebbtide.gc.parts import (
    Part,
    PartRows,
    read_frame,
    run_tasks,
    split,
    task_count,
    write_frame,
)
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

ADDRESS_SCHEMA: Final = make_schema(
    ("address", pa.string()),
)

TREES_PER_TASK_MIN: Final = 16
NODES_PER_TASK_MIN: Final = 64
ROWS_PER_PART: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MarkedTrees:
    """Which trees to read, and how deep: ids of `data` are among those of `recorded`."""

    recorded: frozenset[str]
    data: frozenset[str]


def mark(
    spark: SparkSession,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    trees: MarkedTrees,
    checksums: Mapping[str, str],
) -> list[Part]:
    """Read `trees`, and the nodes of those whose data stays: parts (ADDRESS_SCHEMA) of all that is
    live by them. Refused by the first thing unread.

    `checksums` maps tree ids to the checksums of their files.
    """
    answers = _read_trees(
        spark,
        storage=storage,
        layout=layout,
        folder=folder,
        name=name,
        trees=[(t, checksums[t], t in trees.data) for t in sorted(trees.recorded)],
    )
    node_parts = [part for part in answers if part.group == "nodes"]
    tree_parts = [part for part in answers if part.group == "addresses"]
    address_parts = _read_nodes(
        spark, storage=storage, layout=layout, folder=folder, name=name, node_parts=node_parts
    )
    return tree_parts + address_parts


def _read_trees(
    spark: SparkSession,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    trees: Collection[tuple[str, str, bool]],
) -> list[Part]:
    def work(number: int, task: list[tuple[str, str, bool]], answer: PartRows) -> None:
        addresses: set[str] = set()
        nodes: set[tuple[str, str, int]] = set()
        for tree_id, checksum, data in task:
            try:
                found = layout.read_tree(storage, tree_id, checksum)
            except EbbtideError as error:
                answer.failed(error)
                continue
            node_ids = texts(found.column("node_id"))
            addresses.add(layout.tree_address(tree_id))
            addresses.update(layout.node_address(node_id) for node_id in node_ids)
            if data:
                nodes.update(_rows(found))
        answer.wrote(
            folder,
            f"{name}/trees-{number:05d}.parquet",
            pa.table([pa.array(sorted(addresses), pa.string())], schema=ADDRESS_SCHEMA),
            group="addresses",
        )
        columns = zip(*sorted(nodes), strict=True) if nodes else [()] * len(NODES_SCHEMA)
        answer.wrote(
            folder,
            f"{name}/nodes-{number:05d}.parquet",
            pa.table([list(column) for column in columns], schema=NODES_SCHEMA),
            group="nodes",
        )

    tasks = split(list(trees), tasks=task_count(spark), items_min=TREES_PER_TASK_MIN)
    return run_tasks(spark, tasks, work)


def _read_nodes(
    spark: SparkSession,
    *,
    storage: Storage,
    layout: Layout,
    folder: RunFolder,
    name: str,
    node_parts: list[Part],
) -> list[Part]:
    if not node_parts:
        return []

    def write(partition: int, batches: Iterator[pa.RecordBatch], answer: PartRows) -> None:
        writer = _AddressWriter(f"{name}/addresses-{partition:05d}", folder, answer)
        for batch in batches:
            for node_id, checksum, count in _rows(batch):
                try:
                    writer.add(layout.read_node(storage, node_id, checksum, entry_count=count))
                except EbbtideError as error:
                    answer.failed(error)
        writer.flush()

    nodes = read_frame(spark, folder, node_parts, NODES_SCHEMA)
    upper_bound = sum(part.rows for part in node_parts)
    partitions = max(1, min(task_count(spark), upper_bound // NODES_PER_TASK_MIN))
    distinct = nodes.dropDuplicates().repartition(partitions, F.col("node_id"))
    return write_frame(distinct, write)


def _rows(nodes: pa.Table | pa.RecordBatch) -> Iterator[tuple[str, str, int]]:
    """The rows of NODES_SCHEMA."""
    return zip(*(column.to_pylist() for column in nodes.columns), strict=True)


class _AddressWriter:
    """Gathers addresses into parts of a bounded size, each without repetitions."""

    def __init__(self, stem: str, folder: RunFolder, answer: PartRows) -> None:
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
            group="addresses",
        )
        self._arrays, self._rows, self._parts = [], 0, self._parts + 1
