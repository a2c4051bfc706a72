"""Nodes of the mark: what they refer to, which is live.

Each node is read once in a run, and with an index once in its life, though many trees have it.
Without an index a node's addresses go into parts as they are, with one they become keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ebbtide.arrow import first_of_each, make_schema
from ebbtide.errors import EbbtideError
from ebbtide.formats.base import NODES_SCHEMA
from ebbtide.gc.ahead import fetched
from ebbtide.gc.candidates import micros_of
from ebbtide.gc.engine import Engine
from ebbtide.gc.index import KEYS_PER_PART, Index, count_use, dealt, outworn
from ebbtide.gc.indexed import (
    KEYED_SCHEMA,
    WantedNodes,
    key_counts,
    keyed,
    keys_in,
    known_nodes,
    numbered_nodes,
)
from ebbtide.gc.keys import KEYS, KeyArray, KeyWriter, Sieve, keys_of, once, rows_of
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import (
    ADDRESS_SCHEMA,
    Part,
    PartRows,
    read_part,
    read_rows,
    read_tables,
    split,
)
from ebbtide.gc.places import Place
from ebbtide.gc.runs import RunFolder

MARKED_NODES: Final = pa.schema([*NODES_SCHEMA, pa.field("required", pa.bool_())])
_Node = tuple[str, str, int, bool]
"""A row of MARKED_NODES."""

REQUIRED: Final = "addresses"
"""The group of parts with what nodes refer to, but for nodes that may be missing."""

MISSING_NODE: Final = "missing_node"
NODES_PER_TASK_MIN: Final = 64
NODES_PER_PART: Final = 500_000
NODES_PER_BUCKET_MIN: Final = 50_000
ADDRESSES_PER_PART: Final = 1_000_000
_FOUND: Final = "found"
"""The group of parts that say which of the nodes, by their number, the index knows."""
_FOUND_SCHEMA: Final = make_schema(("place", pa.int32()))


def distinct_nodes(engine: Engine, place: Place, parts: Sequence[Part]) -> list[Part]:
    """The nodes of all parts (MARKED_NODES) together, each once."""
    if len(parts) < 2:
        return list(parts)
    rows = rows_of(parts)
    # Each task reads all of them.
    count = max(1 + rows // NODES_PER_PART, min(engine.cores, rows // NODES_PER_BUCKET_MIN))

    def work(number: int, bucket: int, answer: PartRows) -> None:
        once_each = each_once(list(_in_bucket(place, parts, bucket, count)))
        name = place.named(f"nodes-all-{number:05d}")
        answer.wrote(place.folder, name, once_each, group="nodes")

    return engine.run(range(count), work)


def _in_bucket(place: Place, parts: Sequence[Part], bucket: int, count: int) -> Iterator[pa.Table]:
    """Of each part the nodes that belong to a bucket, by their ids."""
    for table in read_tables(place.folder, parts, MARKED_NODES):
        if count == 1:
            yield table
        else:
            yield table.filter(pa.array(keys_of(table.column("node_id")) % count == bucket))


def read_nodes(
    engine: Engine,
    place: Place,
    nodes: list[Part],
    index: Index | None,
    asked: list[Part] | None = None,
) -> list[Part]:
    """Parts of what `nodes` (parts of MARKED_NODES) refer to: without an index addresses, of the
    groups REQUIRED and `lenient`; with one keys, of the group KEYS, those `asked` for alone where
    that is given (parts of KEYS_SCHEMA)."""
    if index is None:
        return _read_from_files(engine, place, nodes, None, None)
    recalled = _recall(engine, place, nodes, index, asked)
    found = [part for part in recalled if part.group == _FOUND]
    others = _without(engine, place, nodes, found) if found else nodes
    known = [part for part in recalled if part.group == KEYS]
    return known + _read_from_files(engine, place, others, index, asked)


def unknown_nodes(engine: Engine, place: Place, nodes: list[Part], index: Index) -> list[Part]:
    """Of the nodes (parts of MARKED_NODES) those that the index does not know."""
    found = [part for part in _recall(engine, place, nodes, index, []) if part.group == _FOUND]
    return _without(engine, place, nodes, found) if found else nodes


def _recall(
    engine: Engine, place: Place, nodes: list[Part], index: Index, asked: list[Part] | None
) -> list[Part]:
    """Parts of keys (group KEYS) of the nodes that the index knows, and of the numbers of these
    among all nodes, in the order of the parts (_FOUND)."""
    parts = index.parts("nodes")
    at_once = engine.fetches_at_once

    def work(number: int, task: Sequence[str], answer: PartRows) -> None:
        wanted = WantedNodes(read_rows(place.folder, nodes, NODES_SCHEMA))
        stem = f"{place.name}/keys-{number:05d}-known"
        writer = KeyWriter(stem, place.folder, answer, group=KEYS)
        sieve = _sieve(place.folder, asked)
        found: list[pa.Array[Any]] = []
        unchanged = index.unchanged()
        for name, table in index.tables(task, at_once=at_once):
            places = known_nodes(table, wanted, place.layout, unchanged)
            known = places.is_valid().to_numpy(zero_copy_only=False)
            numbers = key_counts(table)
            count_use(answer, name, int(numbers[known].sum()), int(numbers.sum()))
            for keys in keys_in(table, known, among=sieve):
                writer.add(keys)
            found.append(places.drop_null())
        writer.finish()
        known_table = pa.table([pa.chunked_array(found, pa.int32())], schema=_FOUND_SCHEMA)
        answer.wrote(
            place.folder, place.named(f"found-nodes-{number:05d}"), known_table, group=_FOUND
        )

    # No more tasks than cores: each has to read all nodes.
    answers = engine.run(dealt(parts, tasks=engine.cores), work)
    if index.writable and (worn := outworn(parts, answers)):
        _rewrite(engine, place, index, worn, nodes)
    return [part for part in answers if part.name is not None]


def _sieve(folder: RunFolder, asked: Sequence[Part] | None) -> Sieve | None:
    """Of the keys that are asked for, where any are."""
    return None if asked is None else _sieve_of(folder, tuple(asked))


@lru_cache(maxsize=1)
def _sieve_of(folder: RunFolder, asked: tuple[Part, ...]) -> Sieve:
    """Kept for the next task of the run: it is the same for all."""
    return Sieve.read(folder, asked)


def _rewrite(
    engine: Engine, place: Place, index: Index, names: Sequence[str], nodes: list[Part]
) -> None:
    """Write what is of use in parts of the index anew, and drop them."""
    at_once = engine.fetches_at_once

    def work(_number: int, task: Sequence[str], answer: PartRows) -> None:
        wanted = WantedNodes(read_rows(place.folder, nodes, NODES_SCHEMA))
        tables = [KEYED_SCHEMA.empty_table()]
        unchanged = index.unchanged()
        for _, table in index.tables(task, at_once=at_once):
            known = known_nodes(table, wanted, place.layout, unchanged).is_valid()
            tables.append(table.filter(known))
        written = {index.write("nodes", piece) for piece in _pieces(pa.concat_tables(tables))}
        index.drop(set(task) - written)
        del answer

    engine.run(split(names, tasks=engine.cores), work)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Neighbours of a table of KEYED_SCHEMA, as many as make a part."""
    ends = np.cumsum(key_counts(table))
    start = 0
    while start < table.num_rows:
        before = ends[start - 1] if start else 0
        end = int(np.searchsorted(ends, before + KEYS_PER_PART)) + 1
        yield table.slice(start, end - start)
        start = end


def _without(engine: Engine, place: Place, nodes: list[Part], found: list[Part]) -> list[Part]:
    """The nodes but for those found."""

    def work(number: int, task: tuple[Part, int], answer: PartRows) -> None:
        part, start = task
        assert part.name is not None
        table = read_part(place.folder, part.name, part.checksum)
        places = read_rows(place.folder, found, _FOUND_SCHEMA).column("place").to_numpy()
        is_left = np.ones(start + table.num_rows, np.bool_)
        is_left[places[places < len(is_left)]] = False
        left = table.filter(pa.array(is_left[start:]))
        answer.wrote(place.folder, place.named(f"nodes-new-{number:05d}"), left, group="nodes")

    starts = [0, *accumulate(part.rows for part in nodes)]
    return engine.run(list(zip(nodes, starts, strict=False)), work)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some rows of a part."""

    part: Part
    start: int
    count: int


def _slices(engine: Engine, parts: Sequence[Part]) -> list[_Slice]:
    """All rows of parts, divided among tasks."""
    total = sum(part.rows for part in parts)
    size = max(NODES_PER_TASK_MIN, -(-total // engine.task_count))
    return [_Slice(part, start, size) for part in parts for start in range(0, part.rows, size)]


def _read_from_files(
    engine: Engine, place: Place, nodes: list[Part], index: Index | None, asked: list[Part] | None
) -> list[Part]:
    """As `read_nodes`, from the nodes' own files; adds them to the index."""

    def work(number: int, task: _Slice, answer: PartRows) -> None:
        assert task.part.name is not None
        table = read_part(place.folder, task.part.name, task.part.checksum)
        rows = table.slice(task.start, task.count)
        writer = (
            _Addresses(place, number, answer)
            if index is None
            else _Keys(place, number, answer, index, asked)
        )
        columns = (rows.column(name).to_pylist() for name in MARKED_NODES.names)
        wanted: list[_Node] = list(zip(*columns, strict=True))
        for node, storage in fetched(place.storage, wanted, address_of, at_once=at_once):
            advance(1)
            node_id, checksum, count, required = node
            try:
                found = place.layout.read_node(storage, node_id, checksum, entry_count=count)
                writer.add(node, found)
            except EbbtideError as error:
                if required or error.kind != MISSING_NODE:
                    answer.failed(error)
        writer.finish()

    def address_of(node: _Node) -> str:
        return place.layout.node_address(node[0])

    at_once = engine.fetches_at_once
    engine.meter.begin("nodes", sum(part.rows for part in nodes))
    return engine.run(_slices(engine, nodes), work)


class _Addresses:
    """Gathers addresses into parts of a bounded size, each without repetitions."""

    def __init__(self, place: Place, number: int, answer: PartRows) -> None:
        self._place = place
        self._number = number
        self._answer = answer
        self._gathered: dict[str, list[pa.StringArray]] = {REQUIRED: [], "lenient": []}
        self._parts = 0

    def add(self, node: _Node, addresses: pa.StringArray) -> None:
        """Take what a node refers to."""
        group = REQUIRED if node[3] else "lenient"
        gathered = self._gathered[group]
        gathered.append(addresses)
        if sum(map(len, gathered)) >= ADDRESSES_PER_PART:
            self._flush(group)

    def finish(self) -> None:
        """Write what is left."""
        for group, gathered in self._gathered.items():
            if gathered:
                self._flush(group)

    def _flush(self, group: str) -> None:
        distinct: Any = pa.chunked_array(self._gathered[group], pa.string()).unique()
        table = pa.table([distinct], schema=ADDRESS_SCHEMA)
        name = self._place.named(f"addresses-{self._number:05d}-{self._parts:03d}")
        self._answer.wrote(self._place.folder, name, table, group=group)
        self._gathered[group] = []
        self._parts += 1


class _Keys:
    """Gathers keys into parts, and adds the nodes to the index."""

    def __init__(
        self, place: Place, number: int, answer: PartRows, index: Index, asked: list[Part] | None
    ) -> None:
        stem, sieve = f"{place.name}/keys-{number:05d}", _sieve(place.folder, asked)
        self._writer = KeyWriter(stem, place.folder, answer, group=KEYS, sieve=sieve)
        self._index = index
        self._read_at = micros_of(index.read_at)
        self._nodes: list[tuple[str, str, int]] = []
        self._keys: list[KeyArray] = []
        self._count = 0

    def add(self, node: _Node, addresses: pa.StringArray) -> None:
        """Take what a node refers to."""
        keys = once(keys_of(addresses))
        self._writer.add(keys)
        self._nodes.append(node[:3])
        self._keys.append(keys)
        self._count += len(keys)
        if self._count >= KEYS_PER_PART:
            self._flush()

    def finish(self) -> None:
        """Write what is left."""
        self._writer.finish()
        self._flush()

    def _flush(self) -> None:
        self._index.write("nodes", keyed(self._nodes, self._keys, read_at=self._read_at))
        self._nodes, self._keys, self._count = [], [], 0


def each_once(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of MARKED_NODES, each node once: required where any of its rows is."""
    table = pa.concat_tables([MARKED_NODES.empty_table(), *tables])
    numbers = numbered_nodes(table)
    is_first = first_of_each(numbers)
    required = np.zeros(int(is_first.sum()), np.bool_)
    required[numbers[np.asarray(table.column("required"))]] = True
    once = table.filter(pa.array(is_first)).select(NODES_SCHEMA.names)
    return once.append_column(MARKED_NODES.field("required"), pa.array(required))
