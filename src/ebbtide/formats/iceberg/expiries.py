"""Expiries of snapshots: what goes by the tables' rules and a policy, its record, and its undo.

Before a table changes, a record says what goes, word for word. It lies on the storage, for each
table below its uuid. Two things need it: an undo, and policies, which count a thinned history as
one line. Not for: how a catalog changes a table (`expiring`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, Field

from ebbtide.arrow import texts
from ebbtide.clock import Clock
from ebbtide.errors import EbbtideError, Gone, Incomplete, InvalidInput, NotFound, Refused
from ebbtide.formats.base import RunHold, absent_among, changed, storage_clocks
from ebbtide.formats.iceberg.expiring import Removal, SqlCommit, restored
from ebbtide.formats.iceberg.metadata import (
    STATISTICS,
    DamagedMetadataError,
    TableMetadata,
    TableSnapshot,
    document_of,
    read_metadata,
    read_ref,
    read_snapshot,
    read_statistics,
)
from ebbtide.formats.iceberg.places import Places
from ebbtide.formats.iceberg.reading import IcebergReading
from ebbtide.formats.iceberg.rest import RestCommit, commit_of, settle
from ebbtide.formats.iceberg.rules import kept_by_rules
from ebbtide.formats.iceberg.tables import TableStates, Warehouse, commit_id_of, snapshot_of
from ebbtide.formats.notes import as_written
from ebbtide.ids import LATEST
from ebbtide.model import EPOCH, Commit
from ebbtide.retention.expiry import Expiry, ExpiryRequest
from ebbtide.retention.selection import select_commits
from ebbtide.settings import Settings
from ebbtide.storage import Storage

RECORDS_PREFIX: Final = "_ebbtide/expire/"
COMMITS_MAX: Final = 20
"""The most attempts to change a table, while other writers are faster."""
_SHOWN_MAX: Final = 5
_UNDO_FIRST: Final = "If a run has it in quarantine, undo that run first: 'ebbtide gc undo'"


@dataclass(frozen=True, slots=True)
class IcebergHistory:
    """The snapshots of tables as commits, by their ids."""

    commits: Mapping[str, Commit]


class Removed(BaseModel, frozen=True):
    """What an expiry removed from a table, as the metadata file had it."""

    snapshots: list[dict[str, Any]]
    statistics: list[dict[str, Any]]
    partition_statistics: list[dict[str, Any]] = Field(alias="partition-statistics")
    refs: dict[str, dict[str, Any]]

    def read(self, places: Places) -> tuple[TableSnapshot, ...]:
        """Returns the snapshots. Raises as `read_metadata` unless all of it can be listed again."""
        read_statistics(self.model_dump(by_alias=True), places)
        for name, row in self.refs.items():
            read_ref(name, row)
        for row in self.snapshots:
            if not isinstance(row.get("sequence-number", 0), int):
                raise DamagedMetadataError("sequence-number is no number")
        return tuple(read_snapshot(row, places) for row in self.snapshots)


class ExpiryRecord(BaseModel, frozen=True):
    """The record of an expiry of one table. `metadata` is the address of the table's metadata file
    before it. `bridges` maps each snapshot whose parent was removed to the nearest ancestor that
    stays."""

    at: AwareDatetime
    table: str
    metadata: str
    removed: Removed
    bridges: dict[int, int]


@dataclass(frozen=True, slots=True)
class RecordedExpiry:
    """A record as it was read: the id of its expiry, and the snapshots that are in it."""

    expire_id: str
    record: ExpiryRecord
    snapshots: tuple[TableSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Expiries:
    """The expiries of the `selected` tables of a warehouse."""

    warehouse: Warehouse
    selected: frozenset[str]
    settings: Settings
    clock: Clock

    @property
    def _commit(self) -> SqlCommit | RestCommit:
        return commit_of(self.warehouse)

    @property
    def storage(self) -> Storage:
        """The storage of the warehouse."""
        return self.warehouse.storage

    def plan(self, request: ExpiryRequest) -> tuple[IcebergHistory, Expiry]:
        """Returns the present snapshots of the tables, and the expiry that a request leads to.

        A snapshot goes only if the table's own rules do not keep it, nor the policy of the request.
        Raises InvalidInput `invalid_argument`, and Refused as a reading does.
        """
        commit_of(self.warehouse)  # refuses other catalogs
        if request.delete_refs:
            raise InvalidInput(
                "invalid_argument",
                "branches and tags of Iceberg tables end by their own max-ref-age-ms: leave the "
                "options for expired branches and tags out",
            )
        tables = self._read()
        names = self.selected & tables.metadata.keys()
        return self._plan(request, tables, names, self._bridges(tables, names))

    def _read(self, known: Mapping[str, TableMetadata] | None = None) -> TableStates:
        tables = self.warehouse.read(known)
        check_allowed(tables, self.selected)
        return tables

    def _plan(
        self,
        request: ExpiryRequest,
        tables: TableStates,
        names: Collection[str],
        bridges: Mapping[str, str],
    ) -> tuple[IcebergHistory, Expiry]:
        now = self.clock.host_now()
        some = TableStates(tables.pointers, {name: tables.metadata[name] for name in sorted(names)})
        roots = IcebergReading(some, now).roots()
        known = {each.commit_id for each in roots.commits}
        commits = {each.commit_id: _bridged(each, known, bridges) for each in roots.commits}
        kept, dropped = set[str](), set[str]()
        for name, table in some.metadata.items():
            older_than = None if request.older_than == EPOCH else request.older_than
            try:
                by_rules = kept_by_rules(table, now=now, older_than=older_than)
            except DamagedMetadataError as error:
                raise Refused("corrupt_tree", f"table {name}: {error}") from error
            kept |= {commit_id_of(name, each) for each in by_rules.snapshots}
            dropped |= {f"{name}@{ref}" for ref in by_rules.dropped_refs}
        kept |= {each for each, commit in commits.items() if commit.created_at >= request.younger}
        warnings: tuple[str, ...] = ()
        if request.policy is not None:
            refs = [ref for ref in roots.refs if ref.name not in dropped]
            selection = select_commits(commits.values(), refs, request.policy, now)
            kept |= selection.active.keys()
            warnings = selection.warnings
        return IcebergHistory(commits), Expiry(
            new_parents={},
            released=frozenset(commits.keys() - kept),
            deleted_refs=tuple(ref for ref in roots.refs if ref.name in dropped),
            warnings=warnings,
        )

    def carry_out(
        self, request: ExpiryRequest, hold: RunHold, expire_id: str
    ) -> tuple[IcebergHistory, Expiry]:
        """Carries out a request, one table after the other.

        If a table is changed meanwhile, decides anew. Raises Refused `clock_skew`,
        `repository_changed` and as a reading does, and Failed `catalog_error`; each of them as
        Incomplete once a table has been changed.
        """
        settle(self.warehouse, self.clock.host_now())
        history, planned = self.plan(request)
        done: list[Expiry] = []
        # What is the same for all tables is read once: a catalog can have thousands.
        known = self.warehouse.read().metadata
        released = {each.partition(":")[2] for each in planned.released}
        dropped = {ref.name.rpartition("@")[0] for ref in planned.deleted_refs}
        for name in sorted(released | dropped):
            with _one_table(name, is_first=all(each.is_empty for each in done)):
                done.append(self._expire(request, hold, expire_id, name, known))
        return history, Expiry(
            new_parents={},
            released=frozenset[str]().union(*(each.released for each in done)),
            deleted_refs=tuple(ref for each in done for ref in each.deleted_refs),
            warnings=planned.warnings,
        )

    def _expire(
        self,
        request: ExpiryRequest,
        hold: RunHold,
        expire_id: str,
        name: str,
        known: Mapping[str, TableMetadata],
    ) -> Expiry:
        for _ in range(COMMITS_MAX):
            tables = self._read(known)
            own = {name} & tables.metadata.keys()
            history, expiry = self._plan(request, tables, own, self._bridges(tables, own))
            if expiry.is_empty:
                return expiry
            table = tables.metadata[name]
            removed = Removal(
                frozenset(map(snapshot_of, expiry.released)),
                tuple(ref.name.rpartition("@")[2] for ref in expiry.deleted_refs),
            )
            record = self._record(expire_id, name, table, removed, history)
            # The record was written just now, so that its date is the storage's clock.
            clocks = storage_clocks(self.storage, record, self.clock)
            clocks.check(skew_max=self.settings.clock_skew_max)
            hold.check()
            location, now = tables.pointers[name], self.clock.host_now()
            commit = self._commit
            if commit.remove(name, location, table.address, removed, now):
                back = {commit_id_of(name, each) for each in commit.back}
                return replace(expiry, released=expiry.released - back)
        raise changed(f"table {name} was committed to during {COMMITS_MAX} attempts: try again")

    def _record(
        self,
        expire_id: str,
        name: str,
        table: TableMetadata,
        removed: Removal,
        history: IcebergHistory,
    ) -> str:
        """Records what an expiry removes, before it does, and returns the record's address."""
        document = document_of(self.storage.get(table.address))
        gone = {commit_id_of(name, each) for each in removed.snapshots}
        lists = {
            each: [row for row in document.get(each, []) if row["snapshot-id"] in removed.snapshots]
            for each in ("snapshots", *STATISTICS)
        }
        record = ExpiryRecord(
            at=self.clock.host_now(),
            table=name,
            metadata=table.address,
            removed=Removed(refs={each: document["refs"][each] for each in removed.refs}, **lists),
            bridges={
                snapshot_of(child): snapshot_of(parent)
                for child, parent in _bridges_over(gone, history.commits)
            },
        )
        address = f"{_records_of(table)}{expire_id}{_mark_of(name)}"
        self.storage.put(address, record.model_dump_json(indent=1, by_alias=True).encode())
        return address

    def _bridges(self, tables: TableStates, names: Collection[str]) -> Mapping[str, str]:
        """Returns the nearest ancestor of each snapshot whose parent an expiry removed, as ids of
        commits. A table does not tell it any more. The newest record of a table has all of them."""
        found: dict[str, str] = {}
        for name in names:
            records = self._names(_records_of(tables.metadata[name]))
            if records:
                # A table that was renamed has records under its old name.
                own = [each for each in records if each.endswith(_mark_of(name))] or records
                found |= {
                    commit_id_of(name, each): commit_id_of(name, parent)
                    for each, parent in self._read_record(own[0]).record.bridges.items()
                }
        return found

    def _read_record(self, address: str) -> RecordedExpiry:
        """Raises Refused `plan_corrupt`, and as `read_snapshot`."""
        otherwise = (
            "delete it: its expiry then cannot be undone, and a policy counts the history before "
            "and after a gap as two"
        )
        data = self.storage.get(address)
        with as_written(self.storage, address, otherwise):
            record = ExpiryRecord.model_validate_json(data)
            snapshots = record.removed.read(self.warehouse.layout.places)
        return RecordedExpiry(_id_of(address), record, snapshots)

    def _names(self, prefix: str) -> list[str]:
        """Returns the addresses of records, the newest of a table first."""
        batches = self.storage.list(prefix)
        return sorted(each for batch in batches for each in texts(batch.column("address")))

    def recorded(self) -> Iterator[RecordedExpiry]:
        """Yields the records of all expiries of the warehouse, for explanations. Raises Refused
        `plan_corrupt`."""
        yield from map(self._read_record, self._names(RECORDS_PREFIX))

    def undo(self, expire_id: str, hold: RunHold) -> dict[str, list[int]]:
        """Lists the snapshots again that an expiry removed, and sets the refs that it dropped.
        Returns the snapshots by table.

        Each snapshot at which no ref points gets a tag, which has no end: the next expiry would
        remove it again. Nothing changes unless all of its files exist. Raises NotFound
        `run_not_found`, Gone `commit_expired` if another expiry removed the snapshot of a ref,
        Refused `plan_corrupt`, `missing_tree`, `missing_node` or `missing_object`, and as
        `carry_out` does.
        """
        settle(self.warehouse, self.clock.host_now())
        records = self._names(RECORDS_PREFIX)
        if expire_id == LATEST and records:
            expire_id = min(map(_id_of, records))
        chosen = [each for each in records if _id_of(each) == expire_id]
        found = [self._read_record(each).record for each in chosen]
        own = {each.table: each.removed for each in found if each.table in self.selected}
        if not own:
            raise NotFound(
                "run_not_found",
                f"there is no record of an expiry {expire_id} of these tables in "
                f"{self.storage.url}/{RECORDS_PREFIX}",
            )
        done: dict[str, list[int]] = {}
        for name in sorted(own):
            with _one_table(name, is_first=not any(done.values())):
                done[name] = self._undo(name, own[name].model_dump(by_alias=True), hold)
        return done

    def _undo(self, name: str, removed: Mapping[str, Any], hold: RunHold) -> list[int]:
        for _ in range(COMMITS_MAX):
            tables = self._read()
            table = tables.metadata[name]
            document = document_of(self.storage.get(table.address))
            listed = [each["snapshot-id"] for each in removed["snapshots"]]
            back = [each for each in listed if each not in table.snapshots]
            location, now = tables.pointers[name], self.clock.host_now()
            after = restored(document, removed, location=location, now=now)
            if after is None:
                return []
            _check_refs(name, after)
            self._check_files(name, tables, after)
            hold.check()
            if self._commit.put(name, location, table.address, after):
                return back
        raise changed(f"table {name} was committed to during {COMMITS_MAX} attempts: try again")

    def _check_files(self, name: str, tables: TableStates, after: Mapping[str, Any]) -> None:
        """Raises Refused unless all files exist that a table would need in addition."""
        table, layout = tables.metadata[name], self.warehouse.layout
        data = json.dumps(after).encode()
        try:
            read = read_metadata(data, table.address, layout.places)
        except DamagedMetadataError as error:
            raise Refused(
                "plan_corrupt", f"the record of this expiry of table {name} is damaged: {error}"
            ) from error
        state = TableStates(tables.pointers, {name: read})
        try:
            needed = dict(self.warehouse.added(state, tables.trees()))
        except Refused as error:
            error.restate(f"{error.message}. {_UNDO_FIRST}")
            raise
        gone = list(islice(absent_among(self.storage, sorted(needed)), _SHOWN_MAX))
        if gone:
            raise Refused(
                "missing_object",
                f"table {name} would need {gone[0]}, which is missing. {_UNDO_FIRST}",
                errors=gone,
            )


def check_allowed(tables: TableStates, selected: Collection[str]) -> None:
    """Raises Refused `repository_readonly` if one of the `selected` tables forbids deletes."""
    for name in sorted(selected & tables.metadata.keys()):
        if not tables.metadata[name].allows_deletes:
            raise Refused(
                "repository_readonly",
                f"table {name} sets gc.enabled=false: files of it may belong to others, or be "
                "named by others. Set the property to true once you know that neither is so",
            )


def _check_refs(name: str, after: Mapping[str, Any]) -> None:
    """Raises Gone unless a table would list the snapshots of all of its refs."""
    listed = {each["snapshot-id"] for each in after["snapshots"]}
    for ref, row in sorted(after["refs"].items()):
        if row["snapshot-id"] not in listed:
            raise Gone(
                "commit_expired",
                f"ref {ref} of table {name} would point to snapshot {row['snapshot-id']}, which "
                "the table does not list: if a later expiry removed it, undo that one first",
            )


@contextmanager
def _one_table(name: str, *, is_first: bool) -> Iterator[None]:
    """Raises errors as Incomplete if tables before this one are changed already."""
    try:
        yield
    except EbbtideError as error:
        if is_first:
            raise
        raise Incomplete(
            "incomplete",
            f"this stopped at table {name}: {error.message}. The tables before it are done: run it "
            "again",
        ) from error


def _records_of(table: TableMetadata) -> str:
    return f"{RECORDS_PREFIX}{table.uuid or 'none'}/"


def _mark_of(name: str) -> str:
    """Returns the end of the names of a table's records: tables that were registered twice have one
    uuid."""
    return f".{hashlib.sha256(name.encode()).hexdigest()[:8]}.json"


def _id_of(record: str) -> str:
    return record.rpartition("/")[2].partition(".")[0]


def _bridged(commit: Commit, known: Collection[str], bridges: Mapping[str, str]) -> Commit:
    """Returns a commit with its nearest ancestor that is still listed as its parent. A history that
    was thinned stays one line, of which a policy counts days or months."""
    if commit.first_parent_id is None or commit.first_parent_id in known:
        return commit
    ancestor = bridges.get(commit.commit_id, "")
    return replace(commit, parent_ids=(ancestor,) if ancestor in known else ())


def _bridges_over(
    gone: Collection[str], commits: Mapping[str, Commit]
) -> Iterator[tuple[str, str]]:
    """Yields each commit that stays, with its nearest ancestor that stays."""
    for commit_id, commit in commits.items():
        place = commit.first_parent_id
        while place is not None and place in gone:
            place = commits[place].first_parent_id
        if place is not None and commit_id not in gone:
            yield commit_id, place
