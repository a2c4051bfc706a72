"""Queries: branches, tags, and the earlier commits of refs.

Branches and tags are names of commits, with one lifecycle. A name belongs to at most one branch or
tag that is not trashed. Any number of trashed ones can have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import sqlalchemy as sa

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.model import RefKind
from ebbtide.store.database.commits import (
    COMMIT_COLUMNS,
    CommitRecord,
    commit_of,
    require_commit,
)
from ebbtide.store.database.conditions import begins_with
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.database.schema import branches, commits, reflog, tags

BRANCH_ATTEMPTS_MAX: Final = 10
"""The most attempts of an operation whose branch moves while it works. Source: lakeFS, which tries
an update of a branch ten times."""


class RefRow(Protocol):
    """The fields that a row of `branches` and a row of `tags` share."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def ref_id(self) -> str:
        """The id of the ref. It is unique, and never changes."""

    @property
    def name(self) -> str:
        """The name of the ref, for people."""

    @property
    def commit_id(self) -> str:
        """The commit that the ref points at."""

    @property
    def created_at(self) -> datetime:
        """The time when the ref was made."""

    @property
    def expires_at(self) -> datetime | None:
        """The time when the ref goes to the trash, or went there."""


Row = TypeVar("Row", bound=RefRow)


class RefTable(Generic[Row]):
    """The table of branches, or of tags, of all repositories. `row` is a dataclass with a field for
    each column except `repository_id`."""

    def __init__(
        self, kind: RefKind, table: sa.Table, ref_id: sa.Column[str], row: type[Row]
    ) -> None:
        self.kind: RefKind = kind
        self.table = table
        self._ref_id = ref_id
        self._row = row
        self._columns = [table.c[field.name] for field in fields(row)]
        # Built once: each request runs several of these queries, and building one takes longer than
        # running it.
        named = sa.select(*self._columns).where(
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
        joined = named.add_columns(*COMMIT_COLUMNS).select_from(table.outerjoin(commits, of_commit))
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
        if tx.dialect_name == "postgresql":
            # Most refs never expire. For these the clock is not needed, which costs PostgreSQL a
            # statement.
            found = tx.execute(self._persistent_by_name[lock], place).one_or_none()
            if found is not None:
                return self._row(**found._mapping)
        row = tx.execute(self._live_by_name[lock], place | {"now": tx.now()}).one_or_none()
        if row is None or (row.expires_at is not None and row.expires_at <= tx.now()):
            # Checked again: the ref may have expired while this transaction waited for the lock.
            return None
        return self._row(**row._mapping)

    def find_with_commit(
        self, tx: Transaction, repository_id: str, name: str
    ) -> tuple[Row, CommitRecord] | None:
        """Returns the ref of this name that is not trashed, and its commit or stub, or None. For
        one statement less than two queries have.

        Raises NotFound `commit_not_found`.
        """
        place = {"repository_id": repository_id, "name": name}
        found = None
        if tx.dialect_name == "postgresql":
            # As in `find`.
            found = tx.execute(self._persistent_with_commit, place).one_or_none()
        if found is None:
            now = {"now": tx.now()}
            found = tx.execute(self._live_with_commit, place | now).one_or_none()
        if found is None:
            return None
        count = len(self._columns)
        ref, commit = self._row(*found[:count]), found[count:]
        if commit[0] is None:
            return ref, require_commit(tx, repository_id, ref.commit_id)
        return ref, commit_of(commit)

    def require(
        self, tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
    ) -> Row:
        """Returns the ref of this name that is not trashed. `lock` is as in `find`. Raises NotFound
        `branch_not_found` or `tag_not_found` if there is none. If a ref of this name has expired,
        the message says so."""
        found = self.find(tx, repository_id, name, lock=lock)
        if found is not None:
            return found
        hint = ""
        if self.expired(tx, repository_id, name):
            hint = f": it was deleted or has expired; 'ebbtide {self.kind} restore' may restore it"
        raise NotFound(f"{self.kind}_not_found", f"there is no {self.kind} {shown(name)}{hint}")

    def by_id(
        self, tx: Transaction, repository_id: str, ref_id: str, *, lock: LockMode | None = None
    ) -> Row | None:
        """Returns the ref with this id, also a trashed or gone one. `lock` is as in `find`."""
        query = self._select(repository_id, self._ref_id == ref_id)
        if lock is not None:
            query = query.with_for_update(read=lock == "share", key_share=lock == "exclusive")
        row = tx.execute(query).one_or_none()
        return None if row is None else self._row(**row._mapping)

    def expired(self, tx: Transaction, repository_id: str, name: str) -> list[Row]:
        """Returns the expired refs of this name, also gone ones, the latest expiry first."""
        query = self._select(
            repository_id, self.table.c.name == name, ~is_live(self.table.c.expires_at, tx.now())
        )
        rows = tx.execute(query.order_by(self.table.c.expires_at.desc(), self._ref_id))
        return [self._row(**row._mapping) for row in rows]

    def all(
        self, tx: Transaction, repository_id: str, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """Yields all refs that meet `conditions` by name, also trashed and gone ones."""
        rows = tx.execute(
            self._select(repository_id, *conditions).order_by(
                self.table.c.name, self.table.c.created_at, self._ref_id
            )
        )
        return (self._row(**row._mapping) for row in rows)

    def page(
        self,
        tx: Transaction,
        repository_id: str,
        *conditions: sa.ColumnElement[bool],
        prefix: str,
        after: str,
        amount: int,
    ) -> list[Row]:
        """Returns at most `amount` refs, sorted by name and id. They sort behind `after`, which is
        `NAME` or `NAME ID`."""
        name = self.table.c.name
        after_name, _, after_id = after.partition(" ")
        behind = name > after_name
        if after_id:
            behind = sa.or_(behind, sa.and_(name == after_name, self._ref_id > after_id))
        query = self._select(repository_id, behind, *begins_with(name, prefix), *conditions)
        rows = tx.execute(query.order_by(name, self._ref_id).limit(amount))
        return [self._row(**row._mapping) for row in rows]

    def insert(self, tx: Transaction, repository_id: str, row: Row) -> None:
        """Records a ref."""
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        tx.execute(sa.insert(self.table).values(repository_id=repository_id, **values))

    def update(
        self,
        tx: Transaction,
        repository_id: str,
        ref_id: str,
        **values: Any,  # values of the columns' types
    ) -> None:
        """Changes columns of a ref."""
        tx.execute(
            sa.update(self.table)
            .where(self.table.c.repository_id == repository_id, self._ref_id == ref_id)
            .values(**values)
        )

    def is_on(
        self, tx: Transaction, repository_id: str, commit_id: str, *, gone_before: datetime
    ) -> bool:
        """Whether a ref points at the commit. Trashed refs count, refs that expired before
        `gone_before` do not."""
        query = self._select(
            repository_id,
            self.table.c.commit_id == commit_id,
            is_live(self.table.c.expires_at, gone_before),
        )
        return tx.execute(query.limit(1)).first() is not None

    def _select(
        self, repository_id: str, *conditions: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:  # rows with the columns of `row`
        return sa.select(*self._columns).where(
            self.table.c.repository_id == repository_id, *conditions
        )


def _by_lock(query: sa.Select[Any]) -> Mapping[LockMode | None, sa.Select[Any]]:
    """Returns the query with each lock of its rows."""
    return {
        None: query,
        "share": query.with_for_update(read=True),
        "exclusive": query.with_for_update(key_share=True),
    }


def is_live(expires_at: sa.Column[datetime], now: datetime) -> sa.ColumnElement[bool]:
    """Returns the SQL condition for a ref that is persistent or expiring at `now`."""
    return sa.or_(expires_at.is_(None), expires_at > now)


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch as it is stored. `sealed_tokens` begins with the newest."""

    branch_id: str
    name: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
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


BRANCHES: Final = RefTable("branch", branches, branches.c.branch_id, BranchRow)

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


@dataclass(frozen=True, slots=True)
class TagRow:
    """One tag as it is stored."""

    tag_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None

    @property
    def ref_id(self) -> str:
        """The tag's id."""
        return self.tag_id


TAGS: Final = RefTable("tag", tags, tags.c.tag_id, TagRow)

find_tag = TAGS.find
is_tag_on = TAGS.is_on
