"""Queries: the staged changes of branches, and the copies of staged entries that share an address.

A change is an entry, or None for a delete. A transaction that drops a row also releases its
address.

A reading (`gc.exports`) goes through the staged entries in several transactions. It may pass the
path of a copy before the copy is made, and reach the path of the source after that entry was
dropped. The copy's own record, which is read last, has the address. Only readings that began before
the copy need this record. A move within a branch is recorded like a copy, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.store.content.entries import Entry
from ebbtide.store.database.dialects import InsertOn, insert_on
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import begins_with, in_batches
from ebbtide.store.database.schema import copies, readings, staged
from ebbtide.store.staging.released import (
    COMMITTED,
    STAGED,
    Dropped,
    Sharing,
    release,
    release_selected,
    retain,
)

Change = Entry | None
STAGED_COLUMNS: Final = (
    staged.c.path,
    staged.c.address,
    staged.c.size_bytes,
    staged.c.checksum,
    staged.c.mtime,
    staged.c.content_type,
    staged.c.metadata,
)


_REPLACED: Final = {
    "replaced_address": staged.c.address,
    "replaced_size_bytes": staged.c.size_bytes,
    "replaced_sharing": staged.c.sharing,
}


@cache
def _upsert(insert: InsertOn) -> sa.Insert:
    statement = insert(staged)
    written = (*STAGED_COLUMNS[1:], staged.c.sharing)
    # The statement itself reads the values that it replaces, under the row's lock. If two
    # transactions write to one path at once, the later one finds the values of the earlier one.
    return statement.on_conflict_do_update(
        index_elements=["repository_id", "token", "path"],
        set_={column.name: statement.excluded[column.name] for column in written} | _REPLACED,
    ).returning(staged.c.address, *(staged.c[name] for name in _REPLACED))


def write_staged(
    tx: Transaction,
    repository_id: str,
    token: str,
    changes: Mapping[str, Change],
    *,
    lease_ttl: timedelta,
    sharing: Sharing = None,
) -> None:
    """Stages changes under a token. Each change replaces an older change of the same path under
    this token, and releases its address. `sharing` says who else has the addresses of the new
    changes."""
    if not changes:
        return
    statement = _upsert(insert_on(tx.connection))
    # Sorted, so that two transactions that stage the same paths do not deadlock.
    values = [
        {
            "repository_id": repository_id,
            "token": token,
            "sharing": sharing,
            **_values(path, changes[path]),
        }
        for path in sorted(changes)
    ]
    # A single row is not passed as a list: for a list the statement would be compiled again.
    rows = tx.execute(statement, values if len(values) > 1 else values[0])
    replaced = [
        Dropped(row.replaced_address, row.replaced_size_bytes, row.replaced_sharing)
        for row in rows
        if row.replaced_address not in (None, row.address)
    ]
    release(tx, repository_id, replaced, lease_ttl=lease_ttl)


_BY_PATHS: Final = sa.select(staged.c.token, *STAGED_COLUMNS).where(
    staged.c.repository_id == sa.bindparam("repository_id"),
    staged.c.token.in_(sa.bindparam("tokens", expanding=True)),
    staged.c.path.in_(sa.bindparam("paths", expanding=True)),
)
"""Built once: many requests run this statement, and building it takes longer than running it."""
_BY_PATH: Final = sa.select(staged.c.token, *STAGED_COLUMNS).where(
    staged.c.repository_id == sa.bindparam("repository_id"),
    staged.c.token == sa.bindparam("token"),
    staged.c.path == sa.bindparam("path"),
)
"""For one path under one token. SQLAlchemy writes a statement with a list anew for each list."""


def find_staged(
    tx: Transaction, repository_id: str, tokens: Sequence[str], paths: Sequence[str]
) -> dict[str, dict[str, Change]]:
    """Returns the changes staged for `paths` under each of `tokens`: token → path → change."""
    found: dict[str, dict[str, Change]] = {token: {} for token in tokens}
    if not tokens:
        return found
    for batch in in_batches(paths):
        if len(tokens) == len(batch) == 1:
            one = {"repository_id": repository_id, "token": tokens[0], "path": batch[0]}
            rows = tx.execute(_BY_PATH, one)
        else:
            rows = tx.execute(
                _BY_PATHS, {"repository_id": repository_id, "tokens": list(tokens), "paths": batch}
            )
        for row in rows:
            found[row.token][row.path] = _change(row)
    return found


def page_of_staged(
    tx: Transaction,
    repository_id: str,
    token: str,
    *,
    prefix: str = "",
    after: str = "",
    amount: int,
) -> list[tuple[str, Change]]:
    """Returns at most `amount` changes under one token, by path, from the paths after `after`."""
    rows: Iterable[Sequence[Any]] = tx.execute(
        sa.select(*STAGED_COLUMNS)
        .where(
            staged.c.repository_id == repository_id,
            staged.c.token == token,
            staged.c.path > after,
            *begins_with(staged.c.path, prefix),
        )
        .order_by(staged.c.path)
        .limit(amount)
    )
    # The columns are the fields of Entry, in their order. Reading them by name takes three times as
    # long, and a listing has many rows.
    return [(row[0], None if row[1] is None else Entry(*row)) for row in rows]


def has_staged(
    tx: Transaction, repository_id: str, tokens: Sequence[str], *, prefix: str = ""
) -> bool:
    """Whether anything is staged under the tokens."""
    row = tx.execute(
        sa.select(staged.c.path)
        .where(
            staged.c.repository_id == repository_id,
            staged.c.token.in_(tokens),
            *begins_with(staged.c.path, prefix),
        )
        .limit(1)
    ).first()
    return row is not None


def delete_staged(
    tx: Transaction,
    repository_id: str,
    tokens: Sequence[str],
    paths: Sequence[str],
    *,
    lease_ttl: timedelta,
) -> int:
    """Drops the changes of some paths. Returns their number."""
    count = 0
    for batch in in_batches(paths):
        rows = tx.execute(
            sa.delete(staged)
            .where(
                staged.c.repository_id == repository_id,
                staged.c.token.in_(tokens),
                staged.c.path.in_(batch),
            )
            .returning(*DROPPED_COLUMNS)
        ).all()
        count += len(rows)
        release(tx, repository_id, dropped_of(rows), lease_ttl=lease_ttl)
    return count


def delete_staged_prefix(
    tx: Transaction,
    repository_id: str,
    tokens: Sequence[str],
    prefix: str,
    *,
    lease_ttl: timedelta,
) -> int:
    """Drops the changes of all paths with a prefix. Returns their number. The caller holds the
    branch exclusively, so that nobody changes them meanwhile."""
    those = (staged.c.token.in_(tokens), *begins_with(staged.c.path, prefix))
    release_selected(tx, repository_id, those, lease_ttl=lease_ttl)
    return tx.execute(
        sa.delete(staged).where(staged.c.repository_id == repository_id, *those)
    ).rowcount


def take_up_staged(
    tx: Transaction, repository_id: str, tokens: Sequence[str], *, lease_ttl: timedelta
) -> None:
    """Drops the changes under sealed tokens, because a commit has them now. `tokens` begins with
    the newest.

    The commit does not have a change that a newer one hides: the address of a hidden change is
    released. The caller holds the branch exclusively.
    """
    taken: set[str] = set()
    for number, token in enumerate(tokens):
        those = staged.c.token == token
        hidden = _is_hidden(tokens[:number])
        if number:
            release_selected(tx, repository_id, (those, hidden), lease_ttl=lease_ttl)
        rows = tx.execute(
            sa.select(staged.c.address).where(
                staged.c.repository_id == repository_id,
                those,
                staged.c.sharing.is_not(None),
                staged.c.sharing == STAGED,
                ~hidden,
            )
        )
        taken.update(rows.scalars())
    tx.execute(
        sa.delete(staged).where(staged.c.repository_id == repository_id, staged.c.token.in_(tokens))
    )
    _keep_shared(tx, repository_id, taken)


def _is_hidden(newer: Sequence[str]) -> sa.ColumnElement[bool]:
    """Whether a row under one of the newer tokens has the same path."""
    if not newer:
        return sa.false()
    above = staged.alias()
    return sa.exists().where(
        above.c.repository_id == staged.c.repository_id,
        above.c.token.in_(newer),
        above.c.path == staged.c.path,
    )


def _keep_shared(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Marks addresses as committed in all other staged rows that have them. These rows then do not
    release them."""
    kept = sorted(addresses)
    for batch in in_batches(kept):
        tx.execute(
            sa.update(staged)
            .where(
                staged.c.repository_id == repository_id,
                staged.c.address.in_(batch),
                staged.c.sharing.is_not(None),
            )
            .values(sharing=COMMITTED)
        )
    # This comes last: the update has waited for transactions that drop such a row and release its
    # address.
    retain(tx, repository_id, kept)


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A staged entry, with `sharing`: who else has its address."""

    entry: Entry
    sharing: Sharing


def share_row(tx: Transaction, repository_id: str, token: str, path: str) -> StagedRow | None:
    """Marks the address of a staged entry as shared, because another row will have it too. Returns
    the entry, or None if none is staged there. The caller holds the branch exclusively."""
    row = tx.execute(
        sa.update(staged)
        .where(*_entry_at(repository_id, token, path))
        .values(sharing=sa.func.coalesce(staged.c.sharing, STAGED))
        .returning(*STAGED_COLUMNS, staged.c.sharing)
    ).one_or_none()
    return _staged_row(row)


def take_row(tx: Transaction, repository_id: str, token: str, path: str) -> StagedRow | None:
    """Deletes the row of a staged entry without releasing its address, because another row will
    have it instead. Returns the entry, or None if none is staged there."""
    row = tx.execute(
        sa.delete(staged)
        .where(*_entry_at(repository_id, token, path))
        .returning(*STAGED_COLUMNS, staged.c.sharing)
    ).one_or_none()
    return _staged_row(row)


def _entry_at(repository_id: str, token: str, path: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        staged.c.repository_id == repository_id,
        staged.c.token == token,
        staged.c.path == path,
        staged.c.address.is_not(None),
    )


def _staged_row(row: Any) -> StagedRow | None:  # Row of STAGED_COLUMNS and `sharing`
    if row is None:
        return None
    entry = _change(row)
    assert entry is not None  # the statements select only rows with an address
    return StagedRow(entry, row.sharing)


DROPPED_COLUMNS: Final = (staged.c.address, staged.c.size_bytes, staged.c.sharing)


def dropped_of(rows: Iterable[Any]) -> list[Dropped]:  # Rows of DROPPED_COLUMNS
    """Returns the references of dropped rows. Deletes among the rows have none."""
    return [
        Dropped(row.address, row.size_bytes, row.sharing) for row in rows if row.address is not None
    ]


def _values(path: str, change: Change) -> dict[str, Any]:  # values of the columns' types
    if change is None:
        return {
            "path": path,
            "address": None,
            "size_bytes": 0,
            "checksum": "",
            "mtime": EPOCH,
            "content_type": None,
            "metadata": {},
        }
    return {
        "path": path,
        "address": change.address,
        "size_bytes": change.size_bytes,
        "checksum": change.checksum,
        "mtime": change.mtime,
        "content_type": change.content_type,
        "metadata": dict(change.metadata),
    }


def _change(row: Any) -> Change:  # Row of STAGED_COLUMNS
    if row.address is None:
        return None
    return Entry(
        path=row.path,
        address=row.address,
        size_bytes=row.size_bytes,
        checksum=row.checksum,
        mtime=row.mtime,
        content_type=row.content_type,
        metadata=row.metadata,
    )


def record_copy(tx: Transaction, repository_id: str, address: str) -> None:
    """Records the address of a copy or move, in the transaction that stages it."""
    tx.execute(
        sa.insert(copies).values(
            repository_id=repository_id, copy_id=new_id(), address=address, made_at=tx.now()
        )
    )
    drop_copies(tx, repository_id)


def drop_copies(tx: Transaction, repository_id: str) -> None:
    """Deletes ended readings, and the records of copies that no reading needs."""
    now = tx.now()
    mine = readings.c.repository_id == repository_id
    tx.execute(sa.delete(readings).where(mine, readings.c.ends_at <= now))
    oldest = tx.execute(sa.select(sa.func.min(readings.c.started_at)).where(mine)).scalar_one()
    tx.execute(
        sa.delete(copies).where(
            copies.c.repository_id == repository_id,
            copies.c.made_at < (now if oldest is None else oldest),
        )
    )


def begin_reading(tx: Transaction, repository_id: str, *, lasts: timedelta) -> str:
    """Registers a reading of several transactions. It ends after `lasts`. Returns its id."""
    # Copies take the repository's row shared. With the exclusive lock, a copy that is being made at
    # this moment is either seen by this reading, or recorded after the reading began.
    tx.lock_repository(repository_id, "exclusive")
    now = tx.now()
    reading_id = new_id()
    tx.execute(
        sa.insert(readings).values(
            repository_id=repository_id,
            reading_id=reading_id,
            started_at=now - ONE_MICROSECOND,
            ends_at=now + lasts,
        )
    )
    return reading_id


def end_reading(tx: Transaction, repository_id: str, reading_id: str) -> None:
    """Ends a reading, and deletes the copies that were recorded for it."""
    tx.execute(
        sa.delete(readings).where(
            readings.c.repository_id == repository_id, readings.c.reading_id == reading_id
        )
    )
    drop_copies(tx, repository_id)
