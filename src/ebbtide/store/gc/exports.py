"""Exports for other collectors: the commits that keep their data, and the uncommitted data.

Exports are under `_ebbtide/gc/exports/`, where no run deletes files. A new export deletes those
that are older than EBBTIDE_RUN_RETENTION, or than a day if that is longer. The progress of a task
is recorded there too, so that every server of the store can read it. Not for: Ebbtide's own
collector, which reads the database.

A reading of the uncommitted data goes through the tables in the order in which data moves: writes
in progress and upload tokens, then staged rows, then copies. `uncommitted` reads all of them in one
transaction, in which the order does not matter. Here each page is a transaction of its own. A
reading nevertheless finds every address that is there before the first page, and is needed after
the last one:

- An address moves from "being written" or "promised" to "staged" to "committed", and never back.
  Each move is one transaction. A reader that reads the tables in this order, and the commits after
  the last page, finds the address. If it has left one table, it is in a later one.
- A staged row keeps its token, path and address until it is dropped. Pages in the order of (token,
  path) therefore contain each row that exists during the whole reading. A commit that seals a
  token, or fails, changes the branch's list of tokens and no row. A new token has only new rows.
  Names of branches do not matter.
- One move leads backwards. A copy shares the address of a staged entry. The copy can be staged
  before the position of the reading, and the source dropped after this position. Copies are
  therefore recorded while a reading is registered, and are read last.

The registration of a reading decides once which rows have ended. Its transaction waits for all
transactions that are restoring or publishing such rows.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound
from ebbtide.ids import ID_PATTERN, descending_id, instant_of, new_id
from ebbtide.retention.decision import decide
from ebbtide.store.access.signed_tokens import read_signing_keys, read_verifying_keys, sign, verify
from ebbtide.store.content.layout import COLLECTOR_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import readings
from ebbtide.store.gc.run_metadata import drop_ended_writes, read_roots
from ebbtide.store.gc.uncommitted import (
    PHASES,
    STAGED,
    UNCOMMITTED_SCHEMA,
    Phase,
    live_tokens,
    read_batches,
    to_table,
)
from ebbtide.store.repositories.repository_rows import promised
from ebbtide.store.staging.staged_rows import begin_reading, end_reading
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


PURPOSE: Final = "prepare"
ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class UncommittedPage:
    """A page of a reading (UNCOMMITTED_SCHEMA).

    `next_continuation` asks for the next page, and is None at the end.
    """

    table: pa.Table
    next_continuation: str | None


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a reading: directly after the row of `phase` whose key is `after`."""

    reading_id: str
    phase: str
    after: tuple[str, ...] = ()


@dataclass(slots=True)
class _Read:
    """The rows of a phase in one page. `row_count` also counts rows that the tables leave out."""

    tables: list[pa.Table]
    row_count: int = 0


class Uncommitted:
    """The uncommitted data of one repository, in pages."""

    phases: ClassVar[tuple[Phase, ...]] = PHASES

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

    def page(self, continuation: str | None = None, *, rows_max: int) -> UncommittedPage:
        """Returns the first page, or the one that a page's `next_continuation` asks for.

        A page has at most `rows_max` rows. It may have fewer, or none, without being the last one.
        A page can be asked for again until the last one was returned.

        Raises InvalidInput `invalid_argument`. Raises Conflict `reading_ended` after the last page,
        and if the reading takes longer than EBBTIDE_PREPARE_TTL.
        """
        if not 1 <= rows_max <= ROWS_MAX:
            raise InvalidInput("invalid_argument", f"rows_max is from 1 to {ROWS_MAX}: {rows_max}")
        position = self._begin() if continuation is None else self._position(continuation)
        following: _Position | None = position
        next_continuation: str | None = None
        tables = [UNCOMMITTED_SCHEMA.empty_table()]
        with self._metadata.snapshot() as tx:
            trash_time = promised(tx, self._context.settings).trash_time
            gone_before = self._require_reading(tx, position.reading_id) - trash_time
            room = rows_max
            while following is not None and room > 0:
                read, following = self._read(tx, following, gone_before=gone_before, rows_max=room)
                tables += read.tables
                room -= read.row_count
            if following is not None:
                next_continuation = self._continuation(tx, following)
        if following is None:
            with self._metadata.transaction() as tx:
                end_reading(tx, self._repository_id, position.reading_id)
        return UncommittedPage(pa.concat_tables(tables), next_continuation)

    def _begin(self) -> _Position:
        """Registers a reading. From now on, ended writes and tokens cannot be published, and gone
        branches cannot be restored."""
        with self._metadata.transaction() as tx:
            reading_id = begin_reading(
                tx, self._repository_id, lasts=self._context.settings.prepare_ttl
            )
            # Ended writes are dropped here, not only skipped. The delete waits for a transaction
            # that is publishing such a write. The write is then staged before the first page is
            # read.
            drop_ended_writes(tx, self._repository_id, lease_ttl=self._context.settings.lease_ttl)
        return _Position(reading_id, self.phases[0].name)

    def _require_reading(self, tx: Transaction, reading_id: str) -> datetime:
        """Returns the time at which the reading began. Raises Conflict `reading_ended`."""
        row = tx.execute(
            sa.select(readings.c.started_at, readings.c.ends_at).where(
                readings.c.repository_id == self._repository_id,
                readings.c.reading_id == reading_id,
            )
        ).one_or_none()
        if row is None or row.ends_at <= tx.now():
            raise Conflict(
                "reading_ended",
                "the reading has ended, or took longer than EBBTIDE_PREPARE_TTL: begin again with "
                "the first page",
            )
        started_at: datetime = row.started_at
        return started_at

    def _read(
        self, tx: Transaction, position: _Position, *, gone_before: datetime, rows_max: int
    ) -> tuple[_Read, _Position | None]:
        """Reads rows of one phase from `position` on. Returns the rows, and the next position or
        None."""
        names = [phase.name for phase in self.phases]
        number = names.index(position.phase)
        phase = self.phases[number]
        query = phase.select(self._repository_id).add_columns(*phase.key).limit(rows_max)
        if position.after:
            query = query.where(sa.tuple_(*phase.key) > sa.tuple_(*position.after))
        live = None
        if phase is STAGED:
            live = live_tokens(tx, self._repository_id, gone_before=gone_before)
        read = _Read([])
        last: Any = None
        for rows in read_batches(tx.connection, query):
            read.row_count += len(rows)
            read.tables.append(to_table(phase, rows, live))
            last = rows[-1]
        if read.row_count == rows_max:
            after = tuple(last._mapping[column] for column in phase.key)
            return read, replace(position, after=after)
        following = names[number + 1 :]
        return read, _Position(position.reading_id, following[0]) if following else None

    def _continuation(self, tx: Transaction, position: _Position) -> str:
        payload = {
            "for": PURPOSE,
            "repository": self._repository_id,
            "reading": position.reading_id,
            "phase": position.phase,
            "after": position.after,
        }
        return sign(read_signing_keys(tx)[0], payload)

    def _position(self, continuation: str) -> _Position:
        """Returns the position in a continuation. Raises InvalidInput `invalid_argument`."""
        with self._metadata.snapshot() as tx:
            keys = read_verifying_keys(tx)
        try:
            payload = verify(keys, continuation)
        except InvalidInput:
            payload = {}
        if payload.get("for") != PURPOSE or payload["repository"] != self._repository_id:
            raise InvalidInput(
                "invalid_argument",
                "this is no continuation token of this repository: pass the token on unchanged, or "
                "begin with the first page",
            )
        return _Position(payload["reading"], payload["phase"], tuple(payload["after"]))


COMMITS_FILE: Final = "commits.csv"
EXPORT_ROWS_MAX: Final = 200_000
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
        page = Uncommitted(self._context).page(after, rows_max=EXPORT_ROWS_MAX)
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
