"""The address index: what trees and nodes refer to, read from their own files once and kept.

Neither ever changes once it is written, so that what was read of one stays true for as long as its
checksum is the one that is asked for. One whose file was written since all the same, or is not
there, is read again, so that damage is found.

The index is a folder of Arrow IPC files, its parts, each of one bucket of ids and named by the
XXH3-128 of its bytes: one that is missing, damaged or half written is no part, and what it held is
read again. It is no guard against who writes there on purpose: he could name a part as well,
whatever the hash. Nobody changes a part, so that writers need not know of each other. There is no
list of parts but the folder's own. Keys are read as they lie in the file: Parquet would take three
times as long for the same bytes.

A run over many trees and nodes divides them into BUCKETS, and a task reads the parts of its bucket
and no others. A run over few is one task, which reads all parts, and writes those of no bucket
(LOOSE). These are divided by the next run over many.

Of addresses it keeps keys (`keys`). Not for: formats whose nodes have no checksum.
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
from ebbtide.gc.ahead import ahead
from ebbtide.gc.parts import Part
from ebbtide.gc.relations.indexed import KEYED_SCHEMA, TREES_SCHEMA, Unchanged
from ebbtide.gc.relations.keys import keys_of
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage

Family = Literal["trees", "nodes"]
FAMILIES: Final[tuple[Family, ...]] = ("trees", "nodes")

BUCKETS: Final = 32
LOOSE: Final = -1
MANY_POINTERS: Final = 4_000
"""So many trees and nodes are divided into buckets."""
KEYS_PER_PART: Final = 2_000_000
"""Some 16 MB."""
PARTS_AHEAD: Final = 2
SMALL_BYTES: Final = 4_000_000
SMALL_MAX: Final = 8
"""How many small parts of a bucket there may be before they are put together."""

_NAME: Final = re.compile(r"(trees|nodes)-(?:([0-9a-f]{2})-)?([0-9a-f]{32})\.arrow")


def bucket_of(ids: Column) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The bucket of each id."""
    return (keys_of(ids).view(np.uint64) % np.uint64(BUCKETS)).astype(np.int32)


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A file of the index. Its `bucket` is LOOSE where it has ids of any."""

    name: str
    size_bytes: int
    family: Family
    bucket: int


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one repository, on its own storage, for one run. Picklable.

    `read_at` is when the run began, by the earliest clock, before it listed the files of
    `pointers`, parts of the inventory in its `folder`. An index that is not `writable` is read as
    it is. `listed` are its parts as the run found them.
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
        """The index as it is now."""
        known = tuple(parts_in(storage))
        return cls(storage, folder, tuple(pointers), read_at, writable, known)

    @property
    def spread(self) -> int:
        """Into how many tasks trees and nodes are divided."""
        return BUCKETS if sum(part.rows for part in self.pointers) >= MANY_POINTERS else 1

    def names(self, family: Family, bucket: int) -> list[str]:
        """Which parts may have ids of a bucket, sorted; those of any, for LOOSE."""
        return sorted(
            part.name
            for part in self.listed
            if part.family == family and (bucket == LOOSE or part.bucket in (bucket, LOOSE))
        )

    def read(self, name: str) -> pa.Table | None:
        """A part's table; None when it is not there, or not what its name says."""
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
        """Of these parts those that can be read, in order; `at_once` as for smaller files."""
        for name, table in ahead(self.read, names, at_once=min(at_once, PARTS_AHEAD)):
            if table is not None:
                yield name, table

    def unchanged(self) -> Unchanged:
        """Tells which files were there, and not written since they were read."""
        return _unchanged(self.folder, self.pointers)

    def write(self, family: Family, table: pa.Table, *, bucket: int) -> str | None:
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
        of_bucket = "" if bucket == LOOSE else f"{bucket:02x}-"
        name = f"{family}-{of_bucket}{xxhash.xxh3_128_hexdigest(data)}.arrow"
        self.storage.put(INDEX_PREFIX + name, data, durable=False)
        return name

    def drop(self, names: Collection[str]) -> None:
        """Delete parts."""
        self.storage.delete([INDEX_PREFIX + name for name in sorted(names)])

    def anew(self, family: Family, bucket: int, used: Mapping[str, tuple[int, int]]) -> list[str]:
        """Which parts are better written anew into a bucket, of which so much is `used` (of how
        much, by name): those that are damaged or more than half of no use, small ones when they are
        many, and those that are `scattered`."""
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
        """Parts of no bucket that a run over many divides, once they are many or large: each task
        takes what is of its bucket, and when all have, they are dropped."""
        loose = [part for part in self.listed if part.bucket == LOOSE]
        is_much = len(loose) > SMALL_MAX or any(part.size_bytes >= SMALL_BYTES for part in loose)
        divided = self.writable and self.spread > 1 and is_much
        return frozenset(part.name for part in loose) if divided else frozenset()


def parts_in(storage: Storage) -> Iterable[IndexPart]:
    """The parts that are there, undamaged or not."""
    for batch in storage.list(INDEX_PREFIX):
        names, sizes = texts(batch.column("address")), counts(batch.column("size_bytes"))
        for name, size in zip(names, sizes, strict=True):
            match = _NAME.fullmatch(name.removeprefix(INDEX_PREFIX))
            if match is not None:
                bucket = LOOSE if match[2] is None else int(match[2], 16)
                family = FAMILIES[FAMILIES.index(match[1])]
                yield IndexPart(match[0], size, family, bucket)


@lru_cache(maxsize=1)
def _unchanged(folder: RunFolder, pointers: tuple[Part, ...]) -> Unchanged:
    """Kept for the next task of the run: it is the same for all."""
    return Unchanged.read(folder, pointers)
