"""Tasks whose progress is recorded on the storage, so that every server of the store can read it.

The record of a task is in its folder, under `_ebbtide/gc/exports/`, where no run deletes files. A
new task deletes folders that are older than EBBTIDE_RUN_RETENTION, or than a day if that is longer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, NotFound
from ebbtide.ids import ID_PATTERN, descending_id, instant_of
from ebbtide.store.content.layout import COLLECTOR_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.text import shown

logger = logging.getLogger(__name__)

EXPORTS_PREFIX: Final = f"{COLLECTOR_PREFIX}exports/"
STATUS_FILE: Final = "status.json"
_ID: Final = re.compile(ID_PATTERN)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The progress of a task. `result` is None until the task has succeeded, and `error` until it
    has failed."""

    updated_at: datetime
    result: Mapping[str, Any] | None
    error: str | None


class Tasks:
    """The tasks of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._storage = context.storage

    def begin(self) -> str:
        """Records a new task, and returns its id. `carry_out` executes it."""
        task_id = descending_id(self._now())
        self._context.touch_owner()
        self.drop_old()
        self._record(task_id, {})
        return task_id

    def carry_out(self, task_id: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """Calls `work`, and records its result (JSON-ready).

        Raises no EbbtideError: `read` has the error. If the error could not be recorded, `read`
        reports the task as ended after EBBTIDE_PREPARE_TTL.
        """
        try:
            self._record(task_id, {"done": True, "result": work()})
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

    def read(self, task_id: str) -> TaskRecord:
        """Returns the progress of a task. Raises NotFound `task_not_found`, also for a damaged
        record."""
        missing = NotFound("task_not_found", f"there is no task {shown(task_id)}")
        if not _ID.fullmatch(task_id):
            raise missing
        try:
            found = json.loads(self._storage.get(place_of(task_id) + STATUS_FILE))
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
        result = found.get("result", {}) if found.get("done") else None
        return TaskRecord(updated_at, result, error)

    def drop_old(self) -> None:
        """Deletes the folders of old tasks and exports."""
        oldest = self._now() - max(self._context.settings.run_retention, timedelta(days=1))
        for prefix in self._storage.list_prefixes(EXPORTS_PREFIX):
            made_at = instant_of(prefix.removeprefix(EXPORTS_PREFIX).strip("/"))
            if made_at is not None and made_at < oldest:
                for batch in self._storage.list(prefix):
                    self._storage.delete(texts(batch.column("address")))

    def _record(self, task_id: str, state: Mapping[str, Any]) -> None:
        document = {"updated_at": self._now().isoformat(), **state}
        self._storage.put(place_of(task_id) + STATUS_FILE, json.dumps(document).encode())

    def _now(self) -> datetime:
        with self._context.metadata.snapshot() as tx:
            return tx.now()

    def _is_late(self, updated_at: datetime) -> bool:
        # A date far in the future is no sign of life either: a clock was ahead.
        return abs(self._now() - updated_at) > self._context.settings.prepare_ttl


def place_of(task_id: str) -> str:
    """Returns the prefix of the files of a task or export."""
    return f"{EXPORTS_PREFIX}{task_id}/"
