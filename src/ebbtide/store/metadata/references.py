"""Queries: what refers to addresses, but for the trees of commits: what is staged, writes, copies;
and the commits and refs by which the trees are found.

Not for: whether a reference is in anybody's way (`ebbtide.purge`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import (
    branches,
    commits,
    copies,
    pending,
    readings,
    staged,
    tags,
)

AMONG_MAX: Final = 500
"""So many addresses are asked for by name; for more, each table is read once."""
ROWS_PER_BATCH: Final = 50_000


class Addresses(Protocol):
    """The addresses that are asked about."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[str]:
        """Each once."""

    def matches(self, addresses: list[str]) -> list[bool]:
        """For each of the others whether it is one of them."""


@dataclass(frozen=True, slots=True)
class IntactCommit:
    """A commit, or content of a collection, whose data is there."""

    commit_id: str
    tree_id: str
    tree_checksum: str
    collection_id: str | None


@dataclass(frozen=True, slots=True)
class StagedAddress:
    """A staged entry."""

    token: str
    path: str
    address: str


def list_intact(tx: Transaction, repository_id: str) -> Iterator[IntactCommit]:
    """All commits and contents whose data nobody let go."""
    rows = tx.execute(
        sa.select(
            commits.c.commit_id, commits.c.tree_id, commits.c.tree_checksum, commits.c.collection_id
        ).where(
            commits.c.repository_id == repository_id,
            commits.c.tombstoned_by.is_(None),
            commits.c.forgotten_by.is_(None),
            commits.c.given_up_at.is_(None),
        )
    )
    return (IntactCommit(**row._mapping) for row in rows)


def names_of_commits(
    tx: Transaction, repository_id: str, *, gone_before: datetime
) -> dict[str, list[str]]:
    """The branches and tags, trashed ones too, that point at each commit, sorted."""
    found: dict[str, list[str]] = {}
    for table in (branches, tags):
        rows = tx.execute(
            sa.select(table.c.commit_id, table.c.name)
            .where(table.c.repository_id == repository_id, _is_there(table, gone_before))
            .order_by(table.c.name)
        )
        for row in rows:
            found.setdefault(row.commit_id, []).append(row.name)
    return found


def names_of_tokens(
    tx: Transaction, repository_id: str, *, gone_before: datetime
) -> dict[str, str]:
    """The branch, perhaps a trashed one, of each staging token, sealed ones too."""
    rows = tx.execute(
        sa.select(branches.c.name, branches.c.staging_token, branches.c.sealed_tokens).where(
            branches.c.repository_id == repository_id, _is_there(branches, gone_before)
        )
    )
    return {token: row.name for row in rows for token in (row.staging_token, *row.sealed_tokens)}


def _is_there(table: sa.Table, gone_before: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(table.c.expires_at.is_(None), table.c.expires_at > gone_before)


def staged_among(
    tx: Transaction, repository_id: str, addresses: Addresses
) -> Iterator[StagedAddress]:
    """What is staged, under whatever token, at one of the addresses."""
    query = sa.select(staged.c.address, staged.c.token, staged.c.path).where(
        staged.c.repository_id == repository_id, staged.c.address.is_not(None)
    )
    for row in _among(tx, query, staged.c.address, addresses):
        yield StagedAddress(row.token, row.path, row.address)


@dataclass(frozen=True, slots=True)
class StagedPlace:
    """Where an address is staged: on which branch, at which path, since when."""

    branch: str
    path: str
    staged_at: datetime
    branch_expires_at: datetime | None


def staged_places(
    tx: Transaction, repository_id: str, address: str, *, gone_before: datetime
) -> list[StagedPlace]:
    """Where an address is staged on branches that are not gone, by branch and path."""
    rows = tx.execute(
        sa.select(staged.c.token, staged.c.path, staged.c.mtime).where(
            staged.c.repository_id == repository_id, staged.c.address == address
        )
    ).all()
    here = sa.select(
        branches.c.name,
        branches.c.staging_token,
        branches.c.sealed_tokens,
        branches.c.expires_at,
    ).where(branches.c.repository_id == repository_id, _is_there(branches, gone_before))
    of_token = {
        token: branch
        for branch in tx.execute(here)
        for token in (branch.staging_token, *branch.sealed_tokens)
    }
    found = [
        StagedPlace(of_token[row.token].name, row.path, row.mtime, of_token[row.token].expires_at)
        for row in rows
        if row.token in of_token
    ]
    return sorted(found, key=lambda place: (place.branch, place.path))


def writes_among(tx: Transaction, repository_id: str, addresses: Addresses) -> Iterator[str]:
    """Addresses that are being written."""
    query = sa.select(pending.c.address).where(
        pending.c.repository_id == repository_id, pending.c.ends_at > tx.now()
    )
    return (row.address for row in _among(tx, query, pending.c.address, addresses))


def copies_among(tx: Transaction, repository_id: str, addresses: Addresses) -> Iterator[str]:
    """Addresses of copies that a reading which is under way must know of."""
    oldest = (
        sa.select(sa.func.min(readings.c.started_at))
        .where(readings.c.repository_id == repository_id, readings.c.ends_at > tx.now())
        .scalar_subquery()
    )
    query = sa.select(copies.c.address).where(
        copies.c.repository_id == repository_id, copies.c.made_at >= oldest
    )
    return (row.address for row in _among(tx, query, copies.c.address, addresses))


def _among(
    tx: Transaction,
    query: sa.Select[Any],  # of columns, `address` first
    column: sa.Column[str],
    addresses: Addresses,
) -> Iterator[Any]:  # rows of the query
    if len(addresses) <= AMONG_MAX:
        yield from tx.execute(query.where(column.in_(list(addresses))))
        return
    result = tx.execute(query, execution_options={"yield_per": ROWS_PER_BATCH})
    for rows in result.partitions():
        found = addresses.matches([row[0] for row in rows])
        yield from (row for row, is_one in zip(rows, found, strict=True) if is_one)


def drop_staged(
    tx: Transaction, repository_id: str, entries: Collection[StagedAddress], *, oldest_token: str
) -> None:
    """Drop staged entries, each if it still has its address.

    A commit that is being made of one of them must not be published: publishing compares sealed
    tokens, and `oldest_token`, a fresh and empty one, is put behind those of its branch.
    """
    if not entries:
        return
    for entry in entries:
        tx.execute(
            sa.delete(staged).where(
                staged.c.repository_id == repository_id,
                staged.c.token == entry.token,
                staged.c.path == entry.path,
                staged.c.address == entry.address,
            )
        )
    tokens = {entry.token for entry in entries}
    rows = tx.execute(
        sa.select(branches.c.branch_id, branches.c.sealed_tokens)
        .where(branches.c.repository_id == repository_id)
        .with_for_update(key_share=True)
    ).all()
    for row in rows:
        if tokens.intersection(row.sealed_tokens):
            tx.execute(
                sa.update(branches)
                .where(
                    branches.c.repository_id == repository_id,
                    branches.c.branch_id == row.branch_id,
                )
                .values(sealed_tokens=(*row.sealed_tokens, oldest_token))
            )
