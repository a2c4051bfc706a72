"""The address index: what trees and nodes refer to, read from their own files once and kept.

Neither ever changes once it is written, so that what was read of one stays true for as long as its
checksum is the one that is asked for. One whose file was written since all the same, or is not
there, is read again, so that damage is found.

The index is a folder of Arrow IPC files, its parts, each named by the XXH3-128 of its bytes: one
that is missing, damaged or half written is no part, and what it held is read again. It is no guard
against who writes there on purpose: he could name a part as well, whatever the hash. Nobody changes
a part, so that writers need not know of each other. There is no list of parts but the folder's own.
Keys are read as they lie in the file: Parquet would take three times as long for the same bytes.

Of addresses it keeps keys (`keys`). Not for: formats whose nodes have no checksum.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final, Literal

import pyarrow as pa
import xxhash

from ebbtide.arrow import counts, texts
from ebbtide.errors import NotFound
from ebbtide.formats.base import INDEX_PREFIX
from ebbtide.gc.ahead import ahead
from ebbtide.gc.indexed import KEYED_SCHEMA, TREES_SCHEMA, Unchanged
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

Family = Literal["trees", "nodes"]

KEYS_PER_PART: Final = 2_000_000
"""Some 16 MB."""
PARTS_AHEAD: Final = 2
SMALL_BYTES: Final = 4_000_000
SMALL_MAX: Final = 8
"""How many small parts there may be before they are put together."""
USED: Final = "used "
"""A group that counts, for a part named behind it, how much of it is used (rows) of all that is in
it (bytes)."""

_NAME: Final = re.compile(r"(trees|nodes)-([0-9a-f]{32})\.arrow")


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A file of the index."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one repository, on its own storage, for one run. Picklable.

    `read_at` is when the run began, by the earliest clock, before it listed the files of
    `pointers`, parts of the inventory in its `folder`. An index that is not `writable` is read as
    it is.
    """

    storage: Storage
    folder: RunFolder
    pointers: tuple[Part, ...]
    read_at: datetime
    writable: bool = True

    def parts(self, family: Family) -> list[IndexPart]:
        """The parts that are there, undamaged or not, sorted by name."""
        found: list[IndexPart] = []
        for batch in self.storage.list(INDEX_PREFIX):
            names = texts(batch.column("address"))
            for name, size in zip(names, counts(batch.column("size_bytes")), strict=True):
                found.append(IndexPart(name.removeprefix(INDEX_PREFIX), size))
        return sorted(
            (part for part in found if _family(part.name) == family), key=lambda part: part.name
        )

    def read(self, name: str) -> pa.Table | None:
        """A part's table; None when it is not there, or not what its name says."""
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
        expected = TREES_SCHEMA if match[1] == "trees" else KEYED_SCHEMA
        return table if table.schema.equals(expected) else None

    def tables(self, names: Sequence[str], *, at_once: int) -> Iterator[tuple[str, pa.Table]]:
        """Of these parts those that can be read, in order; `at_once` as for smaller files."""
        for name, table in ahead(self.read, names, at_once=min(at_once, PARTS_AHEAD)):
            if table is not None:
                yield name, table

    def unchanged(self) -> Unchanged:
        """Tells which files were there, and not written since they were read."""
        return _unchanged(self.folder, self.pointers)

    def write(self, family: Family, table: pa.Table) -> str | None:
        """Add a part, if it has rows and the index may be written; its name."""
        if not (self.writable and table.num_rows):
            return None
        sink = pa.BufferOutputStream()
        # Keys are random: nothing would make them smaller.
        compression: Literal["zstd"] | None = "zstd" if family == "trees" else None
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        name = f"{family}-{xxhash.xxh3_128_hexdigest(data)}.arrow"
        self.storage.put(INDEX_PREFIX + name, data, durable=False)
        return name

    def drop(self, names: Collection[str]) -> None:
        """Delete parts."""
        self.storage.delete([INDEX_PREFIX + name for name in sorted(names)])


@lru_cache(maxsize=1)
def _unchanged(folder: RunFolder, pointers: tuple[Part, ...]) -> Unchanged:
    """Kept for the next task of the run: it is the same for all."""
    return Unchanged.read(folder, pointers)


def _family(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def dealt(parts: Sequence[IndexPart], *, tasks: int) -> list[list[str]]:
    """The names of parts, for at most so many tasks that have about as many bytes each."""
    hands = [(0, number, list[str]()) for number in range(min(tasks, len(parts)))]
    for part in sorted(parts, key=lambda part: -part.size_bytes):
        size, number, names = heappop(hands)
        heappush(hands, (size + part.size_bytes, number, [*names, part.name]))
    return [names for _, _, names in sorted(hands, key=lambda hand: hand[1])]


def count_use(answer: PartRows, name: str, used: int, total: int) -> None:
    """Tell the driver how much of a part was of use."""
    answer.counted(used, bytes_total=total, group=USED + name)


def outworn(parts: Sequence[IndexPart], answers: Iterable[Part]) -> list[str]:
    """The names of parts that are better written anew: those that are damaged or more than half of
    no use, and small ones when they are many."""
    used = {part.group.removeprefix(USED): part for part in answers if part.group.startswith(USED)}
    found = [
        part.name
        for part in parts
        if part.name not in used or 2 * used[part.name].rows < used[part.name].bytes_total
    ]
    small = [
        part.name for part in parts if part.size_bytes < SMALL_BYTES and part.name not in found
    ]
    return sorted(found + small) if len(small) > SMALL_MAX else sorted(found)
