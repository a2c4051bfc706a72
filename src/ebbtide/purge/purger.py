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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ebbtide.errors import Conflict, EbbtideError, Incomplete, NotFound, Refused
from ebbtide.escaping import shown
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.retaining import check_deletes_versions, retained_json, warnings_of
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Meter
from ebbtide.ids import descending_id
from ebbtide.purge.deleting import Deleted, delete_objects
from ebbtide.purge.naming import resolve_request
from ebbtide.purge.plan import PurgePlan, read_objects, read_plan, write_plan
from ebbtide.purge.record import make_record, read_record, write_record
from ebbtide.purge.references import COLLECTION, COMMIT, COPY, HOLD, STAGED, WRITE
from ebbtide.purge.request import Request
from ebbtide.purge.whole import delete_whole, folder_at, records_storage
from ebbtide.purge.work import Notice, Work, inside_folder, silent
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.content.layout import PURGES_PREFIX
from ebbtide.store.embedded import Store
from ebbtide.store.purges.keys import PurgeKeys
from ebbtide.store.purges.queries import (
    CLOSED,
    PurgeRow,
    find_purge,
    insert_purge,
    list_purges,
    update_purge,
)
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repository import Repository
from ebbtide.text import count_text

logger = logging.getLogger(__name__)

ENDED: Final = ("refused", "failed", "done")
KINDS: Final = {
    COMMIT: ("commit", "commits"),
    COLLECTION: ("collection", "collections"),
    HOLD: ("hold", "holds"),
    STAGED: ("branch on which an object is staged", "branches on which objects are staged"),
    WRITE: ("write in progress", "writes in progress"),
    COPY: ("copy that a reading needs", "copies that a reading needs"),
}
"""The name of each kind of reference, in the singular and in the plural."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """The state of a purge. `plan` is None before the purge is planned, and `record` before its
    record is written."""

    row: PurgeRow
    plan: PurgePlan | None = None
    record: dict[str, Any] | None = None

    def summary(self) -> dict[str, Any]:
        """Returns the fields that the database has, for lists."""
        row = self.row
        return {
            "purge_id": row.purge_id,
            "repository": row.repository_name,
            "repository_id": row.repository_id,
            "state": row.state,
            "request": row.request,
            "record_path": row.record_url,
            "record_sha256": row.record_checksum,
            "started_at": row.started_at.isoformat(),
            "closed_at": None if row.closed_at is None else row.closed_at.isoformat(),
            "finished_at": None if row.finished_at is None else row.finished_at.isoformat(),
            "error": row.error,
        }

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as JSON, as `ebbtide purge show --json` prints them."""
        plan, record = self.plan, self.record or {}
        return self.summary() | {
            "object_count": record.get("object_count", plan.object_count if plan else 0),
            "size_bytes": record.get("size_bytes", plan.bytes_total if plan else 0),
            "foreign_count": plan.foreign_count if plan else 0,
            "outcomes": record.get("outcomes", {}),
            "reference_count": plan.reference_count if plan else 0,
            "reference_counts": dict(plan.reference_counts) if plan else {},
            "references": [each.to_json() for each in plan.references] if plan else [],
            "kept_count": plan.kept_count if plan else 0,
            "kept_bytes": plan.kept_bytes if plan else 0,
            "kept_reference_counts": dict(plan.kept_reference_counts) if plan else {},
            "kept_references": [each.to_json() for each in plan.kept_references] if plan else [],
            "promised_until": (
                plan.promised_until.isoformat() if plan and plan.promised_until else None
            ),
            "retained": retained_json(plan.retained) if plan and plan.retained else None,
            "warnings": list(self.warnings()),
        }

    def warnings(self) -> tuple[str, ...]:
        """Returns the warnings for what the storage keeps of the objects. None before the purge is
        planned."""
        if self.plan is None or self.plan.retained is None:
            return ()
        is_asked = Request.from_json(self.row.request).delete_versions
        return warnings_of(self.plan.retained, versions_deleted=is_asked)


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
        with self._metadata.transaction() as tx:
            now = tx.now()
            purge_id = descending_id(now)
            row = PurgeRow(
                purge_id=purge_id,
                repository_id=repository.info.repository_id,
                repository_name=repository.info.name,
                state="planning",
                request=request.to_json(),
                record_url=self._new_folder(repository, request, purge_id).path,
                started_at=now,
            )
            insert_purge(tx, row)
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
        with form.hold(purge_id, deletes=not dry_run) as hold:
            form.check_storage()
            work = Work(
                self._store,
                repository,
                self.folder(row),
                engine=self._engine,
                notice=self._notice,
            )
            if row.state == "planning":
                row = self._plan(row, work)
            if row.state == "planned" and not dry_run:
                row = self._close(row, work, hold.lease)
            if row.state in CLOSED:
                self._delete(row, None if work.is_whole(row) else hold.check)
        return self.show(purge_id)

    def carry_out_alone(self, purge_id: str, *, dry_run: bool = False) -> None:
        """Carries a purge out in the background. An EbbtideError is recorded with the purge, and
        not raised; any other error is recorded and raised. The purge keeps the state that it has
        reached."""
        try:
            self.carry_out(purge_id, dry_run=dry_run)
        except EbbtideError as error:
            self._keep(purge_id, _error(error.kind, error.message))
        except Exception as error:
            text = f"a defect in this program: {type(error).__name__}: {error}"
            self._keep(purge_id, _error("internal", text))
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
            row = find_purge(tx, purge_id)
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
            inside = inside_folder(self._repository(row), row.purge_id)
        except NotFound:
            return RunFolder.at(row.record_url)
        # The rest of the path may be that of an earlier place of the repository.
        is_inside = row.record_url.endswith(f"{PURGES_PREFIX}{row.purge_id}")
        return inside if is_inside else RunFolder.at(row.record_url)

    def _plan(self, row: PurgeRow, work: Work) -> PurgeRow:
        try:
            plan, found = work.plan(row)
            checksum = write_plan(work.folder, plan, found)
        except EbbtideError as error:
            if not isinstance(error, Refused) or error.kind != "lease_lost":
                self._update(row, state="failed", error=_error(error.kind, error.message))
            raise
        return self._decided(row, plan, checksum, "planned")

    def _close(self, row: PurgeRow, work: Work, lease: Lease) -> PurgeRow:
        plan = self._read_plan(row, work.folder)
        found = work.close(row, plan, lease)
        if not found:
            return self.find(row.purge_id)
        plan = plan.with_references(found)
        return self._decided(row, plan, write_plan(work.folder, plan, found), "planned")

    def _decided(self, row: PurgeRow, plan: PurgePlan, checksum: str, state: str) -> PurgeRow:
        """Records the plan. The purge is refused if a reference prevents it."""
        refusal = _refusal(plan)
        values = {} if refusal is None else {"error": refusal}
        state = state if refusal is None else "refused"
        return self._update(row, state=state, plan_checksum=checksum, **values)

    def _update(self, row: PurgeRow, **values: Any) -> PurgeRow:  # values of the columns' types
        with self._metadata.transaction() as tx:
            update_purge(tx, row.purge_id, **values)
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
        try:
            self._delete_files(row, plan, folder, deleted, check)
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
        with self._metadata.transaction() as tx:
            update_purge(
                tx,
                row.purge_id,
                state=content["state"],
                record_checksum=record.checksum,
                error=None,
                finished_at=now,
            )

    def _delete_files(
        self,
        row: PurgeRow,
        plan: PurgePlan,
        folder: RunFolder,
        into: Deleted,
        check: Callable[[], None] | None,
    ) -> None:
        with_versions = Request.from_json(row.request).delete_versions
        if check is None:
            delete_whole(self._store, plan, folder, into, with_versions=with_versions)
            return
        delete_objects(
            self._repository(row).storage,
            folder,
            plan.parts,
            check=check,
            into=into,
            with_versions=with_versions,
        )

    def _repository(self, row: PurgeRow) -> Repository:
        repository = self._store.repository(row.repository_name)
        if repository.info.repository_id != row.repository_id:
            raise NotFound(
                "repository_not_found",
                f"the repository {row.repository_name!r} of purge {row.purge_id} does not exist "
                "any more",
            )
        return repository

    def _new_folder(self, repository: Repository, request: Request, purge_id: str) -> RunFolder:
        if request.repository:
            return folder_at(records_storage(self._store), purge_id)
        return inside_folder(repository, purge_id)


def _refusal(plan: PurgePlan) -> dict[str, str] | None:
    """Returns the reason why a plan cannot be carried out, or None."""
    if not plan.reference_count:
        return None
    counts = plan.reference_counts
    first = plan.references[0]
    if set(counts) == {HOLD}:
        return _error(
            "purge_held",
            f"commit {first.id} is held ({', '.join(first.names)}), and has objects of this purge"
            f"{_more(plan)}: release the hold first. Nothing was deleted",
        )
    listed = ", ".join(count_text(count, *KINDS[kind]) for kind, count in sorted(counts.items()))
    return _error(
        "purge_in_use",
        f"other data refers to the objects of this purge ({listed}): name that data too (the whole "
        "history names every commit with these objects), or remove the references. Nothing was "
        "deleted",
    )


def _more(plan: PurgePlan) -> str:
    others = plan.reference_count - 1
    return f" (and {count_text(others, 'more hold')})" if others else ""


def _error(kind: str, message: str) -> dict[str, str]:
    return {"kind": kind, "message": message}
