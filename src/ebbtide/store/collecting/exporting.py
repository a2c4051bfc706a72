"""Exports for other collectors: the commits that keep their data, and the uncommitted data.

Exports are under `_ebbtide/gc/exports/`, where no run deletes files. A new export deletes those
that are older than EBBTIDE_RUN_RETENTION, or than a day if that is longer. Not for: Ebbtide's own
collector, which reads the database.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.errors import InvalidInput
from ebbtide.ids import ID_PATTERN, descending_id, new_id
from ebbtide.retention.decision import decide
from ebbtide.store.collecting.preparing import Uncommitted
from ebbtide.store.collecting.roots import read_roots
from ebbtide.store.collecting.tasks import Tasks, place_of
from ebbtide.store.context import RepositoryContext
from ebbtide.store.repositories.promises import promised

COMMITS_FILE: Final = "commits.csv"
ROWS_MAX: Final = 200_000
_TOKEN: Final = re.compile(rf"({ID_PATTERN})\.(.+)", re.DOTALL)


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
        self._tasks = Tasks(context)

    def begin(self) -> str:
        """Records a new task, and returns its id. `carry_out` executes it."""
        return self._tasks.begin()

    def carry_out(self, task_id: str) -> None:
        """Exports the commits, and records the result, as `Tasks.carry_out` does."""

        def work() -> dict[str, Any]:
            self.commits(task_id)
            return {}

        self._tasks.carry_out(task_id, work)

    def commits(self, export_id: str | None = None) -> CommitsExport:
        """Exports the commits that keep their data now. Raises Refused `missing_parent`, Failed."""
        context = self._context
        if export_id is None:
            export_id = descending_id(self._now())
            context.touch_owner()
            self._tasks.drop_old()
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
        self._storage.put(place_of(export_id) + COMMITS_FILE, text.getvalue().encode())
        return self._export(export_id)

    def state(self, task_id: str) -> TaskState:
        """Returns the state of a task. Raises as `Tasks.read` does."""
        found = self._tasks.read(task_id)
        result = None if found.result is None else self._export(task_id)
        return TaskState(task_id, found.updated_at, result, found.error)

    def uncommitted(self, continuation: str | None = None) -> UncommittedExport:
        """Exports one part of the addresses that are needed although no commit has them.

        Raises InvalidInput `invalid_argument`, Conflict `reading_ended`, as `Uncommitted.page`
        does.
        """
        after = None
        if continuation is None:
            self._context.touch_owner()
            self._tasks.drop_old()
            export_id = descending_id(self._now())
        else:
            match = _TOKEN.fullmatch(continuation)
            if match is None:
                raise InvalidInput("invalid_argument", "this is no continuation token of a list")
            export_id, after = match.groups()
        page = Uncommitted(self._context).page(after, rows_max=ROWS_MAX)
        place = f"{place_of(export_id)}uncommitted/"
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

    def _export(self, export_id: str) -> CommitsExport:
        place = self._url(place_of(export_id))
        return CommitsExport(export_id, place + COMMITS_FILE, f"{place}addresses/")

    def _url(self, address: str) -> str:
        return f"{self._storage.url.rstrip('/')}/{address}"

    def _now(self) -> datetime:
        with self._context.metadata.snapshot() as tx:
            return tx.now()
