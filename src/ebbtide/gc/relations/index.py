"""The address index: remembers the references of trees and nodes, so that they are read once.

Trees and nodes never change once they are written. An entry of the index is therefore valid while
its checksum is the one that the run asks for. If a file is missing, or was written after the entry
was made, the run reads the file again, and so finds damage.

The index is a folder of Arrow IPC files, its parts. The name of a part contains the XXH3-128 of its
bytes. A part that is missing, damaged or incomplete is ignored, and the trees or nodes in it are
read again. The hash does not protect against an attacker: a program that can write to the folder
can also compute the name. Parts never change, so that writers need no coordination. The folder is
the only list of parts. Keys are used as they lie in the file, without decoding: Parquet would take
three times as long for the same bytes.

A run over many trees and nodes divides them by their ids into BUCKETS. A task reads the parts of
its buckets, and the loose parts, which have ids of any bucket (LOOSE). A run over few trees and
nodes is one task: it reads all parts, and writes loose ones. When there are many or large loose
parts, the next run over many trees and nodes divides them among the buckets.

The index stores keys of addresses (`keys`), not addresses. Not for: formats whose nodes have no
checksum.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import xxhash

from ebbtide.arrow import Column, counts, texts
from ebbtide.errors import NotFound
from ebbtide.formats.base import INDEX_PREFIX
from ebbtide.gc.parts import Part
from ebbtide.gc.prefetching import ahead
from ebbtide.gc.relations.indexed import KEYED_SCHEMA, TREES_SCHEMA, UnchangedFiles
from ebbtide.gc.relations.inventory import micros_of
from ebbtide.gc.relations.keys import keys_of
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

Family = Literal["trees", "nodes"]
FAMILIES: Final[tuple[Family, ...]] = ("trees", "nodes")

BUCKETS: Final = 32
LOOSE: Final = -1
MANY_POINTERS: Final = 4_000
"""A run divides trees and nodes into buckets if there are at least this many of them."""
KEYS_PER_PART: Final = 2_000_000
"""The number of keys at which a part is full: some 16 MB."""
PARTS_AHEAD: Final = 2
SMALL_BYTES: Final = 4_000_000
SMALL_MAX: Final = 8
"""The maximum number of small parts in a bucket. When there are more, a run merges them."""

_NAME: Final = re.compile(r"(trees|nodes)-(?:([0-9a-f]{2})-)?([0-9a-f]{32})\.arrow")


def bucket_of(ids: Column) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns the bucket of each id."""
    return (keys_of(ids).view(np.uint64) % np.uint64(BUCKETS)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A file of the index. Its `bucket` is LOOSE if it has ids of any bucket."""

    name: str
    size_bytes: int
    family: Family
    bucket: int


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

    @property
    def is_divided(self) -> bool:
        """Whether the storage has so many trees and nodes that they are divided among tasks."""
        return sum(part.rows for part in self.pointers) >= MANY_POINTERS

    def names(self, family: Family, bucket: int) -> list[str]:
        """Returns the names of the parts that may have ids of a bucket, sorted. For LOOSE these are
        all parts of the family."""
        return sorted(
            part.name
            for part in self.listed
            if part.family == family and (bucket == LOOSE or part.bucket in (bucket, LOOSE))
        )

    def read(self, name: str) -> pa.Table | None:
        """Returns the table of a part, or None if the part is missing or damaged."""
        match = _NAME.fullmatch(name)
        try:
            data = self.storage.get(INDEX_PREFIX + name)
        except NotFound:
            return None
        if match is None or xxhash.xxh3_128_hexdigest(data) != match[3]:
            return None
        try:
            table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        except (pa.ArrowException, ValueError):
            return None
        expected = TREES_SCHEMA if match[1] == "trees" else KEYED_SCHEMA
        return table if table.schema.equals(expected) else None

    def tables(self, names: Sequence[str], *, at_once: int) -> Iterator[tuple[str, pa.Table]]:
        """Yields name and table of each part that can be read, in order. At most PARTS_AHEAD parts
        are read ahead, even if `at_once` is larger."""
        for name, table in ahead(self.read, names, at_once=min(at_once, PARTS_AHEAD)):
            if table is not None:
                yield name, table

    def unchanged(self) -> UnchangedFiles:
        """Returns the listed trees and nodes, with the times when they were last written."""
        return _unchanged(self.folder, self.pointers, micros_of(self.read_at))

    def write(self, family: Family, table: pa.Table, *, bucket: int) -> str | None:
        """Adds a part and returns its name. Returns None, and adds nothing, if the table has no
        rows or the index is not writable."""
        if not (self.writable and table.num_rows):
            return None
        sink = pa.BufferOutputStream()
        # Keys are random bits, so that compression would not make them smaller.
        compression: Literal["zstd"] | None = "zstd" if family == "trees" else None
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        of_bucket = "" if bucket == LOOSE else f"{bucket:02x}-"
        name = f"{family}-{of_bucket}{xxhash.xxh3_128_hexdigest(data)}.arrow"
        self.storage.put(INDEX_PREFIX + name, data, durable=False)
        return name

    def drop(self, names: Collection[str]) -> None:
        """Deletes parts."""
        self.storage.delete([INDEX_PREFIX + name for name in sorted(names)])

    def anew(self, family: Family, bucket: int, used: Mapping[str, tuple[int, int]]) -> list[str]:
        """Returns the names of the parts whose useful rows should be written again into a bucket.

        `used` maps the name of each part that was read to the amount in use and the whole amount,
        in trees or in keys. The result has parts that could not be read, parts of which less than
        half is in use, and the `scattered` parts that were read. If there are more than SMALL_MAX
        small parts, it has these too.
        """
        if not self.writable:
            return []
        parts = [
            part for part in self.listed if part.family == family and bucket in (LOOSE, part.bucket)
        ]
        found = {
            part.name
            for part in parts
            if part.name not in used or 2 * used[part.name][0] < used[part.name][1]
        }
        small = {part.name for part in parts if part.size_bytes < SMALL_BYTES} - found
        if len(small) > SMALL_MAX:
            found |= small
        return sorted(found | (self.scattered & used.keys()))

    @property
    def scattered(self) -> frozenset[str]:
        """The loose parts that this run divides among the buckets. They are many or large.

        Each task writes the rows of its bucket into parts of that bucket. When all tasks are done,
        the loose parts are deleted (`Mark.done`).
        """
        loose = [part for part in self.listed if part.bucket == LOOSE]
        is_much = len(loose) > SMALL_MAX or any(part.size_bytes >= SMALL_BYTES for part in loose)
        divided = self.writable and self.is_divided and is_much
        return frozenset(part.name for part in loose) if divided else frozenset()


def parts_in(storage: Storage) -> Iterable[IndexPart]:
    """Yields all parts in the folder, including damaged ones."""
    for batch in storage.list(INDEX_PREFIX):
        names, sizes = texts(batch.column("address")), counts(batch.column("size_bytes"))
        for name, size in zip(names, sizes, strict=True):
            match = _NAME.fullmatch(name.removeprefix(INDEX_PREFIX))
            if match is not None:
                bucket = LOOSE if match[2] is None else int(match[2], 16)
                family = FAMILIES[FAMILIES.index(match[1])]
                yield IndexPart(match[0], size, family, bucket)


@lru_cache(maxsize=1)
def _unchanged(folder: RunFolder, pointers: tuple[Part, ...], now: int) -> UnchangedFiles:
    """Reads the listed trees and nodes. The result is cached, since all tasks of a run use it."""
    return UnchangedFiles.read(folder, pointers, now=now)
