"""The tables of a warehouse as they are at one time: what each metadata file names."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from ebbtide.arrow import texts
from ebbtide.errors import NotFound, Refused, UnknownRepository
from ebbtide.formats.base import changed, tree_address
from ebbtide.formats.iceberg.catalog import LOOKS_MAX, CatalogTables, Pointers
from ebbtide.formats.iceberg.layout import IcebergLayout
from ebbtide.formats.iceberg.metadata import TableMetadata, TableSnapshot
from ebbtide.formats.notes import as_written
from ebbtide.storage import Storage

CATALOGS_ADDRESS: Final = "_ebbtide/catalogs.json"
_CATALOGS: Final = TypeAdapter(Annotated[list[str], Field(min_length=2)])
READS_MAX: Final = 3
"""How often the tables are read anew, if a metadata file is gone before it is read: writers may
delete files that have fallen out of the log."""


@dataclass(frozen=True, slots=True)
class TableStates:
    """All tables of a catalog, by name, with the location that each pointed at."""

    pointers: Pointers
    metadata: Mapping[str, TableMetadata]

    def commit_ids(self) -> Iterator[tuple[str, str, TableMetadata, TableSnapshot]]:
        """Yields each snapshot of each table: its commit's id, the table's name and metadata, and
        the snapshot."""
        for name, table in self.metadata.items():
            for snapshot in table.snapshots.values():
                yield commit_id_of(name, snapshot.snapshot_id), name, table, snapshot

    def trees(self) -> frozenset[str]:
        """Returns the ids of all trees."""
        return frozenset(table.tree_id(each) for _, _, table, each in self.commit_ids())

    def files(self) -> Mapping[str, str]:
        """Returns the files that tables need beside those of snapshots, each with the reason."""
        return {
            address: f"{reason} of table {name}"
            for name, table in self.metadata.items()
            for address, reason in table.files
        }


def commit_id_of(table: str, snapshot_id: int) -> str:
    """Returns the id of a snapshot's commit. The table is a part of it, because tables that were
    registered twice have snapshots with the same ids."""
    return f"{snapshot_id}:{table}"


def snapshot_of(commit_id: str) -> int:
    """Returns the snapshot of a commit."""
    return int(commit_id.partition(":")[0])


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Reads the tables of a catalog whose files are on one storage, and those of the catalogs
    `also`, as `CATALOG:TABLE`. Picklable.

    Those of `known` are not read again while they have the same metadata file: no program changes
    such a file.
    """

    catalog: CatalogTables
    storage: Storage
    layout: IcebergLayout
    also: tuple[CatalogTables, ...] = ()
    known: Mapping[str, TableMetadata] = field(default_factory=dict, repr=False)

    def pointers(self) -> Pointers:
        """Returns the tables of all catalogs at one time. Raises as `CatalogTables.pointers`, and
        NotFound `repository_not_found` if one of `also` has no table.

        Several catalogs are read until their tables are the same twice: one that moves from one
        catalog to the other could be missed in both.
        """
        before: Collection[str] | None = None
        for _ in range(LOOKS_MAX if self.also else 1):
            found = dict(self.catalog.pointers())
            for other in self.also:
                theirs = other.pointers()
                if not theirs:
                    raise UnknownRepository(
                        "repository_not_found",
                        f"the catalog {other.name} has no table: if that is right, leave it out",
                    )
                found |= {f"{other.name}:{name}": at for name, at in theirs.items()}
            if not self.also or found.keys() == before:
                return found
            before = found.keys()
        raise changed("tables were moved between the catalogs each time that they were listed")

    def check_named(self) -> None:
        """Raises Refused `foreign_table` if an earlier sweep has read a catalog that is not named
        now, and `plan_corrupt`."""
        with suppress(NotFound):
            data = self.storage.get(CATALOGS_ADDRESS)
            otherwise = "delete it if no other catalog has tables here"
            with as_written(self.storage, CATALOGS_ADDRESS, otherwise):
                recorded = _CATALOGS.validate_json(data)
            missing = set(recorded) - {each.name for each in (self.catalog, *self.also)}
            if missing:
                raise Refused(
                    "foreign_table",
                    f"earlier sweeps have also read catalog {min(missing)}, whose tables may need "
                    f"these files: add +{min(missing)} to the name. If it has no tables here any "
                    f"more, delete {self.storage.url}/{CATALOGS_ADDRESS}",
                )

    def note_named(self) -> None:
        """Records the catalogs, for `check_named`."""
        if self.also:
            names = sorted(each.name for each in (self.catalog, *self.also))
            self.storage.put(CATALOGS_ADDRESS, json.dumps(names).encode())

    def read(self, known: Mapping[str, TableMetadata] | None = None) -> TableStates:
        """Returns the tables as they are now. `known` are more tables that need not be read again.

        Raises Refused `missing_tree`, `corrupt_tree`, `unknown_format_version`, `prefix_mismatch`
        or `repository_changed`, and Failed `catalog_error`.
        """
        read = {table.address: table for table in (*self.known.values(), *(known or {}).values())}
        for attempt in range(1, READS_MAX + 1):
            pointers = self.pointers()
            try:
                return TableStates(
                    pointers,
                    {
                        name: self._metadata(name, location, read)
                        for name, location in pointers.items()
                    },
                )
            except Refused as error:
                if error.kind != "missing_tree" or attempt == READS_MAX:
                    raise
                if self.pointers() == pointers:
                    raise
        raise changed("tables were committed to all the time")

    def _metadata(
        self, name: str, location: str, read: Mapping[str, TableMetadata]
    ) -> TableMetadata:
        try:
            address = self.layout.places.address(location)
            return read.get(address) or self.layout.metadata_at(self.storage, address)
        except Refused as error:
            error.restate(f"table {name}: {error.message}")
            raise

    def added(self, tables: TableStates, known: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yields the addresses that tables name beside the `known` trees, each with the reason.
        Raises as a plan does if a list or manifest cannot be read."""
        yield from tables.files().items()
        nodes: dict[str, tuple[str, int, str]] = {}
        for commit_id, _, table, snapshot in tables.commit_ids():
            tree_id = table.tree_id(snapshot)
            if tree_id in known:
                continue
            yield tree_address(self.layout, tree_id), commit_id
            rows = self.layout.read_tree(self.storage, tree_id, "")
            for node_id, checksum, count in zip(
                *(each.to_pylist() for each in rows.columns), strict=True
            ):
                nodes.setdefault(node_id, (checksum, count, commit_id))
        for node_id, (checksum, count, commit_id) in nodes.items():
            yield node_id, commit_id
            named = self.layout.read_node(self.storage, node_id, checksum, entry_count=count)
            yield from ((each, commit_id) for each in texts(named))
