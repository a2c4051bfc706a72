"""The purges of a store: begins, plans, carries out, resumes and shows them.

A purge is in one of these states:

    planning ─▶ planned ─▶ deleting ─▶ done
        │ │        │           └─────▶ incomplete ─▶ done
        │ └────────┴▶ refused
        └▶ failed

If a reference prevents the purge, the plan or the closing leads to `refused`. Until `planned`, only
the purge's own files are written. The transaction that closes the addresses leads to `deleting`,
and cannot be undone. A purge that stopped before `failed`, `refused` or `done` can be resumed.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, EbbtideError, Incomplete, NotFound, Refused, UnknownRepository
from ebbtide.formats.base import Identity
from ebbtide.formats.embedded import FORMAT_NAME, EmbeddedRepository
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.costs import check_deletes_versions
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.parts import PartRows
from ebbtide.gc.report import error_json
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Meter
from ebbtide.ids import descending_id
from ebbtide.purge.deleting import (
    Deleted,
    close_whole,
    delete_objects,
    delete_whole,
    gather_whole,
    holds_in_the_way,
    keep_records,
    records_storage,
)
from ebbtide.purge.objects import OBJECTS_STEM, gather, read_objects, write_objects
from ebbtide.purge.plan import (
    KEPT_REFERENCES_FILE,
    KEPT_STEM,
    NAMED_STEM,
    PurgePlan,
    PurgeReport,
    read_plan,
    refusal_of,
    write_plan,
)
from ebbtide.purge.record import make_record, read_record, write_record
from ebbtide.purge.references import Reference, ReferenceSearch, to_table
from ebbtide.purge.request import Named, Request, resolve_request
from ebbtide.purge.scanning import TreeScan
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.content.layout import PURGES_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.embedded import Store
from ebbtide.store.purge_records import (
    CLOSED,
    PURGES,
    PurgeKeys,
    PurgeRow,
    list_purges,
)
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repository import Repository
from ebbtide.text import shown

logger = logging.getLogger(__name__)

ENDED: Final = ("refused", "failed", "done")
Notice = Callable[[str], None]
"""A function that is called with the name of each step as it begins."""


def silent(_step: str) -> None:
    """A notice that does nothing."""


@dataclass(slots=True)
class _Attempt:
    """One attempt to plan and close one purge, under the repository's lease. `engine` returns the
    engine that reads the trees, if there are many."""

    row: PurgeRow
    store: Store
    repository: Repository
    folder: RunFolder
    engine: Callable[[], Engine]
    notice: Notice
    _search: ReferenceSearch | None = None

    @property
    def context(self) -> RepositoryContext:
        """The repository's context."""
        return self.repository.context

    def plan(self) -> tuple[PurgePlan, Sequence[Reference]]:
        """Finds the objects, writes them into the folder, and finds the references that prevent the
        purge.

        Raises as `resolve_request` does, and Refused if a tree cannot be read.
        """
        row, request = self.row, Request.from_json(self.row.request)
        with self.context.metadata.snapshot() as tx:
            planned_at = tx.now()
        self.notice("objects")
        named, foreign_count = Named(), 0
        if request.repository:
            parts, foreign_count = gather_whole(self.context, self.folder)
        else:
            resolved = resolve_request(self.repository, request)
            stem = NAMED_STEM if request.keep_shared else OBJECTS_STEM
            named = resolved.named
            parts = gather(self.context, resolved, self.folder, stem=stem)
        plan = PurgePlan(
            purge_id=row.purge_id,
            identity=Identity(
                FORMAT_NAME, self.store.store_id, row.repository_id, row.repository_name
            ),
            storage_url=self.context.storage.url,
            planned_at=planned_at,
            whole=request.repository,
            named=named,
            parts=tuple(parts),
            foreign_count=foreign_count,
            reference_counts={},
            retained=self.context.storage.retained(),
        )
        self.notice("references")
        if plan.whole:
            with self.context.metadata.snapshot() as tx:
                holds = holds_in_the_way(tx, row.repository_id)
            return plan.with_references(holds), holds
        if request.keep_shared:
            plan = self._without_shared(plan)
        found = self._searching(plan).find()
        plan = replace(plan, promised_until=found.promised_until)
        return plan.with_references(found.references), found.references

    def close(self, plan: PurgePlan, lease: Lease) -> Sequence[Reference]:
        """Closes the named addresses, or the whole repository. If a reference prevents this,
        changes nothing, and returns all such references."""
        self.notice("close")
        if plan.whole:
            keep_records(self.context, records_storage(self.store))
            return close_whole(self.context, lease, plan.purge_id)
        return self._searching(plan).close(lease, plan.purge_id)

    def _without_shared(self, plan: PurgePlan) -> PurgePlan:
        """Returns the plan without the objects that other data needs, which are written into files
        of their own."""
        search = self._searching(plan)
        found = search.find()
        shared = search.shared(found)
        PartRows().wrote(
            self.folder, KEPT_REFERENCES_FILE, to_table(found.references), durable=True
        )
        known, parts, kept = pa.array(list(shared), pa.string()), PartRows(), PartRows()
        for number, objects in enumerate(read_objects(self.folder, plan.parts)):
            is_shared = pc.is_in(objects.column("address"), value_set=known)
            for answer, stem, chosen in (
                (parts, OBJECTS_STEM, objects.filter(pc.invert(is_shared))),
                (kept, KEPT_STEM, objects.filter(is_shared)),
            ):
                write_objects(answer, self.folder, chosen, stem=f"{stem}-{number:05d}")
        reduced = plan.without_shared(shared, parts.parts(), kept.parts(), found.references)
        addresses = search.addresses - shared
        scan = search.scan.narrowed(addresses)
        self._search = replace(search, addresses=addresses, named=reduced.named, scan=scan)
        return reduced

    def _searching(self, plan: PurgePlan) -> ReferenceSearch:
        """Returns the search of this purge. If this attempt also planned the purge, the results of
        that search are reused."""
        if self._search is None:
            tables = read_objects(self.folder, plan.parts)
            addresses = frozenset(
                address for table in tables for address in texts(table.column("address"))
            )
            scan = TreeScan(
                self.context.storage,
                EmbeddedLayout(),
                addresses,
                asked=frozenset(path for paths in plan.named.paths.values() for path in paths),
                engine=self.engine,
            )
            with self.context.metadata.snapshot() as tx:
                now = tx.now()
            scan.recall(self.folder, now=now)
            self._search = ReferenceSearch(self.context, addresses, plan.named, scan)
        return self._search


class Purges:
    """The purges of a store. `meter` counts deleted objects. `engine` returns the engine that reads
    the trees of a long history; by default this process reads them."""

    def __init__(
        self,
        store: Store,
        *,
        notice: Notice = silent,
        engine: Callable[[], Engine] = DuckEngine,
    ) -> None:
        self._store = store
        self._metadata = store.metadata
        self._notice = notice
        self._engine = engine
        self.meter = Meter()
        self.keys = PurgeKeys(store.metadata, SecretBox(store.directory, store.settings))

    def begin(self, repository_name: str, request: Request) -> PurgeRow:
        """Records that a purge was requested. Nothing is planned yet.

        Versions are deleted if the request or the store's settings say so. Raises InvalidInput,
        NotFound and Gone for the named things, InvalidInput `invalid_argument` if the storage
        cannot delete versions, and Failed `secret_key_missing` if the record could not be signed.
        """
        request.check()
        repository = self._store.repository(repository_name)
        if self._store.settings.delete_versions:
            request = replace(request, delete_versions=True)
        if request.delete_versions:
            check_deletes_versions(repository.storage)
        if not request.repository:
            resolve_request(repository, request)
        self.keys.current()
        storage, prefix = repository.storage, PURGES_PREFIX
        if request.repository:
            storage, prefix = records_storage(self._store), ""
        with self._metadata.transaction() as tx:
            now = tx.now()
            purge_id = descending_id(now)
            row = PurgeRow(
                purge_id=purge_id,
                repository_id=repository.info.repository_id,
                repository_name=repository.info.name,
                state="planning",
                request=request.to_json(),
                record_url=RunFolder(storage, f"{prefix}{purge_id}/").path,
                started_at=now,
            )
            PURGES.insert(tx, row)
        return row

    def carry_out(self, purge_id: str, *, dry_run: bool = False) -> PurgeReport:
        """Does the remaining steps of a purge: plans it, closes its addresses, and deletes the
        objects. With `dry_run` it ends after the plan.

        A refused or incomplete purge is returned, not raised. Raises Conflict `purge_ended`,
        NotFound `purge_not_found`, Refused `run_in_progress` or `lease_lost`, Incomplete if it
        stops after its first delete, and the errors of the steps. An error while planning makes the
        purge `failed`, except `lease_lost`. After any other error it can be resumed.
        """
        row = self.find(purge_id)
        self.require_open(row)
        if row.request["repository"] and row.closed_at is not None:
            # The database does not have the repository any more.
            self._delete(row, None)
            return self.show(purge_id)
        repository = self._repository(row)
        form = EmbeddedRepository(repository.context, store_id=self._store.store_id)
        with form.hold(purge_id) as hold:
            form.check_storage()
            attempt = _Attempt(
                row, self._store, repository, self.folder(row), self._engine, self._notice
            )
            if row.state == "planning":
                row = self._plan(row, attempt)
            if row.state == "planned" and not dry_run:
                row = self._close(row, attempt, hold.lease)
            if row.state in CLOSED:
                self._delete(row, None if row.request["repository"] else hold.check)
        return self.show(purge_id)

    def carry_out_alone(self, purge_id: str, *, dry_run: bool = False) -> None:
        """Carries a purge out in the background. An EbbtideError is recorded with the purge, and
        not raised; any other error is recorded and raised. The purge keeps the state that it has
        reached."""
        try:
            self.carry_out(purge_id, dry_run=dry_run)
        except EbbtideError as error:
            self._keep(purge_id, error_json(error.kind, error.message))
        except Exception as error:
            text = f"a defect in this program: {type(error).__name__}: {error}"
            self._keep(purge_id, error_json("internal", text))
            raise

    def _keep(self, purge_id: str, error: dict[str, str]) -> None:
        """Records the error of a purge. If the database does not accept it, the error is only
        logged."""
        try:
            self._update(self.find(purge_id), error=error)
        except EbbtideError as failed:
            logger.error(
                "purge %s: %s; this error could not be recorded: %s",
                purge_id,
                error["message"],
                failed.message,
            )

    def require_open(self, row: PurgeRow) -> None:
        """Raises Conflict `purge_ended` if nothing is left to do for the purge."""
        if row.state in ENDED:
            raise Conflict(
                "purge_ended", f"purge {row.purge_id} is {row.state}: nothing is left to do"
            )

    def list(self, repository_name: str) -> list[PurgeRow]:
        """Returns the purges of all repositories that had this name, the newest first."""
        with self._metadata.snapshot() as tx:
            return list_purges(tx, repository_name)

    def show(self, purge_id: str) -> PurgeReport:
        """Returns one purge. Raises NotFound `purge_not_found`, and Refused if its files are
        damaged."""
        row = self.find(purge_id)
        if row.plan_checksum is None:
            return PurgeReport(row)
        folder = self.folder(row)
        plan = read_plan(folder, row.plan_checksum)
        record = read_record(folder)
        return PurgeReport(row, plan, None if record is None else record.content)

    def find(self, purge_id: str) -> PurgeRow:
        """Returns the database's row of a purge. Raises NotFound `purge_not_found`."""
        with self._metadata.snapshot() as tx:
            row = PURGES.by_id(tx, purge_id)
        if row is None:
            raise NotFound("purge_not_found", f"there is no purge {shown(purge_id)}")
        return row

    def objects(self, report: PurgeReport, *, limit: int) -> builtins.list[dict[str, Any]]:
        """Returns the first objects of a purge, as rows of OBJECTS_SCHEMA."""
        found: builtins.list[dict[str, Any]] = []
        parts = () if report.plan is None else report.plan.parts
        for table in read_objects(self.folder(report.row), parts):
            found += table.slice(0, limit - len(found)).to_pylist()
            if len(found) >= limit:
                break
        return found

    def folder(self, row: PurgeRow) -> RunFolder:
        """Returns the folder with the files of a purge."""
        try:
            storage = self._repository(row).storage
        except NotFound:
            return RunFolder.at(row.record_url)
        # The rest of the path may be that of an earlier place of the repository.
        prefix = f"{PURGES_PREFIX}{row.purge_id}"
        is_inside = row.record_url.endswith(prefix)
        return RunFolder(storage, f"{prefix}/") if is_inside else RunFolder.at(row.record_url)

    def _plan(self, row: PurgeRow, attempt: _Attempt) -> PurgeRow:
        try:
            plan, found = attempt.plan()
            checksum = write_plan(attempt.folder, plan, found)
        except EbbtideError as error:
            if not isinstance(error, Refused) or error.kind != "lease_lost":
                self._update(row, state="failed", error=error_json(error.kind, error.message))
            raise
        return self._decided(row, plan, checksum)

    def _close(self, row: PurgeRow, attempt: _Attempt, lease: Lease) -> PurgeRow:
        plan = self._read_plan(row, attempt.folder)
        found = attempt.close(plan, lease)
        if not found:
            return self.find(row.purge_id)
        plan = plan.with_references(found)
        return self._decided(row, plan, write_plan(attempt.folder, plan, found))

    def _decided(self, row: PurgeRow, plan: PurgePlan, checksum: str) -> PurgeRow:
        """Records the plan. The purge is refused if a reference prevents it."""
        refusal = refusal_of(plan)
        if refusal is None:
            return self._update(row, state="planned", plan_checksum=checksum)
        return self._update(row, state="refused", plan_checksum=checksum, error=refusal)

    def _update(self, row: PurgeRow, **values: Any) -> PurgeRow:  # values of the columns' types
        with self._metadata.transaction() as tx:
            PURGES.update(tx, row.purge_id, **values)
        return replace(row, **values)

    def _read_plan(self, row: PurgeRow, folder: RunFolder) -> PurgePlan:
        assert row.plan_checksum is not None  # a purge has a plan once it is past `planning`
        return read_plan(folder, row.plan_checksum)

    def _delete(self, row: PurgeRow, check: Callable[[], None] | None) -> None:
        """Deletes the closed objects, and writes the record. `check` is None for a whole
        repository."""
        folder = self.folder(row)
        plan = self._read_plan(row, folder)
        deleted = Deleted()
        self._notice("delete")
        self.meter.begin("objects", plan.object_count)
        with_versions = Request.from_json(row.request).delete_versions
        try:
            if check is None:
                delete_whole(self._store, plan, folder, deleted, with_versions=with_versions)
            else:
                delete_objects(
                    self._repository(row).storage,
                    folder,
                    plan.parts,
                    check=check,
                    into=deleted,
                    with_versions=with_versions,
                )
        except (Refused, NotFound, Conflict) as error:
            if not deleted.parts:
                raise
            raise Incomplete(
                "incomplete",
                f"purge {row.purge_id} was stopped: {error.message}. The objects that it deleted "
                "until then are on record: resume it",
            ) from error
        self._notice("record")
        previous = read_record(folder)
        with self._metadata.snapshot() as tx:
            now = tx.now()
        content = make_record(
            row,
            plan,
            deleted,
            finished_at=now,
            previous=None if previous is None else previous.checksum,
        )
        record = write_record(folder, content, self.keys)
        self._update(
            row,
            state=content["state"],
            record_checksum=record.checksum,
            error=None,
            finished_at=now,
        )

    def _repository(self, row: PurgeRow) -> Repository:
        repository = self._store.repository(row.repository_name)
        if repository.info.repository_id != row.repository_id:
            raise UnknownRepository(
                "repository_not_found",
                f"the repository {row.repository_name!r} of purge {row.purge_id} does not exist "
                "any more",
            )
        return repository
