"""Queries: what branches hold above their commits. A change is an entry, or None for a delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ebbtide.model import EPOCH
from ebbtide.store.content.entries import Entry
from ebbtide.store.metadata.batches import in_batches
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.prefixes import begins_with
from ebbtide.store.metadata.schema import staged

Change = Entry | None
_COLUMNS: Final = (
    staged.c.path,
    staged.c.address,
    staged.c.size_bytes,
    staged.c.checksum,
    staged.c.mtime,
    staged.c.content_type,
    staged.c.metadata,
)


@cache
def _upsert(dialect_name: str) -> sa.Insert:
    insert = postgresql.insert if dialect_name == "postgresql" else sqlite.insert
    statement = insert(staged)
    return statement.on_conflict_do_update(
        index_elements=["repository_id", "token", "path"],
        set_={column.name: statement.excluded[column.name] for column in _COLUMNS[1:]},
    )


def write_staged(
    tx: Transaction, repository_id: str, token: str, changes: Mapping[str, Change]
) -> None:
    """Stage changes under a token; each takes the place of an older one of its path there."""
    if not changes:
        return
    statement = _upsert(tx.dialect_name)
    # In one order everywhere, so that two transactions that stage the same paths never deadlock.
    tx.execute(
        statement,
        [
            {"repository_id": repository_id, "token": token, **_values(path, changes[path])}
            for path in sorted(changes)
        ],
    )


_BY_PATHS: Final = sa.select(staged.c.token, *_COLUMNS).where(
    staged.c.repository_id == sa.bindparam("repository_id"),
    staged.c.token.in_(sa.bindparam("tokens", expanding=True)),
    staged.c.path.in_(sa.bindparam("paths", expanding=True)),
)
"""Made once: many requests run it, and making it takes longer than running it."""


def find_staged(
    tx: Transaction, repository_id: str, tokens: Sequence[str], paths: Sequence[str]
) -> dict[str, dict[str, Change]]:
    """What is staged for the paths under each of the tokens: token → path → change."""
    found: dict[str, dict[str, Change]] = {token: {} for token in tokens}
    if not tokens:
        return found
    for batch in in_batches(paths):
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
    """At most `amount` changes under one token, by path, of the paths behind `after`."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            staged.c.repository_id == repository_id,
            staged.c.token == token,
            staged.c.path > after,
            *begins_with(staged.c.path, prefix),
        )
        .order_by(staged.c.path)
        .limit(amount)
    )
    return [(row.path, _change(row)) for row in rows]


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
    tx: Transaction, repository_id: str, tokens: Sequence[str], paths: Sequence[str]
) -> int:
    """Drop the changes of some paths; their number."""
    count = 0
    for batch in in_batches(paths):
        count += tx.execute(
            sa.delete(staged).where(
                staged.c.repository_id == repository_id,
                staged.c.token.in_(tokens),
                staged.c.path.in_(batch),
            )
        ).rowcount
    return count


def delete_all_staged(
    tx: Transaction, repository_id: str, tokens: Sequence[str], *, prefix: str = ""
) -> int:
    """Drop every change under the tokens, or of the paths with a prefix; their number."""
    result = tx.execute(
        sa.delete(staged).where(
            staged.c.repository_id == repository_id,
            staged.c.token.in_(tokens),
            *begins_with(staged.c.path, prefix),
        )
    )
    return result.rowcount


def _values(path: str, change: Change) -> dict[str, Any]:  # of the columns' own types
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


def _change(row: Any) -> Change:  # Row of _COLUMNS
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
