"""The warehouse of an Iceberg catalog as the collector sees it.

The name says which tables' files may be deleted. What is needed is always read from all tables of
the catalog: tables can share folders, lie inside each other, be registered twice, or name files of
each other. Nothing closes a snapshot: `guard` looks before each batch whether a table needs a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import Guard, Identity, RepositoryFormat, RunHold
from ebbtide.formats.file_names import FileNames, NamesAsked, names_in_tables
from ebbtide.formats.iceberg.expiries import Expiries, IcebergHistory, check_allowed
from ebbtide.formats.iceberg.history import RemovedFile, told_of_snapshot, until
from ebbtide.formats.iceberg.layout import IcebergLayout
from ebbtide.formats.iceberg.metadata import DamagedMetadataError, TableMetadata, document_of
from ebbtide.formats.iceberg.reading import IcebergGuard, IcebergReading
from ebbtide.formats.iceberg.rest import check_settled
from ebbtide.formats.iceberg.tables import TableStates, Warehouse, snapshot_of
from ebbtide.formats.iceberg.walk import IcebergWalk
from ebbtide.formats.locations import are_apart, outermost
from ebbtide.model import EPOCH, Commit
from ebbtide.retention.decision import Decision, Roots
from ebbtide.retention.expiry import Expiry, ExpiryRequest
from ebbtide.settings import Settings
from ebbtide.text import shown

FORMAT_NAME: Final = "iceberg"


class IcebergRepository:
    """The tables of a catalog. `selected` are those whose files may be deleted. Made by
    `open_iceberg`."""

    layout: IcebergLayout
    batch_max = 5_000

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        name: str,
        selected: frozenset[str],
        left_out: frozenset[str] = frozenset(),
        settings: Settings,
        expiry: Expiry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`left_out` are tables of the name that forbid deletes. With an `expiry`, plans are made
        as if it had been carried out; they are not swept."""
        self._left_out = left_out
        self._expiry = expiry
        self.layout = warehouse.layout
        self._warehouse = warehouse
        self._selected = selected
        self._tables: TableStates | None = None
        self._settings = settings
        self.storage = warehouse.storage
        # Other catalogs of the name take nothing away, and runs without them can be undone.
        own = name.partition(":")[2].partition("+")[0]
        self.identity = Identity(FORMAT_NAME, self.storage.url, own, name)
        self.clock = clock or SystemClock()

    def now(self) -> datetime:
        """Returns this machine's time."""
        return self.clock.host_now()

    @property
    def walk(self) -> IcebergWalk:
        """The second reader of manifest lists and manifests, for verification."""
        return IcebergWalk(self.storage, self.layout.places)

    @property
    def landmark(self) -> str:
        """The address of the current metadata file of one of the tables."""
        tables = self._tables or self._warehouse.read()
        return min(
            tables.metadata[name].address for name in self._selected & tables.metadata.keys()
        )

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[IcebergReading]:
        """Reads all tables of the catalog anew."""
        del cutoff
        self._tables = self._warehouse.read()
        check_allowed(self._tables, self._selected)
        if self._expiry is not None:
            self._tables = _after(self._tables, self._expiry)
        yield IcebergReading(self._tables, self.now(), tuple(self._warnings(self._tables)))

    def check_storage(self) -> None:
        """Raises Refused `repository_changed` while an expiry is unfinished."""
        check_settled(self.storage)

    def _warnings(self, tables: TableStates) -> Iterator[str]:
        """Yields what the operator may not expect: tables whose files are left alone."""
        for name, table in sorted(tables.metadata.items()):
            if name in self._left_out and not table.allows_deletes:
                yield f"table {name} sets gc.enabled=false: its folders are left alone"

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields nothing. Raises Refused `foreign_table` if a metadata file among the candidates is
        of a table that the catalog does not know: that table may need the other candidates."""
        assert self._tables is not None
        # Tables that were registered twice have one uuid.
        tables = defaultdict[str, list[TableMetadata]](list)
        known = set[str]()
        for table in self._tables.metadata.values():
            tables[table.uuid].append(table)
            known |= {table.address, *(address for address, _ in table.log)}
        kind = pa.scalar("metadata", pa.string())
        for rows in candidates:
            addresses: Any = rows.column("address")
            found = pc.equal(self.layout.classify(addresses.combine_chunks()), kind)
            for address in texts(addresses.filter(found)):
                self._check_known(address, tables, known)
        yield from ()

    def _check_known(
        self, address: str, tables: Mapping[str, list[TableMetadata]], known: Collection[str]
    ) -> None:
        try:
            found = document_of(self.storage.get(address))
        except (NotFound, DamagedMetadataError):
            return  # no table can be read from it: it was never finished, or is gone
        own = tables.get(str(found.get("table-uuid", "")))
        if own is None:
            raise Refused(
                "foreign_table",
                f"{shown(address)} is the metadata of a table that no table of this catalog is "
                f"({found.get('table-uuid')}): that table may need files that seem to be needed by "
                "nobody. Register it, or move one of the two to a folder of its own",
            )
        # One name of a table can be left as it was long ago, and have the log of that time.
        base, begun = _base_of(found), [table.log[0][1] for table in own if table.log]
        if base is None or not begun or base[1] < max(begun):
            return  # older than a log, where nothing tells what the table was
        if self.layout.places.address(base[0]) not in known:
            raise Refused(
                "foreign_table",
                f"{shown(address)} continues a history of its table that this catalog does not "
                f"know ({shown(base[0])}): another catalog may have the same table, and need "
                "files that seem to be needed by nobody. Register it here under another name",
            )

    def guard(self, kept: Collection[str], going: Collection[str]) -> Guard:
        """Returns the check before each batch of deletes, against the last reading."""
        del kept, going
        assert self._tables is not None
        self._warehouse.note_named()
        return IcebergGuard(self._warehouse, self._tables.trees(), self._tables.metadata)

    def resolve(self, expression: str) -> str:
        """Returns the commit of a snapshot's id, if only one table has it."""
        tables = self._tables or self._warehouse.read()
        found = [
            commit_id
            for commit_id, _, _, snapshot in tables.commit_ids()
            if str(snapshot.snapshot_id) == expression
        ]
        if len(found) == 1:
            return found[0]
        raise NotFound(
            "ref_not_found",
            f"there is no branch, tag or snapshot {shown(expression)} at {self.storage.url}, or "
            "several tables have it",
        )

    def recount(
        self, address: str | None, commits: Sequence[Commit], roots: Roots, decision: Decision
    ) -> tuple[str, ...]:
        """Returns until when the tables' own rules keep snapshots that need an address, or what
        removed it, in sentences."""
        del decision
        assert self._tables is not None
        if commits or address is None:
            ids = (each.commit_id for each in commits)
            needing = {(snapshot_of(each), each.partition(":")[2]) for each in ids}
            return tuple(until(self._tables.metadata, needing, roots.now))
        history = RemovedFile(self.storage, self.layout, self._tables, address)
        return tuple(history.told(self._expiries.recorded()))

    def recount_gone(self, expression: str) -> tuple[str, ...]:
        """Returns which expiries removed a snapshot that no table lists, in sentences."""
        records, name = self._expiries.recorded(), self.identity.repository_name
        return tuple(told_of_snapshot(records, expression, name))

    def address_at(self, ref: str, path: str) -> str:
        """Raises InvalidInput `invalid_argument`: a table has no paths of single files."""
        del path
        raise InvalidInput(
            "invalid_argument",
            f"{self.identity.repository_name} has no paths of single files: give the address of a "
            f"file, or only the snapshot or ref ({shown(ref)})",
        )

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the table and the partition of files, by the folders that they lie in."""
        tables = (self._tables or self._warehouse.read()).metadata
        places = {folder: name for name, each in tables.items() for folder in each.folders}
        return names_in_tables(asked.addresses, places)

    @property
    def _expiries(self) -> Expiries:
        return Expiries(self._warehouse, self._selected, self._settings, self.clock)

    def plan_expiry(self, request: ExpiryRequest) -> tuple[IcebergHistory, Expiry]:
        """Returns the present snapshots of the tables, and the expiry that a request leads to.
        Raises as `Expiries.plan`."""
        return self._expiries.plan(request)

    def expire(
        self, request: ExpiryRequest, hold: RunHold, expire_id: str
    ) -> tuple[IcebergHistory, Expiry]:
        """Carries out a request. Raises as `Expiries.carry_out`."""
        return self._expiries.carry_out(request, hold, expire_id)

    def undo_expiry(self, expire_id: str, hold: RunHold) -> Mapping[str, Sequence[int]]:
        """Lists the snapshots of an expiry again. Raises as `Expiries.undo`."""
        return self._expiries.undo(expire_id, hold)

    def expired(self, expiry: Expiry | None) -> RepositoryFormat:
        """Returns the warehouse as it would be after an expiry, to plan with."""
        return IcebergRepository(
            self._warehouse,
            name=self.identity.repository_name,
            selected=self._selected,
            left_out=self._left_out,
            settings=self._settings,
            expiry=expiry,
            clock=self.clock,
        )


def left_alone(tables: Mapping[str, TableMetadata], named: Collection[str]) -> frozenset[str]:
    """Returns those of the `named` tables that forbid deletes, so that their folders are not
    listed. None, if their files cannot be told from those of others by the folders: a run refuses
    then."""
    forbidden = frozenset(each for each in named if not tables[each].allows_deletes)
    theirs, others = (
        outermost(folder for each in some for folder in tables[each].folders)
        for some in (forbidden, frozenset(named) - forbidden)
    )
    return forbidden if others and are_apart(theirs, others) else frozenset()


def check_folders(folders: Collection[str], url: str) -> None:
    """Raises Refused `nested_root` or `prefix_mismatch` unless the folders of tables lie below the
    root."""
    if "" in folders:
        raise Refused(
            "nested_root",
            f"a table's folder is {url} itself, where runs and quarantines lie: set "
            "EBBTIDE_ICEBERG_ROOT to a folder above it",
        )
    if not folders:
        raise Refused(
            "prefix_mismatch",
            f"no folder of the tables lies in {url}: set EBBTIDE_ICEBERG_ROOT, or "
            "EBBTIDE_ICEBERG_ALIASES if only the spelling differs",
        )


def _base_of(document: Mapping[str, Any]) -> tuple[str, datetime] | None:
    """Returns the metadata file that another one was made from, and its date. None without one."""
    log: Any = document.get("metadata-log")
    try:
        last = log[-1]
        return str(last["metadata-file"]), EPOCH + timedelta(milliseconds=last["timestamp-ms"])
    except (IndexError, KeyError, TypeError, OverflowError):
        return None


def _after(tables: TableStates, expiry: Expiry) -> TableStates:
    """Returns the tables as an expiry would leave them."""
    released = {each.partition(":")[::2] for each in expiry.released}
    refs = {ref.name for ref in expiry.deleted_refs}
    return TableStates(
        tables.pointers,
        {
            name: table.without(
                {each for each in table.snapshots if (str(each), name) in released},
                {ref.name for ref in table.refs if f"{name}@{ref.name}" in refs},
            )
            for name, table in tables.metadata.items()
        },
    )
