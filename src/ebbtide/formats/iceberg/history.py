"""Finds what removed one file from the tables, and how long their own rules keep it, for
explanations. Not for: deciding or deleting."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.formats.base import tree_address
from ebbtide.formats.iceberg.avro import DELETED, ListedManifest
from ebbtide.formats.iceberg.expiries import RecordedExpiry
from ebbtide.formats.iceberg.layout import IcebergLayout
from ebbtide.formats.iceberg.metadata import DamagedMetadataError, TableMetadata, TableSnapshot
from ebbtide.formats.iceberg.rules import ending
from ebbtide.formats.iceberg.tables import TableStates
from ebbtide.storage import Storage
from ebbtide.text import count_text, date_text

_NO_TRACE: Final = (
    "no listed snapshot names it, and none is known to have removed it: a write that failed, or an "
    "expiry by another program, may have left it"
)


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """The history of one address in all tables of a catalog."""

    storage: Storage
    layout: IcebergLayout
    tables: TableStates
    address: str
    _has: dict[str, bool | None] = field(default_factory=dict)
    """Whether each list or manifest that an expired snapshot has names the address; None if it
    cannot be read."""

    def told(self, records: Iterator[RecordedExpiry]) -> Iterator[str]:
        """Yields sentences about what removed a file that no listed snapshot needs. Raises Refused
        as a reading does."""
        if self.address in self.tables.files():
            return
        is_known = False
        for each in (*self._removed(), *self._expired(records)):
            is_known = True
            yield each
        if not is_known:
            yield _NO_TRACE

    def _removed(self) -> Iterator[str]:
        """Yields a sentence for each snapshot that a manifest names as the one that removed the
        file."""
        for name, table in self.tables.metadata.items():
            for snapshot_id in dict.fromkeys(self._removing(table)):
                yield f"{_words(name, table.snapshots.get(snapshot_id), snapshot_id)} removed it"

    def _removing(self, table: TableMetadata) -> Iterator[int]:
        """Yields the snapshots that removed the file, the oldest first."""
        seen = set[str]()
        for snapshot in sorted(table.snapshots.values(), key=lambda each: each.at):
            for address, listed in self._manifests(snapshot):
                if address in seen or listed.deleted == 0:
                    continue
                seen.add(address)
                for status, by, place in self.layout.entries_at(self.storage, address, listed):
                    if status == DELETED and place == self.address:
                        yield by or listed.added_by or snapshot.snapshot_id

    def _manifests(self, snapshot: TableSnapshot) -> list[tuple[str, ListedManifest]]:
        if snapshot.list_address is None:
            return [(each, ListedManifest(each)) for each in snapshot.manifests]
        return self.layout.manifests_at(self.storage, snapshot.list_address)

    def _expired(self, records: Iterator[RecordedExpiry]) -> Iterator[str]:
        """Yields sentences for each expiry that removed a snapshot that needed the file, or may
        have: the files of the snapshot can be gone."""
        for each in records:
            needing, unknown = list[str](), 0
            for snapshot in each.snapshots:
                has = self._needs(each.record.metadata, snapshot)
                unknown += has is None
                if has:
                    needing.append(_words(each.record.table, snapshot, snapshot.snapshot_id))
            lead = _lead(each)
            if needing:
                yield f"{lead} {' and '.join(needing)}, which needed it"
            elif unknown:
                which = count_text(unknown, "snapshot")
                yield (
                    f"{lead} {which} of {each.record.table} that may have needed it: "
                    "their lists or manifests are gone or cannot be read"
                )

    def _needs(self, metadata: str, snapshot: TableSnapshot) -> bool | None:
        """Whether an expired snapshot needed the file; None if no file of it says so any more."""
        tree = snapshot.list_address or f"{metadata}#{snapshot.snapshot_id}"
        if tree_address(self.layout, tree) == self.address:
            return snapshot.list_address is not None
        try:
            rows = self.layout.read_tree(self.storage, tree, "").to_pylist()
        except (Refused, KeyError):
            return None
        found: set[bool | None] = {self._names(**row) for row in rows}
        return True if True in found else None if None in found else False

    def _names(self, node_id: str, checksum: str, entry_count: int) -> bool | None:
        if node_id == self.address:
            return True
        if node_id not in self._has:
            try:
                named = self.layout.read_node(
                    self.storage, node_id, checksum, entry_count=entry_count
                )
                self._has[node_id] = self.address in texts(named)
            except Refused:
                self._has[node_id] = None
        return self._has[node_id]


def told_of_snapshot(
    records: Iterator[RecordedExpiry], expression: str, repository: str
) -> Iterator[str]:
    """Yields what is known of a snapshot that no table lists, by its id or that of its commit: the
    expiries that removed it, and how they are undone."""
    snapshot_id, _, table = expression.partition(":")
    for each in records:
        for snapshot in each.snapshots:
            if str(snapshot.snapshot_id) == snapshot_id and table in ("", each.record.table):
                yield (
                    f"{_lead(each)} {_words(each.record.table, snapshot, snapshot.snapshot_id)}. "
                    f"'ebbtide expire {repository} --undo {each.expire_id}' lists it again, while "
                    "all of its files exist"
                )


def _lead(expiry: RecordedExpiry) -> str:
    return f"expiry {expiry.expire_id} of {date_text(expiry.record.at)} UTC removed"


def until(
    tables: Mapping[str, TableMetadata], needing: Collection[tuple[int, str]], now: datetime
) -> Iterator[str]:
    """Yields, for each table with some of the snapshots, until when its own rules keep one of
    them."""
    for name in sorted({table for _, table in needing}):
        asked = {snapshot_id for snapshot_id, table in needing if table == name}
        one = f"snapshot {min(asked)}" if len(asked) == 1 else f"the last of {len(asked)} snapshots"
        lead = f"runs keep what a listed snapshot of {name} needs"
        try:
            end = ending(tables[name], asked, now=now)
        except DamagedMetadataError as error:
            yield f"{lead}. Its own rules cannot be read: {error}"
            continue
        if end.at is None:
            kept = ", ".join(_pointing(tables[name], end.kept)) or f"snapshot {min(end.kept)}"
            yield f"{lead}, and its own rules keep {kept}: no date ends that"
        else:
            when = "now" if end.at <= now else f"from {date_text(end.at)} UTC on"
            yield f"{lead}. An expiry by its own rules can remove {one} {when}"


def _pointing(table: TableMetadata, snapshots: Collection[int]) -> list[str]:
    return [f"{ref.kind} {ref.name}" for ref in table.refs if ref.snapshot_id in snapshots]


def _words(table: str, snapshot: TableSnapshot | None, snapshot_id: int) -> str:
    if snapshot is None:
        return f"snapshot {snapshot_id} of {table}, which is not listed any more,"
    operation: Any = snapshot.summary.get("operation", "unknown operation")
    return f"snapshot {snapshot_id} ({operation}, {date_text(snapshot.at)} UTC) of {table}"
