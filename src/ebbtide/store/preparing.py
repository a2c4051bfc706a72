"""Everything that no commit holds yet and that is needed all the same, for a collector.

The reading goes through the tables in the order in which data moves: writes in progress and upload
tokens, then what is staged, then copies. In one transaction (`uncommitted`) the order does not
matter. In pages (`Uncommitted`) each is a transaction of its own, and nothing that was there before
the first and is needed after the last is missed, whatever happens between:

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

Each table is read by one statement, in the order of its key. A statement for each branch costs
PostgreSQL round trips, one for some hundred branches a scan of the whole table each. Rows come
through SQLAlchemy Core without its types: the bare driver saves a fifth of that. ADBC saves more,
but is a connection of its own, which cannot share the snapshot of SQLite. There, all that is staged
comes as arrays of JSON, some thousand rows each, at less than half of the cost.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.collecting import drop_ended_writes, gone_tokens, staging_tokens
from ebbtide.store.content.entries import is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.batches import in_batches
from ebbtide.store.metadata.copies import begin_reading, end_reading
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.released import COMMITTED
from ebbtide.store.metadata.schema import (
    copies,
    pending,
    readings,
    released,
    staged,
    upload_tokens,
)
from ebbtide.store.metadata.tokens import read_signing_keys, read_verifying_keys
from ebbtide.store.signing import sign, verify

PURPOSE: Final = "prepare"
ROWS_MAX: Final = 1_000_000
ROWS_PER_TABLE: Final = 50_000

UNCOMMITTED_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("reason", pa.string()),
    ("until", pa.timestamp("us", "UTC")),
    ("created_at", pa.timestamp("us", "UTC")),
)
"""An address, why it is needed, when that ends by itself (null: it does not), and since when it is
there. An address may come more than once. What lies outside the storage root is left out."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One table of the reading. `key` is its order, unique within a repository."""

    name: str
    reason: str
    table: sa.Table
    key: tuple[sa.Column[str], ...]
    created_at: sa.Column[datetime]
    until: sa.Column[datetime] | None = None

    def select(self, repository_id: str) -> sa.Select[Any]:  # see `_table`
        """Address, until and created_at, the dates as the integers that they are stored as."""
        until = sa.null() if self.until is None else sa.type_coerce(self.until, sa.BigInteger)
        return (
            sa.select(
                self.table.c.address,
                until.label("until"),
                sa.type_coerce(self.created_at, sa.BigInteger).label("created_at"),
            )
            .where(self.table.c.repository_id == repository_id, self.table.c.address.is_not(None))
            .order_by(*self.key)
        )


WRITES: Final = Phase(
    "writes",
    "write in progress",
    pending,
    (pending.c.address,),
    pending.c.started_at,
    pending.c.ends_at,
)
UPLOADS: Final = Phase(
    "uploads",
    "upload token",
    upload_tokens,
    (upload_tokens.c.address,),
    upload_tokens.c.created_at,
    upload_tokens.c.expires_at,
)
STAGED: Final = Phase("staged", "staged", staged, (staged.c.token, staged.c.path), staged.c.mtime)
COPIES: Final = Phase("copies", "copy", copies, (copies.c.copy_id,), copies.c.made_at)

PHASES: Final = (WRITES, UPLOADS, STAGED, COPIES)


def uncommitted(
    tx: Transaction,
    repository_id: str,
    *,
    now: datetime,
    trash_time: timedelta,
    among: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """All of it (UNCOMMITTED_SCHEMA) in batches, or what there is of these addresses; `tx` is a
    snapshot, and `now` no later than it: what has ended by then is published by nobody since."""
    for phase in PHASES:
        query = phase.select(repository_id)
        if among is not None:
            # In no order: that of the key would have the whole table read.
            chosen = phase.table.c.address.in_(_each_of(tx, among))
            query = query.where(chosen).order_by(None)
        if phase.until is not None:
            query = query.where(phase.until > now)
        live = None
        if phase is STAGED:
            query = query.add_columns(staged.c.token)
            live = _live_tokens(tx, repository_id, gone_before=now - trash_time)
            if tx.dialect_name == "sqlite" and among is None:
                yield from _staged_arrays(tx, repository_id, sorted(live))
                continue
        tokens = sorted(live or ()) if among is None else ()
        queries = _divided(query, tokens, tx.reader_count)
        for rows in tx.read([partial(_batches, query=each) for each in queries]):
            yield _table(phase, rows, live)


def _divided(
    query: sa.Select[Any],  # rows of a phase
    tokens: Sequence[str],
    count: int,
) -> list[sa.Select[Any]]:
    """So many queries, each for about as many of the tokens; together they are `query`."""
    bounds = [tokens[number * len(tokens) // count] for number in range(1, count) if tokens]
    column = staged.c.token
    if not bounds:
        return [query]
    return [
        query.where(column < bounds[0]),
        *(query.where(column >= low, column < high) for low, high in itertools.pairwise(bounds)),
        query.where(column >= bounds[-1]),
    ]


def untraced(tx: Transaction, repository_id: str) -> Iterator[pa.Table]:
    """Of what is uncommitted, the addresses (a column `address`) of which `dropped` need not tell
    when nothing keeps them any more: all but entries whose address no commit has had."""
    queries = [
        sa.select(phase.table.c.address).where(phase.table.c.repository_id == repository_id)
        for phase in PHASES
        if phase is not STAGED
    ]
    shared = sa.and_(staged.c.sharing.is_not(None), staged.c.sharing == COMMITTED)
    queries.append(
        sa.select(staged.c.address).where(staged.c.repository_id == repository_id, shared)
    )
    return _addresses(tx, queries)


def dropped(
    tx: Transaction, repository_id: str, *, now: datetime, trash_time: timedelta
) -> Iterator[pa.Table]:
    """The addresses (a column `address`) that have lost what was staged of them, or some of it,
    and may be there still; what is staged on branches that are gone among them."""
    queries = [sa.select(released.c.address).where(released.c.repository_id == repository_id)]
    gone = gone_tokens(tx, repository_id, gone_before=now - trash_time)
    for tokens in in_batches(gone):
        under = staged.c.token.in_(tokens)
        queries.append(
            sa.select(staged.c.address).where(
                staged.c.repository_id == repository_id, under, staged.c.address.is_not(None)
            )
        )
    return _addresses(tx, queries)


def _addresses(tx: Transaction, queries: Iterable[sa.Select[str]]) -> Iterator[pa.Table]:
    for query in queries:
        for rows in _batches(tx.connection, query):
            column = pa.array([row.address for row in rows], pa.string())
            yield _inside(pa.table({"address": column}))


def _each_of(tx: Transaction, addresses: Sequence[str]) -> sa.Select[str]:
    """Addresses as rows: one parameter, however many there are."""
    if tx.dialect_name == "sqlite":
        listed = sa.func.json_each(json.dumps(addresses)).table_valued("value")
        return sa.select(sa.type_coerce(listed.c.value, sa.Text))
    array = sa.cast(sa.literal(list(addresses), ARRAY(sa.Text)), ARRAY(sa.Text))
    return sa.select(sa.func.unnest(array).column_valued("address"))


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
            gone_before = self._require_reading(tx, position.reading_id) - self._context.trash_time
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
            live = _live_tokens(tx, self._repository_id, gone_before=gone_before)
        read = _Read([])
        last: Any = None
        for rows in _batches(tx.connection, query):
            read.row_count += len(rows)
            read.tables.append(_table(phase, rows, live))
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


def _live_tokens(tx: Transaction, repository_id: str, *, gone_before: datetime) -> frozenset[str]:
    """The tokens of all branches that were not gone by then, to be compared with those of rows:
    asked for by name, a part of the rows is not read in their order by PostgreSQL."""
    return frozenset(staging_tokens(tx, repository_id, gone_before=gone_before))


def _arrays_query() -> sa.Select[int, Any, str, str]:
    """Some rows of one token behind a path: their number and last path, their addresses and dates
    as arrays of JSON."""
    rows = (
        sa.select(staged.c.path, staged.c.address, staged.c.mtime)
        .where(
            staged.c.repository_id == sa.bindparam("repository_id"),
            staged.c.token == sa.bindparam("token"),
            staged.c.path > sa.bindparam("after"),
            staged.c.address.is_not(None),
        )
        .order_by(staged.c.path)
        .limit(sa.bindparam("rows_max"))
        .subquery()
    )
    return sa.select(
        sa.func.count(),
        sa.func.max(rows.c.path),
        sa.func.json_group_array(rows.c.address, type_=sa.Text),
        sa.func.json_group_array(rows.c.mtime, type_=sa.Text),
    ).select_from(rows)


_ARRAYS: Final = _arrays_query()


def _staged_arrays(
    tx: Transaction, repository_id: str, tokens: Sequence[str]
) -> Iterator[pa.Table]:
    """What is staged under the tokens (UNCOMMITTED_SCHEMA), on SQLite: each lane reads those of
    some of them, in their order."""
    count = tx.reader_count
    pages = tx.read(
        [
            partial(_pages, repository_id=repository_id, tokens=tokens[number::count])
            for number in range(count)
        ]
    )
    addresses: list[str] = []
    dates: list[int] = []
    for more_addresses, more_dates in pages:
        addresses += json.loads(more_addresses)
        dates += json.loads(more_dates)
        if len(addresses) >= ROWS_PER_TABLE:
            yield _inside(_columns(STAGED, addresses, None, dates))
            addresses, dates = [], []
    if addresses:
        yield _inside(_columns(STAGED, addresses, None, dates))


def _pages(
    connection: sa.Connection, *, repository_id: str, tokens: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The addresses and dates of rows under the tokens, as arrays of JSON of a bounded length."""
    given = {"repository_id": repository_id, "rows_max": ROWS_PER_TABLE}
    for token in tokens:
        count, after = ROWS_PER_TABLE, ""
        while count == ROWS_PER_TABLE:
            values = {**given, "token": token, "after": after}
            row: Any = connection.execute(_ARRAYS, values).one()
            count, last, addresses, dates = row
            after = last or ""
            if count:
                yield addresses, dates


def _batches(
    connection: sa.Connection, query: sa.Select[Any]
) -> Iterator[list[Any]]:  # rows of the query
    """The rows, a bounded number at a time: PostgreSQL keeps the others on its side."""
    result = connection.execute(query, execution_options={"yield_per": ROWS_PER_TABLE})
    for rows in result.partitions():
        yield list(rows)


def _table(phase: Phase, rows: list[Any], live: frozenset[str] | None) -> pa.Table:
    """Rows (of `Phase.select`, and the token beside it if there are `live` ones) as a table of
    UNCOMMITTED_SCHEMA, without what is of other tokens or lies outside the storage root."""
    addresses, until, created_at, *key = zip(*rows, strict=True)
    table = _columns(phase, addresses, until, created_at)
    if live is not None and not live.issuperset(key[0]):
        table = table.filter(pa.array([token in live for token in key[0]], pa.bool_()))
    return _inside(table)


def _columns(
    phase: Phase,
    addresses: Sequence[str],
    until: Sequence[int | None] | None,  # None: nothing ends by itself
    created_at: Sequence[int],
) -> pa.Table:
    instant = UNCOMMITTED_SCHEMA.field("until").type
    return pa.table(
        [
            pa.array(addresses, pa.string()),
            pa.repeat(pa.scalar(phase.reason, pa.string()), len(addresses)),
            pa.nulls(len(addresses), instant)
            if until is None
            else pa.array(until, pa.int64()).cast(instant),
            pa.array(created_at, pa.int64()).cast(instant),
        ],
        schema=UNCOMMITTED_SCHEMA,
    )


def _inside(table: pa.Table) -> pa.Table:
    """The rows of addresses within the storage root."""
    # No address of our own has a colon in it, so that hardly any has to be looked at closely.
    column = table.column("address")
    if pc.any(pc.match_substring(column, ":")).as_py():
        inside = [not is_external(address) for address in texts(column)]
        table = table.filter(pa.array(inside, pa.bool_()))
    return table
