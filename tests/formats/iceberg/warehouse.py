"""A warehouse of Iceberg tables that PyIceberg writes, its collector, and what is needed by the
definition: computed by PyIceberg's own reader, one snapshot after the other."""

from __future__ import annotations

import gzip
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.utils.config import Config
from sqlalchemy import select, update

from ebbtide.arrow import counts
from ebbtide.clock import Clock
from ebbtide.formats.capabilities import CommitHistory
from ebbtide.formats.iceberg.avro import Entry, ListedManifest, read_manifest
from ebbtide.formats.iceberg.repository import IcebergRepository
from ebbtide.formats.iceberg.scheme import open_iceberg
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.hold import expire, undo_expiry
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.ids import LATEST
from ebbtide.retention.expiry import Expiry, ExpiryRequest
from ebbtide.settings import Settings
from tests.support.engines import INLINE
from tests.support.icechunk_lake import LONG_AGO, candidates

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", StringType(), required=False),
)
GRACE = timedelta(hours=1)
NAME = "lake"
_GZIP: Final = b"\x1f\x8b"
_NAMED: Final = {"statistics": "statistics-path", "partition-statistics": "statistics-path"}
"""The lists of a metadata file that name files at once, and the field that does."""


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "part": ["a" if i % 2 else "b" for i in ids]})


def request(**more: Any) -> ExpiryRequest:
    return ExpiryRequest.of(
        now=datetime.now(UTC), sessions=timedelta(0), has_rules=True, unsafe=True, **more
    )


def unnamed(data: bytes) -> list[Entry]:
    """The entries of a manifest of which no list says anything."""
    return read_manifest(data, ListedManifest(""))


class Warehouse:
    """A catalog of SQLite, with its namespace `db`, in a directory."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        name: str = NAME,
        root: str | None = None,
        **properties: str,
    ) -> None:
        self.path = path / "warehouse"
        self.path.mkdir(exist_ok=True)
        self.root = root or f"file://{self.path}"
        self.uri = f"sqlite:///{path}/catalog.db"
        self.clock = clock
        self.others: dict[str, str] = {}
        self.engine: Engine = INLINE
        self.settings = Settings(share_max=1.0, run_heartbeat=timedelta(seconds=1))
        self.catalog = SqlCatalog(name, uri=self.uri, warehouse=self.root, **properties)
        self.catalog.create_namespace_if_not_exists("db")

    def close(self) -> None:
        self.catalog.close()

    def table(self, name: str, location: str | None = None, **properties: str) -> Table:
        where = f"file://{self.path}/{location or name}"
        return self.catalog.create_table(
            f"db.{name}", SCHEMA, location=where, properties=properties
        )

    def open(self, within: str = "", **more: Any) -> IcebergRepository:
        """The warehouse as the collector sees it, by PyIceberg's settings."""
        given = {
            f"PYICEBERG_CATALOG__{name.upper()}__{key}": value
            for name, uri in {NAME: self.uri, **self.others}.items()
            for key, value in {
                "TYPE": "sql",
                "URI": uri,
                "WAREHOUSE": self.root,
            }.items()
        }
        with patch.dict(os.environ, given):
            config = Config()
        name = f"iceberg:{NAME}.{within}".rstrip(".") + "".join(f"+{e}" for e in self.others)
        # PyIceberg reads the environment once, when it is imported.
        with patch("pyiceberg.catalog._ENV_CONFIG", config):
            return open_iceberg(name, self.settings, clock=self.clock, **more)

    def expire(
        self, request: ExpiryRequest, expire_id: str | None = None
    ) -> tuple[CommitHistory, Expiry]:
        return expire(self.open(), request, RunOptions.of(self.settings), expire_id)

    def undo_expiry(self, expire_id: str = LATEST) -> Mapping[str, Sequence[int | str]]:
        return undo_expiry(self.open(), expire_id, RunOptions.of(self.settings))

    def collector(
        self, within: str = "", *, repository: IcebergRepository | None = None, **options: Any
    ) -> Collector:
        chosen = {"grace": GRACE, "sessions": timedelta(0)} | options
        found = replace(RunOptions.of(self.settings, **chosen), undo_hold=timedelta(0))
        return Collector(repository or self.open(within), engine=self.engine, options=found)

    def planned(self, within: str = "", **options: Any) -> set[str]:
        report = self.collector(within, **options).plan()
        assert report.state == "planned", report.error
        return {*candidates(report)}

    def swept(self, within: str = "", **options: Any) -> RunReport:
        report = self.collector(within, **options).run()
        assert report.state == "swept", report.error
        return report

    def age(self, *, but: str = "\0") -> None:
        """Makes all files older than any grace. Those with `but` in their names are of now."""
        now = time.time()
        for each in self.files():
            at = now if but in each else now - LONG_AGO
            os.utime(self.path / each, (at, at))

    def files(self) -> set[str]:
        found = (each for each in self.path.rglob("*") if each.is_file())
        names = (each.relative_to(self.path).as_posix() for each in found)
        return {each for each in names if not each.startswith("_ebbtide/")}

    def names(self) -> dict[str, str]:
        """The location of the current metadata file of each table, by the table's name."""
        with self.catalog.engine.connect() as connection:
            rows = connection.execute(select(IcebergTables).order_by(IcebergTables.table_name))
            return {
                f"{row.table_namespace}.{row.table_name}": str(row.metadata_location)
                for row in rows
            }

    def tables(self) -> list[Table]:
        return [self.catalog.load_table(each) for each in self.names()]

    def relative(self, location: str) -> str:
        """The address of a location, in one of the spellings of files."""
        return ("/" + location.removeprefix("file:").lstrip("/")).removeprefix(f"{self.path}/")

    def metadata_of(self, location: str) -> dict[str, Any]:
        """The content of a metadata file."""
        data = (self.path / self.relative(location)).read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == _GZIP else data)
        return found

    def swap(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Commits a change of a table that PyIceberg cannot make, by a metadata file of its own."""
        location = self.names()[name]
        document = self.metadata_of(location)
        log = document.setdefault("metadata-log", [])
        at = document["last-updated-ms"]
        log.append({"timestamp-ms": at, "metadata-file": location})
        document["last-updated-ms"] = max(at, int(time.time() * 1000))
        change(document)
        folder, _, old = location.rpartition("/")
        new = f"{folder}/{int(old.split('-')[0]) + 1:05d}-{uuid.uuid4()}.metadata.json"
        (self.path / self.relative(new)).write_text(json.dumps(document))
        namespace, _, own = name.rpartition(".")
        is_it = (IcebergTables.table_namespace == namespace) & (IcebergTables.table_name == own)
        with self.catalog.engine.begin() as connection:
            connection.execute(update(IcebergTables).where(is_it).values(metadata_location=new))

    def needed(self) -> set[str]:
        """What tables need, by the specification: read from their metadata files as they are, and
        each list and manifest by PyIceberg. Files of the log may be gone."""
        return set[str]().union(*map(self.needed_by, self.names().values()))

    def needed_by(self, location: str) -> set[str]:
        """What the table of one metadata file needs."""
        document, found = self.metadata_of(location), {location}
        for name, key in _NAMED.items():
            found |= {each[key] for each in document.get(name, ())}
        logged = {each["metadata-file"] for each in document.get("metadata-log", ())}
        found |= {each for each in logged if (self.path / self.relative(each)).exists()}
        io = self.catalog._load_file_io()
        manifests = dict[str, ManifestFile]()
        for snapshot in document.get("snapshots", ()):
            found.add(snapshot["manifest-list"])
            rows = read_manifest_list(io.new_input(snapshot["manifest-list"]))
            manifests |= {row.manifest_path: row for row in rows}
        for manifest in manifests.values():
            entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
            found |= {each.data_file.file_path for each in entries}
        return {self.relative(each) for each in found | manifests.keys()}

    def contents(self) -> dict[tuple[str, int], list[int]]:
        """The rows of each snapshot of each table."""
        return {
            (".".join(table.name()), each.snapshot_id): sorted(
                counts(table.scan(snapshot_id=each.snapshot_id).to_arrow()["id"])
            )
            for table in self.tables()
            for each in table.metadata.snapshots
        }
