"""Exports for other collectors: the commits that keep their data, and the uncommitted data.

Exports are under `_ebbtide/gc/exports/`, where no run deletes files. A new export deletes those
that are older than EBBTIDE_RUN_RETENTION, or than a day if that is longer. Not for: Ebbtide's own
collector, which reads the database.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.escaping import shown
from ebbtide.ids import ID_PATTERN, descending_id, instant_of, new_id
from ebbtide.retention.decision import decide
from ebbtide.store.collecting.preparing import Uncommitted
from ebbtide.store.collecting.roots import read_roots
from ebbtide.store.content.layout import COLLECTOR_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.repositories.promises import promised

logger = logging.getLogger(__name__)

EXPORTS_PREFIX: Final = f"{COLLECTOR_PREFIX}exports/"
COMMITS_FILE: Final = "commits.csv"
STATUS_FILE: Final = "status.json"
ROWS_MAX: Final = 200_000
_TOKEN: Final = re.compile(rf"({ID_PATTERN})\.(.+)", re.DOTALL)
_ID: Final = re.compile(ID_PATTERN)


@dataclass(frozen=True, slots=True)
class CommitsExport:
    """The commits that keep their data, as CSV at `commits_url`.

    The columns are `commit_id`, `expired` and `metarange_id`. The other collector may write under
    `addresses_url`.
    """

    export_id: str
    commits_url: str
    addresses_url: str


@dataclass(frozen=True, slots=True)
class UncommittedExport:
    """A part of the uncommitted data, as Parquet files under `url`.

    The columns are `physical_address` and `creation_date`. `continuation` asks for the next part,
    and is None at the end.
    """

    export_id: str
    url: str
    continuation: str | None


@dataclass(frozen=True, slots=True)
class TaskState:
    """The progress of an export that `begin` recorded."""

    task_id: str
    updated_at: datetime
    result: CommitsExport | None
    error: str | None

    @property
    def completed(self) -> bool:
        """Whether the export has ended, successfully or not."""
        return self.result is not None or self.error is not None


class Exports:
    """The exports of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._storage = context.storage

    def begin(self) -> str:
        """Records a new task, and returns its id. `carry_out` executes it."""
        task_id = descending_id(self._now())
        self._context.touch_owner()
        self._drop_old()
        self._record(task_id, {})
        return task_id

    def carry_out(self, task_id: str) -> None:
        """Exports the commits, and records the result.

        Raises no EbbtideError: `state` has the error. If the error could not be recorded, `state`
        reports the task as ended after EBBTIDE_PREPARE_TTL.
        """
        try:
            self.commits(task_id)
            self._record(task_id, {"done": True})
        except EbbtideError as error:
            try:
                self._record(task_id, {"error": error.message})
            except EbbtideError as failed:
                logger.error(
                    "task %s: %s; this error could not be recorded: %s",
                    task_id,
                    error.message,
                    failed.message,
                )

    def commits(self, export_id: str | None = None) -> CommitsExport:
        """Exports the commits that keep their data now. Raises Refused `missing_parent`, Failed."""
        context = self._context
        if export_id is None:
            export_id = descending_id(self._now())
            context.touch_owner()
            self._drop_old()
        with context.metadata.snapshot() as tx:
            settings = promised(tx, context.settings)
            roots = read_roots(
                tx,
                context.repository_id,
                lease_ttl=settings.lease_ttl,
                trash_time=settings.trash_time,
            )
        active = decide(roots).active
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["commit_id", "expired", "metarange_id"])
        rows.writerows(
            [commit.commit_id, "false", commit.tree_id]
            for commit in roots.commits
            if commit.commit_id in active
        )
        self._storage.put(_place(export_id) + COMMITS_FILE, text.getvalue().encode())
        return self._export(export_id)

    def state(self, task_id: str) -> TaskState:
        """Returns the state of a task. Raises NotFound `task_not_found`, also for a damaged
        record."""
        missing = NotFound("task_not_found", f"there is no task {shown(task_id)}")
        if not _ID.fullmatch(task_id):
            raise missing
        try:
            found = json.loads(self._storage.get(_place(task_id) + STATUS_FILE))
            updated_at = datetime.fromisoformat(found["updated_at"])
        except NotFound:
            raise missing from None
        except (ValueError, KeyError, TypeError):
            raise NotFound(
                "task_not_found", f"the record of task {task_id} is damaged: begin it again"
            ) from None
        error = found.get("error")
        if error is None and not found.get("done") and self._is_late(updated_at):
            error = "the server that ran the task ended before the task was done"
        result = self._export(task_id) if found.get("done") else None
        return TaskState(task_id, updated_at, result, error)

    def uncommitted(self, continuation: str | None = None) -> UncommittedExport:
        """Exports one part of the addresses that are needed although no commit has them.

        Raises InvalidInput `invalid_argument`, Conflict `reading_ended`, as `Uncommitted.page`
        does.
        """
        after = None
        if continuation is None:
            self._context.touch_owner()
            self._drop_old()
            export_id = descending_id(self._now())
        else:
            match = _TOKEN.fullmatch(continuation)
            if match is None:
                raise InvalidInput("invalid_argument", "this is no continuation token of a list")
            export_id, after = match.groups()
        page = Uncommitted(self._context).page(after, rows_max=ROWS_MAX)
        place = f"{_place(export_id)}uncommitted/"
        if page.table.num_rows:
            self._storage.put(f"{place}{new_id()}.parquet", self._parquet(page.table))
        following = page.next_continuation
        return UncommittedExport(
            export_id, self._url(place), None if following is None else f"{export_id}.{following}"
        )

    def _parquet(self, table: pa.Table) -> bytes:
        chosen = table.select(["address", "created_at"])
        buffer = io.BytesIO()
        pq.write_table(chosen.rename_columns(["physical_address", "creation_date"]), buffer)
        return buffer.getvalue()

    def _record(self, task_id: str, state: Mapping[str, Any]) -> None:
        document = {"updated_at": self._now().isoformat(), **state}
        self._storage.put(_place(task_id) + STATUS_FILE, json.dumps(document).encode())

    def _export(self, export_id: str) -> CommitsExport:
        place = self._url(_place(export_id))
        return CommitsExport(export_id, place + COMMITS_FILE, f"{place}addresses/")

    def _url(self, address: str) -> str:
        return f"{self._storage.url.rstrip('/')}/{address}"

    def _now(self) -> datetime:
        with self._context.metadata.snapshot() as tx:
            return tx.now()

    def _is_late(self, updated_at: datetime) -> bool:
        return self._now() - updated_at > self._context.settings.prepare_ttl

    def _drop_old(self) -> None:
        oldest = self._now() - max(self._context.settings.run_retention, timedelta(days=1))
        for prefix in self._storage.list_prefixes(EXPORTS_PREFIX):
            made_at = instant_of(prefix.removeprefix(EXPORTS_PREFIX).strip("/"))
            if made_at is not None and made_at < oldest:
                for batch in self._storage.list(prefix):
                    self._storage.delete(texts(batch.column("address")))


def _place(export_id: str) -> str:
    return f"{EXPORTS_PREFIX}{export_id}/"
