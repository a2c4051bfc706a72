"""Queries: branches, tags, and the earlier commits of refs.

Branches and tags are names of commits, with one lifecycle. A name belongs to at most one branch or
tag that is not trashed. Any number of trashed ones can have it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, named
from ebbtide.errors import NotFound
from ebbtide.model import RefKind
from ebbtide.store.database.commit_rows import (
    COMMITS,
    CommitRecord,
    require_commit,
)
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.database.rows import Query, Rows, locked
from ebbtide.store.database.schema import branches, commits, reflog, tags
from ebbtide.store.lifecycle import ends_after, missing

BRANCH_ATTEMPTS_MAX: Final = 10
"""The most attempts of an operation whose branch moves while it works. Source: lakeFS, which tries
an update of a branch ten times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefRow(ABC):
    """The columns that branches and tags share."""

    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None

    @property
    @abstractmethod
    def ref_id(self) -> str:
        """The id of the ref. It is unique, and never changes."""


Row = TypeVar("Row", bound=RefRow)


class RefTable(Generic[Row]):
    """The table of branches, or of tags, of all repositories."""

    def __init__(self, kind: RefKind, rows: Rows[Row]) -> None:
        self.kind: RefKind = kind
        self.rows = rows
        self.table = table = rows.table
        # Built once: each request runs several of these queries, and building one takes longer than
        # running it.
        named = rows.select(
            table.c.repository_id == sa.bindparam("repository_id"),
            table.c.name == sa.bindparam("name"),
        )
        persistent, later = table.c.expires_at.is_(None), table.c.expires_at > sa.bindparam("now")
        self._persistent_by_name = _by_lock(named.where(persistent))
        self._live_by_name = _by_lock(named.where(sa.or_(persistent, later)))
        of_commit = sa.and_(
            commits.c.repository_id == table.c.repository_id,
            commits.c.commit_id == table.c.commit_id,
        )
        joined = named.add_columns(*COMMITS.columns).select_from(
            table.outerjoin(commits, of_commit)
        )
        self._persistent_with_commit = joined.where(persistent)
        self._live_with_commit = joined.where(sa.or_(persistent, later))

    def find(
        self, tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
    ) -> Row | None:
        """Returns the ref of this name that is not trashed, by the database's clock, or None.

        With `lock`, its row is locked until the end of the transaction: shared by transactions that
        stage entries under a branch's token, exclusively by transactions that change the branch.
        """
        place = {"repository_id": repository_id, "name": name}
        if not tx.in_process:
            # Most refs never expire. For these the clock is not needed, which costs PostgreSQL a
            # statement.
            found = self.rows.one(tx, self._persistent_by_name[lock], place)
            if found is not None:
                return found
        row = self.rows.one(tx, self._live_by_name[lock], place | {"now": tx.now()})
        if row is None or (row.expires_at is not None and row.expires_at <= tx.now()):
            # Checked again: the ref may have expired while this transaction waited for the lock.
            return None
        return row

    def find_with_commit(
        self, tx: Transaction, repository_id: str, name: str
    ) -> tuple[Row, CommitRecord] | None:
        """Returns the ref of this name that is not trashed, and its commit or stub, or None. For
        one statement less than two queries have.

        Raises NotFound `commit_not_found`.
        """
        place = {"repository_id": repository_id, "name": name}
        found = None
        if not tx.in_process:
            # As in `find`.
            found = tx.execute(self._persistent_with_commit, place).one_or_none()
        if found is None:
            now = {"now": tx.now()}
            found = tx.execute(self._live_with_commit, place | now).one_or_none()
        if found is None:
            return None
        count = len(self.rows.columns)
        ref, commit = self.rows.of(found[:count]), found[count:]
        if commit[0] is None:
            return ref, require_commit(tx, repository_id, ref.commit_id)
        return ref, COMMITS.of(commit)

    def require(
        self, tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
    ) -> Row:
        """Returns the ref of this name that is not trashed. `lock` is as in `find`. Raises NotFound
        `branch_not_found` or `tag_not_found` if there is none."""
        found = self.find(tx, repository_id, name, lock=lock)
        if found is None:
            raise self.missing(tx, repository_id, name)
        return found

    def missing(self, tx: Transaction, repository_id: str, name: str) -> NotFound:
        """Returns the error for a name that no live ref has. If a ref of this name has expired, the
        message says so."""
        return missing(self.kind, name, is_trashed=bool(self.expired(tx, repository_id, name)))

    def lock(self, tx: Transaction, repository_id: str, ref: str) -> None:
        """Locks the refs with this name or id exclusively, in any state, until the end of the
        transaction. All transactions that lock several refs lock them in this order."""
        mine = sa.or_(self.table.c.name == ref, self.rows.key == ref)
        query = self._select(repository_id, mine).order_by(self.rows.key)
        tx.execute(locked(query, "exclusive")).all()

    def expired(self, tx: Transaction, repository_id: str, name: str) -> list[Row]:
        """Returns the expired refs of this name, also gone ones, the latest expiry first."""
        query = self._select(
            repository_id, self.table.c.name == name, ~ends_after(self.table.c.expires_at, tx.now())
        )
        return self.rows.all(tx, query.order_by(self.table.c.expires_at.desc(), self.rows.key))

    def all(
        self, tx: Transaction, repository_id: str, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """Yields all refs that meet `conditions` by name, also trashed and gone ones."""
        query = self._select(repository_id, *conditions)
        return self.rows.each(
            tx, query.order_by(self.table.c.name, self.table.c.created_at, self.rows.key)
        )

    def insert(self, tx: Transaction, repository_id: str, row: Row) -> None:
        """Records a ref."""
        self.rows.insert(tx, row, repository_id=repository_id)

    def update(
        self,
        tx: Transaction,
        repository_id: str,
        ref_id: str,
        **values: Any,  # values of the columns' types
    ) -> None:
        """Changes columns of a ref."""
        self.rows.update(tx, ref_id, self.table.c.repository_id == repository_id, **values)

    def is_on(
        self, tx: Transaction, repository_id: str, commit_id: str, *, gone_before: datetime
    ) -> bool:
        """Whether a ref points at the commit. Trashed refs count, refs that expired before
        `gone_before` do not."""
        query = self._select(
            repository_id,
            self.table.c.commit_id == commit_id,
            ends_after(self.table.c.expires_at, gone_before),
        )
        return tx.execute(query.limit(1)).first() is not None

    def _select(self, repository_id: str, *conditions: sa.ColumnElement[bool]) -> Query:
        return self.rows.select(self.table.c.repository_id == repository_id, *conditions)


def _by_lock(query: Query) -> Mapping[LockMode | None, Query]:
    """Returns the query with each lock of its rows."""
    modes: tuple[LockMode | None, ...] = (None, "share", "exclusive")
    return {mode: locked(query, mode) for mode in modes}


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow(RefRow):
    """One branch as it is stored. `sealed_tokens` begins with the newest."""

    branch_id: str = field(metadata=named("ref_id"))
    staging_token: str = field(metadata=HIDDEN)
    sealed_tokens: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    hidden: bool = False

    @property
    def ref_id(self) -> str:
        """The branch's id."""
        return self.branch_id

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens under which entries of the branch are staged. A newer token hides older
        ones."""
        return (self.staging_token, *self.sealed_tokens)


BRANCHES: Final = RefTable("branch", Rows(branches, BranchRow, branches.c.branch_id))

find_branch = BRANCHES.find
require_branch = BRANCHES.require
insert_branch = BRANCHES.insert
update_branch = BRANCHES.update
list_branches = BRANCHES.all
is_branch_on = BRANCHES.is_on


def lock_branches(tx: Transaction, repository_id: str) -> None:
    """Locks all branches of a repository exclusively, in any state, until the end of the
    transaction. The caller has locked the repository exclusively, so that none is added."""
    tx.execute(
        sa.select(branches.c.branch_id)
        .where(branches.c.repository_id == repository_id)
        # All transactions that lock several branches lock them in this order.
        .order_by(branches.c.branch_id)
        .with_for_update(key_share=True)
    ).all()


def insert_reflog(
    tx: Transaction, repository_id: str, *, kind: str, name: str, commit_id: str
) -> None:
    """Records that a ref pointed at `commit_id` until now. Readers were promised its data for one
    lease."""
    tx.execute(
        sa.insert(reflog).values(
            repository_id=repository_id,
            kind=kind,
            name=name,
            commit_id=commit_id,
            left_at=tx.now(),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRow(RefRow):
    """One tag as it is stored."""

    tag_id: str = field(metadata=named("ref_id"))

    @property
    def ref_id(self) -> str:
        """The tag's id."""
        return self.tag_id


TAGS: Final = RefTable("tag", Rows(tags, TagRow, tags.c.tag_id))

find_tag = TAGS.find
is_tag_on = TAGS.is_on
