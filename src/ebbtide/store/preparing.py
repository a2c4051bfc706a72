"""Everything that no commit holds yet and that is needed all the same, in pages for a collector.

The reading goes through the tables in the order in which data moves: writes in progress and upload
tokens, then what is staged, then copies. In one transaction (`uncommitted`) the order does not
matter. Here each page is a transaction of its own, and nothing that was there before the first and
is needed after the last is missed, whatever happens between:

- An address moves from "being written" or "promised" to "staged" to "committed", and never back;
  each move is one transaction. Whoever looks in that order, and at the commits after the last page,
  meets it: not seen in one table, it had moved on to the next before that was read.
- A staged row keeps its token, path and address until it is dropped, so that pages by (token, path)
  pass it or it was not there. Commits that seal a token, or fail, change the list of a branch's
  tokens and no row; a new token has only what is new. Names of branches play no part.
- One move leads backwards: a copy that shares an address may be staged where the pages have passed,
  and its source dropped where they have not. Copies are recorded while a reading is registered, and
  read last.

What has ended or is gone is judged once, when the reading is registered: in a transaction that
waits for all who bring it back at that moment, or publish it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

import pyarrow as pa
import sqlalchemy as sa

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.collecting import drop_ended_writes
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.copies import begin_reading, end_reading
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import readings
from ebbtide.store.metadata.tokens import read_signing_keys, read_verifying_keys
from ebbtide.store.promises import promised
from ebbtide.store.signing import sign, verify
from ebbtide.store.uncommitted import (
    PHASES,
    STAGED,
    UNCOMMITTED_SCHEMA,
    Phase,
    live_tokens,
    read_batches,
    to_table,
)

PURPOSE: Final = "prepare"
ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class UncommittedPage:
    """Part of a reading (UNCOMMITTED_SCHEMA). `next_continuation` asks for the next part; None at
    the end."""

    table: pa.Table
    next_continuation: str | None


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a reading has come to: behind the row of `phase` whose key is `after`."""

    reading_id: str
    phase: str
    after: tuple[str, ...] = ()


@dataclass(slots=True)
class _Read:
    """What one page has of a phase; `row_count` has those too that are not in the tables."""

    tables: list[pa.Table]
    row_count: int = 0


class Uncommitted:
    """What is uncommitted in one repository, in pages."""

    phases: ClassVar[tuple[Phase, ...]] = PHASES

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

    def page(self, continuation: str | None = None, *, rows_max: int) -> UncommittedPage:
        """The first page, or the one that a page's `next_continuation` asks for. It has at most
        `rows_max` rows, and may have fewer, or none, without being the last.

        A page may be asked for again until the last was given. Raises InvalidInput
        `invalid_argument`; Conflict `reading_ended` after the last page, and when the reading took
        longer than EBBTIDE_PREPARE_TTL.
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
        """Register a reading. What has ended by now cannot come back from here on."""
        with self._metadata.transaction() as tx:
            reading_id = begin_reading(
                tx, self._repository_id, lasts=self._context.settings.prepare_ttl
            )
            # Dropped, not passed over: this waits for whoever is publishing a write that has
            # ended since, and whose row is staged where no page could miss it from then on.
            drop_ended_writes(tx, self._repository_id, lease_ttl=self._context.settings.lease_ttl)
        return _Position(reading_id, self.phases[0].name)

    def _require_reading(self, tx: Transaction, reading_id: str) -> datetime:
        """When the reading began. Conflict `reading_ended`."""
        row = tx.execute(
            sa.select(readings.c.started_at, readings.c.ends_at).where(
                readings.c.repository_id == self._repository_id,
                readings.c.reading_id == reading_id,
            )
        ).one_or_none()
        if row is None or row.ends_at <= tx.now():
            raise Conflict(
                "reading_ended",
                "the reading has come to its end, or took longer than EBBTIDE_PREPARE_TTL: begin "
                "again with the first page",
            )
        started_at: datetime = row.started_at
        return started_at

    def _read(
        self, tx: Transaction, position: _Position, *, gone_before: datetime, rows_max: int
    ) -> tuple[_Read, _Position | None]:
        """Read on in one phase; and where to go on from there."""
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
        """What a continuation carries. InvalidInput `invalid_argument`."""
        with self._metadata.snapshot() as tx:
            keys = read_verifying_keys(tx)
        try:
            payload = verify(keys, continuation)
        except InvalidInput:
            payload = {}
        if payload.get("for") != PURPOSE or payload["repository"] != self._repository_id:
            raise InvalidInput(
                "invalid_argument",
                "this is no continuation that the repository gave: pass one on as it came, or "
                "begin with the first page",
            )
        return _Position(payload["reading"], payload["phase"], tuple(payload["after"]))
