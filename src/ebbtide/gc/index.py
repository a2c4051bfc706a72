"""The address index: remembers the references of trees and nodes, so that they are read once.

Trees and nodes never change once they are written. An entry of the index is therefore valid while
its checksum is the one that the run asks for. If a file is missing, or was written after the entry
was made, the run reads the file again, and so finds damage.

The index is a folder of Arrow IPC files, its parts, in three families. A part of `trees` has trees
with their nodes. A part of `nodes` has the entries of nodes, and names the part of `keys` that has
the keys of their addresses, row by row. The driver reads the first two, which are small. Tasks read
the third.

The name of a part contains the XXH3-128 of its bytes. A part that is missing, damaged or incomplete
is ignored, and the trees or nodes in it are read again. The hash does not protect against an
attacker: a program that can write to the folder can also compute the name. Parts never change, so
that writers need no coordination. The folder is the only list of parts. Keys are used as they lie
in the file, without decoding: Parquet would take three times as long for the same bytes.

The index stores keys of addresses (`keys`), not addresses. Not for: formats whose nodes have no
checksum.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ebbtide.arrow import (
    Column,
    Numbers,
    counts,
    first_of_each,
    instants,
    make_schema,
    numbered,
    table_of,
    texts,
)
from ebbtide.errors import NotFound
from ebbtide.formats.base import INDEX_PREFIX, NODES_SCHEMA, Layout
from ebbtide.gc.keys import KeyArray, KeySet, keys_of
from ebbtide.gc.parts import Part, read_rows
from ebbtide.gc.prefetch import ahead
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.store import INVENTORY_SCHEMA, latest_micros, micros_of
from ebbtide.storage import Storage

Family = Literal["trees", "nodes", "keys"]

KEYS_PER_PART: Final = 2_000_000
"""The number of keys at which a part is full: some 16 MB."""
SMALL_BYTES: Final = 4_000_000
SMALL_MAX: Final = 16
"""The maximum number of small parts of a family. When there are more, a run merges them."""
PARTS_AHEAD: Final = 2
UNNAMED: Final = timedelta(days=1)
"""How long a part of keys stays that no part of nodes names. Its writer may still be at work."""

TREE_ROWS_SCHEMA: Final = make_schema(
    ("id", pa.string()),
    ("checksum", pa.string()),
    ("entry_count", pa.int64()),
    ("nodes", pa.list_(pa.int32())),
    ("read_at", pa.int64()),
)
"""A part of trees. The first rows are the nodes of these trees, each once: `nodes` and `read_at`
are null there. The other rows are the trees: `nodes` has the row numbers of a tree's nodes, and
`entry_count` is null. `read_at` is the start of the run that read the tree, in microseconds since
1970."""

ENTRIES_SCHEMA: Final = pa.schema(
    [
        *NODES_SCHEMA,
        pa.field("read_at", pa.int64()),
        pa.field("key_count", pa.int64()),
    ]
)
"""A part of nodes. `key_count` is the number of a node's keys, and `read_at` the start of the run
that read the node, in microseconds since 1970. The schema's metadata name the part of keys."""

KEY_LISTS_SCHEMA: Final = make_schema(("keys", pa.list_(pa.int64())))
"""A part of keys. `keys` has the keys of a node's addresses, ascending and each once."""

NODE_ROWS_AT_ONCE: Final = 100_000
_NodeNumbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "trees": TREE_ROWS_SCHEMA,
    "nodes": ENTRIES_SCHEMA,
    "keys": KEY_LISTS_SCHEMA,
}
_KEYS: Final = b"keys"
_NAME: Final = re.compile(rf"({'|'.join(get_args(Family))})-([0-9a-f]{{32}})\.arrow")
WRITTEN_SCHEMA: Final = pa.schema(
    [INVENTORY_SCHEMA.field(name) for name in ("address", "last_modified")]
)


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A file of the index. Its `family` is None if an earlier version of the program wrote it."""

    name: str
    size_bytes: int
    written_at: datetime
    family: Family | None


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one repository, on the repository's storage, for one run. Picklable.

    `pointers` are the parts of the inventory, in the run's `folder`, that list trees and nodes.
    `read_at` is the start of the run by the earliest clock, before this listing. An index that is
    not `writable` is only read. `listed` are the parts that existed when the index was opened.
    """

    storage: Storage
    folder: RunFolder
    pointers: tuple[Part, ...]
    read_at: datetime
    writable: bool = True
    listed: tuple[IndexPart, ...] = field(default=(), compare=False)

    @classmethod
    def open(
        cls,
        storage: Storage,
        folder: RunFolder,
        pointers: Sequence[Part],
        *,
        read_at: datetime,
        writable: bool = True,
    ) -> Index:
        """Opens the index with the parts that exist now."""
        known = tuple(parts_in(storage))
        return cls(storage, folder, tuple(pointers), read_at, writable, known)

    def names(self, family: Family) -> list[str]:
        """Returns the names of the parts of a family, sorted."""
        return sorted(part.name for part in self.listed if part.family == family)

    def read(self, name: str) -> pa.Table | None:
        """Returns the table of a part, or None if the part is missing or damaged."""
        match = _NAME.fullmatch(name)
        try:
            data = self.storage.get(INDEX_PREFIX + name)
        except NotFound:
            return None
        if match is None or xxhash.xxh3_128_hexdigest(data) != match[2]:
            return None
        try:
            table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        except (pa.ArrowException, ValueError):
            return None
        return table if table.schema.equals(_SCHEMAS[match[1]]) else None

    def tables(
        self, family: Family, *, at_once: int
    ) -> Generator[tuple[str, pa.Table], None, None]:
        """Yields name and table of each part of a family that can be read, in order. At most
        PARTS_AHEAD parts are read ahead, even if `at_once` is larger."""
        at_once = min(at_once, PARTS_AHEAD)
        with closing(ahead(self.read, self.names(family), at_once=at_once)) as found:
            yield from ((name, table) for name, table in found if table is not None)

    def key_lists(self, name: str, rows: int) -> pa.Table | None:
        """Returns a part of keys (KEY_LISTS_SCHEMA), or None if it is missing or damaged, or has
        another number of rows than the part of nodes that names it."""
        table = self.read(name)
        return table if table is not None and table.num_rows == rows else None

    def unchanged(self) -> UnchangedFiles:
        """Returns the listed trees and nodes, with the times when they were last written."""
        return _unchanged(self.folder, self.pointers, micros_of(self.read_at))

    def write_trees(self, table: pa.Table) -> None:
        """Adds a part of TREE_ROWS_SCHEMA, if it has rows and the index is writable."""
        if self.writable and table.num_rows:
            self._write("trees", table, compression="zstd")

    def write_nodes(self, nodes: Sequence[tuple[str, str, int]], keys: Sequence[KeyArray]) -> None:
        """Adds nodes (rows of NODES_SCHEMA) with the keys of each, if there are any and the index
        is writable."""
        if not (self.writable and nodes):
            return
        lengths = np.fromiter(map(len, keys), np.int32, len(keys))
        lists: Any = lists_of(np.concatenate([np.empty(0, np.int64), *keys]), lengths)
        # Keys are random bits, so that compression would not make them smaller.
        name = self._write("keys", pa.table([lists], schema=KEY_LISTS_SCHEMA), compression=None)
        read_at = micros_of(self.read_at)
        rows = [(*node, read_at, len(own)) for node, own in zip(nodes, keys, strict=True)]
        entries = table_of(rows, ENTRIES_SCHEMA)
        named = entries.replace_schema_metadata({_KEYS: name.encode()})
        self._write("nodes", named, compression="zstd")

    def _write(
        self, family: Family, table: pa.Table, *, compression: Literal["zstd"] | None
    ) -> str:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        name = f"{family}-{xxhash.xxh3_128_hexdigest(data)}.arrow"
        self.storage.put(INDEX_PREFIX + name, data, durable=False)
        return name

    def drop(self, names: Collection[str]) -> None:
        """Deletes parts."""
        self.storage.delete([INDEX_PREFIX + name for name in sorted(names)])

    @property
    def is_tidied(self) -> bool:
        """Whether this run merges and drops parts. A search with an index beside this one adds
        parts, and does neither."""
        return self.writable

    def drop_unused(self, names: Collection[str], named: Collection[str]) -> None:
        """Deletes the parts of `names`, if they are those that were opened. Also deletes parts of
        an earlier version of the program, and old parts of keys that are not `named` by a part of
        nodes."""
        old = self.read_at - UNNAMED
        going = [
            part
            for part in self.listed
            if part.name in names
            or part.family is None
            or (part.family == "keys" and part.name not in named and part.written_at < old)
        ]
        if going:
            # A merge may have written a part anew with the same content, and so the same name.
            now = frozenset(parts_in(self.storage))
            self.drop([part.name for part in going if part in now])


def keys_name(entries: pa.Table) -> str:
    """Returns the name of the part of keys that belongs to a part of nodes."""
    return (entries.schema.metadata or {}).get(_KEYS, b"").decode(errors="replace")


def parts_in(storage: Storage) -> Iterable[IndexPart]:
    """Yields all parts in the folder, including damaged ones and those of other versions."""
    for batch in storage.list(INDEX_PREFIX):
        columns = [batch.column(name) for name in ("address", "size_bytes", "last_modified")]
        rows = zip(texts(columns[0]), counts(columns[1]), instants(columns[2]), strict=True)
        for address, size, written_at in rows:
            name = address.removeprefix(INDEX_PREFIX)
            match = _NAME.fullmatch(name)
            if match is not None or name.endswith(".arrow"):
                families = [each for each in get_args(Family) if match and each == match[1]]
                yield IndexPart(name, size, written_at, families[0] if families else None)


def anew(parts: Iterable[PartUse]) -> frozenset[str]:
    """Returns the names of the parts whose useful rows should be written again: parts of which
    less than half is in use, and the small parts if there are more than SMALL_MAX."""
    found = {part.name for part in parts if 2 * part.used < part.amount}
    small = {part.name for part in parts if part.size_bytes < SMALL_BYTES} - found
    return frozenset(found | small if len(small) > SMALL_MAX else found)


@dataclass(frozen=True, slots=True)
class PartUse:
    """How much of a part is in use, of its whole amount, in trees or in keys. `size_bytes` is the
    size of a part of trees, or of the keys that belong to a part of nodes."""

    name: str
    used: int
    amount: int
    size_bytes: int


@lru_cache(maxsize=1)
def _unchanged(folder: RunFolder, pointers: tuple[Part, ...], now: int) -> UnchangedFiles:
    """Reads the listed trees and nodes. The result is cached, since trees and nodes use it."""
    return UnchangedFiles.of(read_rows(folder, pointers, WRITTEN_SCHEMA), now=now)


@dataclass(frozen=True, slots=True)
class UnchangedFiles:
    """The files that were listed at `now`. `keys` are those of their addresses, ascending.
    `written` is the latest instant at which each file can have been written. Instants are in
    microseconds since 1970."""

    keys: KeyArray
    written: np.ndarray[Any, np.dtype[np.int64]]
    now: int

    @classmethod
    def of(cls, table: pa.Table, *, now: int) -> UnchangedFiles:
        """Returns the files of a table of WRITTEN_SCHEMA."""
        keys = keys_of(table.column("address"))
        order = np.argsort(keys)
        return cls(keys[order], latest_micros(table.column("last_modified"))[order], now)

    def since(
        self, addresses: Column, read_at: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns for each address whether it was listed, and was last written before `read_at`.

        If `read_at` is after `now`, a clock was ahead. The file may have been written since.
        """
        if not len(self.keys):
            return np.zeros(len(addresses), np.bool_)
        wanted = keys_of(addresses)
        places = np.searchsorted(self.keys, wanted)
        places[places == len(self.keys)] = 0
        found: np.ndarray[Any, np.dtype[np.bool_]] = (self.keys[places] == wanted) & (
            self.written[places] < read_at
        )
        return found & (read_at <= self.now)


class TreeRows:
    """Builds the table of a part of trees."""

    def __init__(self, at_once: int = NODE_ROWS_AT_ONCE) -> None:
        """`at_once`: the number of node rows that are numbered together."""
        self._at_once = at_once
        self._nodes = NODES_SCHEMA.empty_table()
        """The numbered nodes. A node's number is its row here."""
        self._trees: list[tuple[str, str, None, int]] = []  # all columns but `nodes`
        self._lengths: list[int] = []
        self._numbers: list[_NodeNumbers] = []
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self._known: list[pa.Table] = []

    def add(self, tree_id: str, checksum: str, nodes: pa.Table, *, read_at: int) -> None:
        """Adds a tree with its nodes (NODES_SCHEMA)."""
        self._trees.append((tree_id, checksum, None, read_at))
        self._lengths.append(nodes.num_rows)
        self._gathered.append(nodes)
        self._gathered_rows += nodes.num_rows
        if self._gathered_rows >= self._at_once:
            self._number_gathered()

    def add_known(self, trees: IndexedTrees, chosen: Column) -> None:
        """Adds the trees for which `chosen` is true, and their nodes, each once."""
        lists: Any = trees.numbers.filter(chosen)
        of_nodes = pc.list_flatten(lists).to_numpy()
        used, places = np.unique(of_nodes, return_inverse=True)
        numbers = self._numbered(trees.nodes.take(pa.array(used)))[places]
        columns: list[Any] = [
            trees.ids.filter(chosen),
            trees.checksums.filter(chosen),
            pa.nulls(len(lists), pa.int64()),
            lists_of(numbers, pc.list_value_length(lists).to_numpy()),
            pa.array(trees.read_at[np.asarray(chosen)]),
        ]
        self._known.append(pa.table(columns, schema=TREE_ROWS_SCHEMA))

    def _number_gathered(self) -> None:
        self._numbers.append(self._numbered(pa.concat_tables(self._gathered)))
        self._gathered, self._gathered_rows = [], 0

    def _numbered(self, nodes: pa.Table) -> _NodeNumbers:
        """Adds nodes (NODES_SCHEMA) that are new, and returns the number of each node."""
        known = self._nodes.num_rows
        table = pa.concat_tables([self._nodes, nodes])
        numbers = numbered_nodes(table)
        self._nodes = table.filter(pa.array(first_of_each(numbers)))
        return numbers[known:].astype(np.int32)

    def table(self) -> pa.Table:
        """Returns the part as a table of TREE_ROWS_SCHEMA."""
        if self._gathered:
            self._number_gathered()
        nodes = self._nodes.rename_columns(["id", "checksum", "entry_count"])
        for each in (TREE_ROWS_SCHEMA.field("nodes"), TREE_ROWS_SCHEMA.field("read_at")):
            nodes = nodes.append_column(each, pa.nulls(nodes.num_rows, each.type))
        others = pa.schema([each for each in TREE_ROWS_SCHEMA if each.name != "nodes"])
        numbers = np.concatenate([np.empty(0, np.int32), *self._numbers])
        lists = lists_of(numbers, np.array(self._lengths, np.int32))
        read = table_of(self._trees, others).append_column(TREE_ROWS_SCHEMA.field("nodes"), lists)
        tables = [nodes, read.select(TREE_ROWS_SCHEMA.names), *self._known]
        return pa.concat_tables(tables).combine_chunks()


def numbered_nodes(table: pa.Table) -> Numbers:
    """Returns a number for each row of NODES_SCHEMA: equal nodes have equal numbers, from 0 in
    order of first appearance. An id with two checksums counts as two nodes; one of them cannot be
    read."""
    numbers = numbered(table.column("node_id"))
    first = pa.array(np.flatnonzero(first_of_each(numbers))[numbers], pa.int64())
    others = [table.column(name) for name in ("checksum", "entry_count")]
    if all(pc.all(pc.equal(each, each.take(first))).as_py() for each in others):
        return numbers
    for each in others:
        pairs = numbers.astype(np.int64) * table.num_rows + numbered(each)
        numbers = numbered(pa.array(pairs))
    return numbers


@dataclass(frozen=True, slots=True)
class IndexedTrees:
    """A part of trees by columns. `nodes` (NODES_SCHEMA) are the nodes of all trees. `numbers` has
    the row numbers of each tree's nodes, and `read_at` the time when each tree was read."""

    nodes: pa.Table
    ids: pa.ChunkedArray[Any]
    checksums: pa.ChunkedArray[Any]
    numbers: pa.ChunkedArray[Any]
    read_at: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, table: pa.Table) -> IndexedTrees:
        """Splits a table of TREE_ROWS_SCHEMA into nodes and trees."""
        count = table.num_rows - table.column("entry_count").null_count
        nodes = table.slice(0, count).select(["id", "checksum", "entry_count"])
        trees = table.slice(count)
        return cls(
            nodes=nodes.rename_columns(NODES_SCHEMA.names),
            ids=trees.column("id"),
            checksums=trees.column("checksum"),
            numbers=trees.column("nodes"),
            read_at=trees.column("read_at").to_numpy(),
        )

    def matching(
        self, needed: WantedRows, layout: Layout, unchanged: UnchangedFiles
    ) -> pa.Array[Any]:
        """Returns for each tree the row of the needed tree with its id and checksum. Null if there
        is none, or if the tree's file may have changed."""
        sound = unchanged.since(layout.tree_addresses(self.ids), self.read_at)
        return needed.places([self.ids, self.checksums], sound)

    def has(self, chosen: Column) -> pa.Array[Any]:
        """Returns for each of the nodes whether a tree for which `chosen` is true has it."""
        of_tree = pc.list_value_length(self.numbers).to_numpy()
        is_chosen = np.asarray(pc.fill_null(chosen, pa.scalar(False)))
        found = np.zeros(self.nodes.num_rows, np.bool_)
        found[pc.list_flatten(self.numbers).to_numpy()[np.repeat(is_chosen, of_tree)]] = True
        return pa.array(found)


class WantedRows:
    """Trees or nodes to find in many parts, as a table with their ids in the first column. The
    dictionary of the ids is made once; Arrow would hash all ids again for each part."""

    def __init__(self, table: pa.Table) -> None:
        # `take` needs half the time on a single chunk.
        self._columns = table.combine_chunks().columns
        self._places = {name: n for n, name in enumerate(texts(table.column(0)))}

    def places(self, found: Sequence[Column], sound: np.ndarray[Any, Any]) -> pa.Array[Any]:
        """Returns for each row of `found` the wanted row with the same values in all columns. Null
        if there is none, or if the row is not `sound`."""
        numbers = map(self._places.get, texts(found[0]))
        places: Any = pa.array(numbers, pa.int32(), size=len(found[0]))
        same: Any = pa.array(sound)
        for wanted, column in zip(self._columns[1:], found[1:], strict=True):
            same = pc.and_(same, pc.equal(wanted.take(places), column))
        only: Any = pc.if_else(same, places, pa.scalar(None, pa.int32()))
        return only.combine_chunks() if isinstance(only, pa.ChunkedArray) else only


def known_nodes(
    table: pa.Table, wanted: WantedRows, layout: Layout, unchanged: UnchangedFiles
) -> pa.Array[Any]:
    """Returns for each node of `table` (ENTRIES_SCHEMA) the row of the same node among the wanted
    ones (NODES_SCHEMA). Null if the node is not wanted, or if its file may have changed."""
    addresses = layout.node_addresses(table.column("node_id"))
    sound = unchanged.since(addresses, table.column("read_at").to_numpy())
    return wanted.places(table.select(NODES_SCHEMA.names).columns, sound)


def lists_of(
    values: np.ndarray[Any, np.dtype[Any]], lengths: np.ndarray[Any, np.dtype[np.int32]]
) -> pa.ListArray[Any]:
    """Returns the values, divided into lists of these lengths."""
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values))


def keys_in(table: pa.Table, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[KeyArray]:
    """Yields the keys of the chosen rows of a part (KEY_LISTS_SCHEMA), those of neighbouring rows
    together. They are views of the table: a copy would take as long as the search in them."""
    start = 0
    chunks: list[Any] = table.column("keys").chunks  # arrays of lists
    for chunk in chunks:
        offsets, keys = chunk.offsets.to_numpy(), chunk.values.to_numpy()
        padded = np.concatenate(([False], chosen[start : start + len(chunk)], [False]))
        edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield keys[offsets[first] : offsets[end]]
        start += len(chunk)


def having(table: pa.Table, keys: KeySet) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns for each row of a part (KEY_LISTS_SCHEMA) whether it has one of the `keys`."""
    ends = np.cumsum(pc.list_value_length(table.column("keys")).to_numpy())
    found = np.zeros(table.num_rows, np.bool_)
    values: Any = pc.list_flatten(table.column("keys"))
    found[np.searchsorted(ends, keys.places(values.to_numpy()), side="right")] = True
    return found


class KeptNodes:
    """Collects nodes with their keys, and writes them to the index in parts of a bounded size."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._nodes: list[tuple[str, str, int]] = []
        self._keys: list[KeyArray] = []
        self._count = 0

    def add(self, node: tuple[str, str, int], keys: KeyArray) -> None:
        """Adds a node (a row of NODES_SCHEMA) with the keys of its addresses."""
        self._nodes.append(node)
        self._keys.append(keys)
        self._count += len(keys)
        if self._count >= KEYS_PER_PART:
            self.finish()

    def finish(self) -> None:
        """Writes the nodes that are left."""
        self._index.write_nodes(self._nodes, self._keys)
        self._nodes, self._keys, self._count = [], [], 0
