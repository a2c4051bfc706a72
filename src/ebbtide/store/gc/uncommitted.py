"""Reads, in one transaction, the uncommitted data of a repository that is still needed.

`exports` reads the same data in pages. Here one statement reads each table, in the order of its
key. One statement for each branch would cost PostgreSQL many round trips. A statement for some
hundred branches would scan the whole table each time.

Rows come through SQLAlchemy Core without its types; the bare driver would save a fifth of the time.
ADBC would save more. But ADBC has a connection of its own, which cannot share SQLite's snapshot. On
SQLite, all staged rows come as JSON arrays of some thousand rows each, which takes less than half
of the time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from ebbtide.arrow import make_schema, texts
from ebbtide.store.content.entries import is_external
from ebbtide.store.database.dialects import each_of, in_process, unmapped
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import (
    copies,
    leased_addresses,
    pending,
    released,
    staged,
    upload_tokens,
)
from ebbtide.store.gc.run_metadata import gone_tokens, staging_tokens
from ebbtide.store.staging.released import COMMITTED

ROWS_PER_TABLE: Final = 2_000
BATCHES_AT_ONCE: Final = 2
"""The number of batches of addresses in memory at a time: one is queried while the rows of the
other are used."""

UNCOMMITTED_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("reason", pa.string()),
    ("until", pa.timestamp("us", "UTC")),
    ("created_at", pa.timestamp("us", "UTC")),
)
"""The columns are an address, the reason why it is needed, the time at which this reason ends by
itself, and the date of the row that needs it. `until` is null if the reason does not end by itself.
An address can occur more than once. Addresses outside the storage root are left out."""


DROPPED_SCHEMA: Final = make_schema(("address", pa.string()), ("size_bytes", pa.int64()))
"""An address that lost a staged row, and its size, which is null if it is not known."""
_ADDRESS_SCHEMA: Final = make_schema(("address", pa.string()))


@dataclass(frozen=True, slots=True)
class Phase:
    """One table of the reading. Its rows are sorted by `key`, which is unique in a repository."""

    name: str
    reason: str
    table: sa.Table
    key: tuple[sa.Column[str], ...]
    created_at: sa.Column[datetime]
    until: sa.Column[datetime] | None = None

    def select(self, repository_id: str, *, dated: bool = True) -> sa.Select[Any]:  # for `to_table`
        """Returns a query of address, `until` and `created_at`.

        The dates are integers, as they are stored. Without `dated`, `created_at` is null.
        """
        until = sa.null() if self.until is None else sa.type_coerce(self.until, sa.BigInteger)
        created_at = sa.type_coerce(self.created_at, sa.BigInteger) if dated else sa.null()
        return (
            sa.select(
                self.table.c.address,
                until.label("until"),
                created_at.label("created_at"),
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
LEASES: Final = Phase(
    "leases",
    "signed URL",
    leased_addresses,
    (leased_addresses.c.address,),
    leased_addresses.c.leased_at,
    leased_addresses.c.leased_until,
)

PHASES: Final = (WRITES, UPLOADS, STAGED, COPIES, LEASES)


def uncommitted(
    tx: Transaction,
    repository_id: str,
    *,
    now: datetime,
    trash_time: timedelta,
) -> Iterator[pa.Table]:
    """Yields all uncommitted data (UNCOMMITTED_SCHEMA), in batches.

    `tx` is a snapshot, and `now` is not later than the snapshot. A write that has ended by `now`
    cannot be published after `now`.
    """
    for phase in PHASES:
        query, live = _open(tx, phase, repository_id, now=now, trash_time=trash_time)
        if phase is STAGED and tx.in_process:
            yield from _staged_arrays(tx, repository_id, sorted(live or ()))
            continue
        queries = _divided(query, sorted(live or ()), tx.reader_count)
        for rows in tx.read([partial(read_batches, query=each) for each in queries]):
            yield to_table(phase, rows, live)


def uncommitted_among(
    tx: Transaction,
    repository_id: str,
    batches: Iterable[Sequence[str]],
    *,
    now: datetime,
    trash_time: timedelta,
) -> Iterator[pa.Table]:
    """Yields the same as `uncommitted`, for some addresses only.

    Each batch of addresses is queried once, while the rows of the batch before are used. Staged
    rows have no `created_at`: an index has all other columns.
    """
    opened = [
        (phase, *_open(tx, phase, repository_id, now=now, trash_time=trash_time, dated=False))
        for phase in PHASES
        if _has_rows(tx, phase.table, repository_id)
    ]
    remaining = iter(batches)
    while some := [sorted(batch) for batch in itertools.islice(remaining, BATCHES_AT_ONCE)]:
        for phase, query, live in opened:
            queries = [each for batch in some for each in _chosen(tx, phase, query, batch)]
            dealt = [queries[number :: tx.reader_count] for number in range(tx.reader_count)]
            for rows in tx.read([partial(_scattered_batches, queries=hand) for hand in dealt]):
                yield to_table(phase, rows, live)


def _open(
    tx: Transaction,
    phase: Phase,
    repository_id: str,
    *,
    now: datetime,
    trash_time: timedelta,
    dated: bool = True,
) -> tuple[sa.Select[Any], frozenset[str] | None]:
    """Returns the query of a phase. For staged rows, also returns the tokens of branches that are
    not gone."""
    query = phase.select(repository_id, dated=dated or phase is not STAGED)
    if phase.until is not None:
        query = query.where(phase.until > now)
    if phase is not STAGED:
        return query, None
    live = live_tokens(tx, repository_id, gone_before=now - trash_time)
    return query.add_columns(staged.c.token), live


def _has_rows(tx: Transaction, table: sa.Table, repository_id: str) -> bool:
    """Whether a table has rows of the repository. Often it has none. The query of addresses, which
    would take as long as on a full table, is then skipped."""
    query = sa.select(sa.literal(1)).where(table.c.repository_id == repository_id).limit(1)
    return tx.execute(query).first() is not None


def _chosen(
    tx: Transaction,
    phase: Phase,
    query: sa.Select[Any],  # selects rows of the phase
    addresses: Sequence[str],
) -> list[sa.Select[Any]]:
    """Divides the query among the readers: each part asks for neighbouring addresses."""
    size = max(1, -(-len(addresses) // tx.reader_count))
    parts = [addresses[first : first + size] for first in range(0, len(addresses), size)]
    # Without an order: to return rows in the order of the key, the whole table would be read.
    unordered = query.order_by(None)
    return [
        unordered.where(phase.table.c.address.in_(each_of(tx.connection, part))) for part in parts
    ]


def _divided(
    query: sa.Select[Any],  # selects rows of a phase
    tokens: Sequence[str],
    count: int,
) -> list[sa.Select[Any]]:
    """Divides a query into `count` queries, each for about the same number of tokens.

    Together they return the rows of `query`.
    """
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
    """Yields the uncommitted addresses that `dropped` need not report later (column `address`).

    These are all uncommitted addresses, except those of staged entries that no commit has had.
    """
    queries = [
        sa.select(phase.table.c.address).where(phase.table.c.repository_id == repository_id)
        for phase in PHASES
        if phase is not STAGED
    ]
    shared = sa.and_(staged.c.sharing.is_not(None), staged.c.sharing == COMMITTED)
    queries.append(
        sa.select(staged.c.address).where(staged.c.repository_id == repository_id, shared)
    )
    return _rows(tx, queries, _ADDRESS_SCHEMA)


def dropped(
    tx: Transaction, repository_id: str, *, now: datetime, trash_time: timedelta
) -> Iterator[pa.Table]:
    """Yields the addresses that lost a staged row, and may still exist (DROPPED_SCHEMA).

    They include addresses that are staged on gone branches.
    """
    queries: list[sa.Select[Any]] = [
        sa.select(released.c.address, released.c.size_bytes).where(
            released.c.repository_id == repository_id
        )
    ]
    gone = gone_tokens(tx, repository_id, gone_before=now - trash_time)
    for tokens in in_batches(gone):
        under = staged.c.token.in_(tokens)
        queries.append(
            sa.select(staged.c.address, staged.c.size_bytes).where(
                staged.c.repository_id == repository_id, under, staged.c.address.is_not(None)
            )
        )
    return _rows(tx, queries, DROPPED_SCHEMA)


def _rows(
    tx: Transaction,
    queries: Iterable[sa.Select[Any]],  # of the columns of `schema`
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    for query in queries:
        for rows in read_batches(tx.connection, query):
            columns = [pa.array(each) for each in zip(*rows, strict=True)]
            yield _inside(pa.table(columns, names=schema.names).cast(schema))


def live_tokens(tx: Transaction, repository_id: str, *, gone_before: datetime) -> frozenset[str]:
    """Returns the tokens of all branches that were not gone at `gone_before`.

    The caller compares them with the tokens of rows. With a condition on the token, PostgreSQL
    would not read the rows in their order.
    """
    return frozenset(staging_tokens(tx, repository_id, gone_before=gone_before))


def _arrays_query() -> sa.Select[int, Any, str, str]:
    """Returns the query of one page of rows of a token, behind a path.

    Its columns are the number of rows, their last path, and their addresses and dates as JSON
    arrays.
    """
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
    """Yields the rows that are staged under the tokens (UNCOMMITTED_SCHEMA), on SQLite.

    Each reader reads the rows of some of the tokens, in the order of tokens and paths.
    """
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
    """Yields the addresses and dates of the rows under the tokens, as JSON arrays of bounded
    length."""
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


def read_batches(
    connection: sa.Connection, query: sa.Select[Any]
) -> Iterator[list[Any]]:  # rows of the query
    """Yields the rows in batches of bounded size. PostgreSQL keeps later rows on the server."""
    result = connection.execute(query, execution_options={"yield_per": ROWS_PER_TABLE})
    for rows in result.partitions():
        yield list(rows)


def _scattered_batches(
    connection: sa.Connection, queries: Sequence[sa.Select[Any]]
) -> Iterator[list[Any]]:  # rows of the queries
    """Yields rows that lie far apart in the file, without reading ahead (`unmapped`)."""
    read = _few_at_once if in_process(connection) else read_batches
    with unmapped(connection):
        for query in queries:
            yield from read(connection, query)


def _few_at_once(
    connection: sa.Connection, query: sa.Select[Any]
) -> Iterator[list[Any]]:  # rows of the query
    """Yields rows on SQLite. Usually they are fewer than a batch, and come as JSON arrays.

    Without arrays the driver releases the interpreter's lock once for each row, so that two readers
    would slow each other down.
    """
    rows = _rows_at_once(connection, query.limit(ROWS_PER_TABLE))
    if len(rows) == ROWS_PER_TABLE:
        yield from read_batches(connection, query)
    elif rows:
        yield rows


def _rows_at_once(
    connection: sa.Connection, query: sa.Select[Any]
) -> list[Any]:  # rows of the query
    """Returns all rows of texts and numbers. SQLite puts them into JSON arrays."""
    found = query.subquery()
    columns = [sa.func.json_group_array(column, type_=sa.Text) for column in found.columns]
    arrays = connection.execute(sa.select(*columns)).one()
    return list(zip(*map(json.loads, arrays), strict=True))


def to_table(phase: Phase, rows: list[Any], live: frozenset[str] | None) -> pa.Table:
    """Returns rows of `Phase.select` as a table of UNCOMMITTED_SCHEMA.

    With `live`, each row has its token, too, and rows of other tokens are left out. Addresses
    outside the storage root are left out as well.
    """
    addresses, until, created_at, *key = zip(*rows, strict=True)
    table = _columns(phase, addresses, until, created_at)
    if live is not None and not live.issuperset(key[0]):
        table = table.filter(pa.array([token in live for token in key[0]], pa.bool_()))
    return _inside(table)


def _columns(
    phase: Phase,
    addresses: Sequence[str],
    until: Sequence[int | None] | None,  # None if no row ends by itself
    created_at: Sequence[int | None],
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
    """Returns the rows whose addresses are within the storage root."""
    # No address of Ebbtide's own contains a colon: nearly every table is returned as it is.
    column = table.column("address")
    if pc.any(pc.match_substring(column, ":")).as_py():
        inside = [not is_external(address) for address in texts(column)]
        table = table.filter(pa.array(inside, pa.bool_()))
    return table
