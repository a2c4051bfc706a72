"""Pages of the uncommitted data of a repository, for a collector.

A reading goes through the tables in the order in which data moves: writes in progress and upload
tokens, then staged rows, then copies. `uncommitted` reads all of them in one transaction, in which
the order does not matter. Here each page is a transaction of its own. A reading nevertheless finds
every address that is there before the first page, and is needed after the last one:

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

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

import pyarrow as pa
import sqlalchemy as sa

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.access.signing import read_signing_keys, read_verifying_keys, sign, verify
from ebbtide.store.collecting.roots import drop_ended_writes
from ebbtide.store.collecting.uncommitted import (
    PHASES,
    STAGED,
    UNCOMMITTED_SCHEMA,
    Phase,
    live_tokens,
    read_batches,
    to_table,
)
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import readings
from ebbtide.store.repositories.promises import promised
from ebbtide.store.staging.copies import begin_reading, end_reading

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
