"""Writes an Iceberg table of many files in little time, for `benchmarks.iceberg`.

PyIceberg makes the table, its first manifest and its first list. All others are written in bulk by
fastavro, with the same schemas and headers, in blocks of many rows as Iceberg's Java writers do.
The data files are hard links of a few real ones. The snapshots are appends of as many files each;
the newest one deletes the files of the first appends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

NAME: Final = "benchmark"
TABLE: Final = "db.events"
SEED: Final = 20_261_130
PARTITIONS: Final = 200
LOGGED: Final = 10
"""The metadata files before the current one that exist, and that its log names."""
ORPHANS_SHARE, DELETED_SHARE = 0.05, 0.05
"""The shares of orphans and of deleted files, of the data files that snapshots have."""
LINKS_MAX: Final = 10_000
"""The most names of one file: ext4 allows 65,000, and the benchmark doubles them."""
OLD: Final = 864_000
"""The age of all files in seconds: no grace of any program keeps them."""
NEWEST_MS, OLDEST_MS = 2 * OLD * 1000, 6 * OLD * 1000
"""The ages of the newest and the oldest snapshot."""

SCHEMA: Final = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", LongType(), required=False),
    NestedField(3, "value", StringType(), required=False),
)
SPEC: Final = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part")
)
Row = dict[str, Any]


@dataclass(slots=True)
class Lake:
    """A warehouse with one table, and the catalog that has it. All names are below `warehouse`.

    `orphans` are the files that nothing names. `freed` are those that only expired snapshots need,
    if the newest one alone stays. `files` are all files.
    """

    directory: Path
    orphans: set[str] = field(default_factory=set)
    freed: set[str] = field(default_factory=set)

    @property
    def warehouse(self) -> Path:
        """The directory of the table's folder."""
        return self.directory / "warehouse"

    @property
    def catalog(self) -> Path:
        """The database of the catalog."""
        return self.directory / "catalog.db"

    @property
    def uri(self) -> str:
        """The address of the catalog, as PyIceberg has it."""
        return f"sqlite:///{self.catalog}"

    def opened(self) -> SqlCatalog:
        """Opens the catalog by PyIceberg."""
        return SqlCatalog(NAME, uri=self.uri, warehouse=f"file://{self.warehouse}")

    def files(self) -> set[str]:
        """Returns all files of the table's folder."""
        found, waiting = set(), [str(self.warehouse / "events")]
        start = len(str(self.warehouse)) + 1
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.name.endswith(".crc"):  # Hadoop's checksum beside a file
                        found.add(entry.path[start:])
        return found


@dataclass(frozen=True, slots=True)
class Avro:
    """The schema and the header of an Avro file, and its first row as a pattern of others."""

    schema: Any
    metadata: dict[str, str]
    row: Row

    @classmethod
    def of(cls, location: str) -> Avro:
        """Reads them from a file that PyIceberg wrote."""
        with local(location).open("rb") as file:
            reader = fastavro.reader(file)
            row: Any = next(iter(reader))
            header = dict(reader.metadata)
        schema = fastavro.parse_schema(json.loads(header.pop("avro.schema")))
        header.pop("avro.codec", None)
        return cls(schema, header, row)

    def write(self, path: Path, rows: Sequence[Row], **metadata: str) -> int:
        """Writes a file. Returns its length in bytes."""
        out = BytesIO()
        header = {**self.metadata, **metadata}
        fastavro.writer(out, self.schema, rows, codec="deflate", metadata=header)
        path.write_bytes(out.getvalue())
        return out.tell()


class Writer:
    """Writes the files of one table."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.folder = lake.warehouse / "events"
        self._random = Random(SEED)
        self._now_ms = int(time.time() * 1000)
        self._source = ""
        self._links = 0

    def build(self, files: int, snapshots: int) -> None:
        """Writes a table of `files` data files, and the orphans."""
        self._begin()
        appends = snapshots - 1
        ids = [self._random.getrandbits(62) for _ in range(snapshots)]
        bounds = [files * each // appends for each in range(appends + 1)]
        names = [self._data(number) for number in range(files)]
        added = [
            self._manifest(ids[number], number + 1, names[start:stop], status=1)
            for number, (start, stop) in enumerate(pairwise(bounds))
        ]
        lists = [
            self._list(ids[number], number + 1, added[: number + 1]) for number in range(appends)
        ]
        gone = max(1, round(appends * DELETED_SHARE))
        dead = names[: bounds[gone]]
        deleting = self._manifest(ids[-1], snapshots, dead, status=2)
        lists.append(self._list(ids[-1], snapshots, [deleting, *added[gone:]]))
        freed = [*lists[:-1], *(row["manifest_path"] for row in added[:gone])]
        self.lake.freed.update(map(self._relative, freed), (f"events/{each}" for each in dead))
        current = self._metadata(ids, lists)
        self._litter(round(files * ORPHANS_SHARE), max(1, snapshots // 50), lists[-1], current)
        at = time.time() - OLD
        for each in self.lake.files():
            os.utime(self.lake.warehouse / each, (at, at))

    def _begin(self) -> None:
        """Makes the table with a snapshot by PyIceberg, takes its files as patterns, and deletes
        them."""
        self.lake.warehouse.mkdir(parents=True)
        with closing(self.lake.opened()) as catalog:
            catalog.create_namespace("db")
            table = catalog.create_table(
                TABLE, SCHEMA, location=f"file://{self.folder}", partition_spec=SPEC
            )
            table.append(pa.table({"id": [1], "part": [1], "value": ["a"]}))
            catalog.drop_table(TABLE)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        self._lists = Avro.of(snapshot.manifest_list)
        self._manifests = Avro.of(self._lists.row["manifest_path"])
        self._content = local(self._manifests.row["data_file"]["file_path"]).read_bytes()
        self._document: Row = json.loads(local(table.metadata_location).read_text())
        for each in self.lake.files():
            (self.lake.warehouse / each).unlink()
        for part in range(PARTITIONS):
            (self.folder / f"data/part={part}").mkdir(exist_ok=True)

    def _relative(self, location: str) -> str:
        return str(local(location).relative_to(self.lake.warehouse))

    def _uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def _data(self, number: int) -> str:
        """Makes a data file. Returns its path within the table's folder."""
        name = f"data/part={number % PARTITIONS}/00000-{number}-{self._uuid()}.parquet"
        path = f"{self.folder}/{name}"
        if self._links % LINKS_MAX:
            os.link(self._source, path)
        else:
            Path(path).write_bytes(self._content)
            self._source = path
        self._links += 1
        return name

    def _manifest(self, snapshot_id: int, number: int, names: Sequence[str], *, status: int) -> Row:
        """Writes a manifest of data files: added (`status` 1) or deleted ones (2), by the snapshot
        with the sequence number `number`. Returns its row for lists."""
        pattern = self._manifests.row
        # Only added files inherit the sequence number of their snapshot.
        known = None if status == 1 else 1
        entry = {**pattern, "status": status, "snapshot_id": snapshot_id}
        entry |= {"sequence_number": known, "file_sequence_number": known}
        rows = []
        for name in names:
            part = int(name.split("/")[1].removeprefix("part="))
            file = {"file_path": f"file://{self.folder}/{name}", "partition": {"part": part}}
            rows.append({**entry, "data_file": {**pattern["data_file"], **file}})
        path = self.folder / f"metadata/{self._uuid()}-m0.avro"
        counts = {1: "added", 2: "deleted"}
        return {
            **self._lists.row,
            "manifest_path": f"file://{path}",
            "manifest_length": self._manifests.write(path, rows),
            "sequence_number": number,
            "min_sequence_number": number if status == 1 else 1,
            "added_snapshot_id": snapshot_id,
            **{
                f"{of}_{what}_count": len(rows) if counts[status] == of else 0
                for of in ("added", "existing", "deleted")
                for what in ("files", "rows")
            },
        }

    def _list(self, snapshot_id: int, number: int, manifests: Sequence[Row]) -> str:
        """Writes the list of a snapshot. Returns its location."""
        path = self.folder / f"metadata/snap-{snapshot_id}-0-{self._uuid()}.avro"
        known = {"snapshot-id": str(snapshot_id), "sequence-number": str(number)}
        self._lists.write(path, manifests, **known)
        return f"file://{path}"

    def _metadata(self, ids: Sequence[int], lists: Sequence[str]) -> Path:
        """Writes the newest metadata files, and registers the last one. Returns its path."""
        pattern = self._document["snapshots"][0]
        count = len(ids)
        dates = [
            self._now_ms - OLDEST_MS + (OLDEST_MS - NEWEST_MS) * each // (count - 1)
            for each in range(count)
        ]
        snapshots = [
            {
                **{key: value for key, value in pattern.items() if key != "parent-snapshot-id"},
                **({"parent-snapshot-id": ids[each - 1]} if each else {}),
                "snapshot-id": ids[each],
                "sequence-number": each + 1,
                "timestamp-ms": dates[each],
                "manifest-list": lists[each],
                "summary": {"operation": "delete" if each == count - 1 else "append"},
            }
            for each in range(count)
        ]
        log: list[Row] = []
        path = self.folder
        for last in range(max(0, count - LOGGED - 1), count):
            path = self.folder / f"metadata/{last:05d}-{self._uuid()}.metadata.json"
            document = {
                **self._document,
                "last-updated-ms": dates[last],
                "last-sequence-number": last + 1,
                "current-snapshot-id": ids[last],
                "snapshots": snapshots[: last + 1],
                "refs": {"main": {"snapshot-id": ids[last], "type": "branch"}},
                "snapshot-log": [
                    {"snapshot-id": ids[each], "timestamp-ms": dates[each]}
                    for each in range(last + 1)
                ],
                "metadata-log": log,
            }
            path.write_text(json.dumps(document))
            log = [*log, {"metadata-file": f"file://{path}", "timestamp-ms": dates[last]}]
        with closing(self.lake.opened()) as catalog:
            catalog.register_table(TABLE, f"file://{path}")
        return path

    def _litter(self, data: int, commits: int, manifest_list: str, metadata: Path) -> None:
        """Leaves the data files of failed writers, and the other files of failed commits."""
        names = [self._data(number) for number in range(data)]
        for number in range(commits):
            token = self._uuid()
            for source, name in (
                (local(manifest_list), f"snap-{number + 1}-0-{token}.avro"),
                (local(self._manifest(1, 1, names[:10], status=1)["manifest_path"]), None),
                (metadata, f"{number:05d}-{token}.metadata.json"),
            ):
                if name is None:
                    names.append(f"metadata/{source.name}")
                else:
                    (source.parent / name).write_bytes(source.read_bytes())
                    names.append(f"metadata/{name}")
        self.lake.orphans.update(f"events/{each}" for each in names)


def local(location: str) -> Path:
    """Returns the path of a location."""
    return Path(location.removeprefix("file://"))
