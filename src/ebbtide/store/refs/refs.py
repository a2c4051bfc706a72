"""Operations that branches and tags share: finding, listing, trashing and restoring them.

A ref is named by its name or by its id. No name looks like an id. Several refs in the trash can
have one name. Not for: making refs, or the entries on a branch.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from ebbtide.errors import Conflict, NotFound
from ebbtide.escaping import shown
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked, state_at
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import require_intact_commits
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.listing import check_amount
from ebbtide.store.names import REF_LENGTH_MAX
from ebbtide.store.refs.queries import BRANCHES, TAGS, BranchRow, RefTable, TagRow, insert_reflog
from ebbtide.store.repositories.lifecycle import ListFilter, ambiguous, free_name, taken


class NamedCommit(Protocol):
    """A branch or tag as it was when it was read."""

    @property
    def ref_id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def commit_id(self) -> str:
        """The commit that it points at."""

    @property
    def created_at(self) -> datetime:
        """When it was made."""

    @property
    def expires_at(self) -> datetime | None:
        """When it moves, or moved, to the trash. None is never."""

    @property
    def state(self) -> LifecycleState:
        """Its state when it was read."""


Row = TypeVar("Row", BranchRow, TagRow)
Found = TypeVar("Found", bound=NamedCommit)


class Refs(ABC, Generic[Row, Found]):
    """The branches, or the tags, of one repository."""

    def __init__(self, context: RepositoryContext, table: RefTable[Row]) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id
        self._table: RefTable[Row] = table
        self.kind = table.kind

    @abstractmethod
    def _found(self, row: Row, state: LifecycleState) -> Found:
        """Returns the branch or tag of a row, with its state."""

    def get(self, ref: str, *, include_expired: bool = False) -> Found:
        """Returns the live branch or tag with that name or id.

        With `include_expired`, returns one in the trash if there is no live one. Raises NotFound
        `branch_not_found` or `tag_not_found`, and Conflict `ref_ambiguous` if several in the trash
        have the name.
        """
        with self._metadata.snapshot() as tx:
            return self._look(tx, self._require(tx, ref, include_expired=include_expired))

    def list(self, *, include_expired: bool = False) -> list[Found]:
        """Returns all live refs by name; with `include_expired`, also those in the trash."""
        with self._metadata.snapshot() as tx:
            states = ListFilter(include_expired=include_expired).at(
                tx.now(), self._context.trash_time
            )
            conditions = states.conditions(self._table.table.c.expires_at)
            rows = self._table.all(tx, self._repository_id, *conditions)
            return [self._look(tx, row) for row in rows]

    def page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        amount: int = 1000,
        listed: ListFilter | None = None,
    ) -> builtins.list[Found]:
        """Returns at most `amount` refs, sorted by name and id.

        They sort behind `after`, which is `NAME` or `NAME ID`. Their names begin with `prefix`, and
        `listed` filters them. Raises InvalidInput `invalid_argument`, `invalid_date`.
        """
        return self._page(prefix, after, amount, listed or ListFilter())

    def _page(
        self,
        prefix: str,
        after: str,
        amount: int,
        listed: ListFilter,
        *conditions: sa.ColumnElement[bool],
    ) -> builtins.list[Found]:
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            states = listed.at(tx.now(), self._context.trash_time)
            rows = self._table.page(
                tx,
                self._repository_id,
                *states.conditions(self._table.table.c.expires_at),
                *conditions,
                prefix=prefix,
                after=after,
                amount=amount,
            )
            return [self._look(tx, row) for row in rows]

    def delete(self, ref: str) -> Found:
        """Moves a branch or tag to the trash. Its name is free at once.

        Its commit and staged changes stay for `trash_time`. Raises NotFound `branch_not_found` or
        `tag_not_found`, Conflict `branch_protected` for the default branch.
        """
        with self._context.changing("exclusive") as tx:
            row = self._require(tx, ref, lock="exclusive")
            return self._set_expiry(tx, row, tx.now())

    def set_expiry(
        self, ref: str, expires_at: datetime | None, *, ensure_unique_name: bool = False
    ) -> Found:
        """Sets when a ref moves to the trash: None is never, and a past time is now.

        For a ref in the trash, None or a future time restores it, with its staged changes. If its
        name was taken meanwhile, `ensure_unique_name` gives it another name.

        Raises NotFound `branch_not_found` or `tag_not_found`; Conflict `branch_protected`,
        `ref_ambiguous`, `branch_exists`, `tag_exists`; Gone `commit_expired`; InvalidInput
        `invalid_date`.
        """
        with self._context.changing("exclusive") as tx:
            asked = expiry_asked(expires_at, now=tx.now())
            row = self._require(tx, ref, include_expired=True, lock="exclusive")
            if row.expires_at is None or row.expires_at > tx.now():
                return self._set_expiry(tx, row, asked)
            return self._revive(tx, row, asked, ensure_unique_name=ensure_unique_name)

    def restore(self, ref: str, *, ensure_unique_name: bool = False) -> Found:
        """Restores a ref from the trash, and clears its date of expiry.

        `ref` is its id, or its name if no other ref in the trash has the name. Raises as
        `set_expiry` does.
        """
        with self._context.changing("exclusive") as tx:
            row = self._recoverable(tx, ref, lock="exclusive")
            if row is None:
                live = self._find_live(tx, ref)
                if live is not None:
                    raise taken(self.kind, live.name)
                raise NotFound(
                    f"{self.kind}_not_found", f"there is no {self.kind} {shown(ref)} to restore"
                )
            return self._revive(tx, row, None, ensure_unique_name=ensure_unique_name)

    def _set_expiry(self, tx: Transaction, row: Row, expires_at: datetime | None) -> Found:
        """Sets when a live ref expires. The caller has locked the repository exclusively."""
        if expires_at is not None:
            if self.kind == "branch" and row.name == self._context.info.default_branch:
                raise Conflict(
                    "branch_protected",
                    f"cannot delete repository default branch: {shown(row.name)} stays as long as "
                    "its repository",
                )
            if row.expires_at is None or expires_at < row.expires_at:
                # Locators that were signed until now may last longer than the new date.
                insert_reflog(
                    tx,
                    self._repository_id,
                    kind=self.kind,
                    name=row.name,
                    commit_id=row.commit_id,
                )
        return self._update(tx, row, expires_at=expires_at)

    def _revive(
        self, tx: Transaction, row: Row, expires_at: datetime | None, *, ensure_unique_name: bool
    ) -> Found:
        """Gives a ref in the trash another date. The caller has locked the repository
        exclusively."""
        if expires_at is not None and expires_at <= tx.now():
            return self._update(tx, row, expires_at=expires_at)
        name = row.name
        if ensure_unique_name:
            name = free_name(
                name,
                lambda each: _holder(tx, self._repository_id, each) is not None,
                length_max=REF_LENGTH_MAX,
            )
        require_free_name(tx, self._repository_id, name)
        require_intact_commits(tx, self._repository_id, [row.commit_id])
        return self._update(tx, row, expires_at=expires_at, name=name)

    def _update(self, tx: Transaction, row: Row, **values: Any) -> Found:  # any column's type
        self._table.update(tx, self._repository_id, row.ref_id, **values)
        return self._look(tx, replace(row, **values))

    def _require(
        self,
        tx: Transaction,
        ref: str,
        *,
        include_expired: bool = False,
        lock: LockMode | None = None,
    ) -> Row:
        row = self._find_live(tx, ref, lock=lock)
        if row is None and include_expired:
            row = self._recoverable(tx, ref, lock=lock)
        return self._table.require(tx, self._repository_id, ref) if row is None else row

    def _find_live(self, tx: Transaction, ref: str, *, lock: LockMode | None = None) -> Row | None:
        row = self._table.find(tx, self._repository_id, ref, lock=lock)
        if row is None:
            row = self._table.by_id(tx, self._repository_id, ref, lock=lock)
        return row if row is not None and self._state(tx, row).is_visible() else None

    def _recoverable(
        self, tx: Transaction, ref: str, *, lock: LockMode | None = None
    ) -> Row | None:
        """Returns the ref in the trash with that id or name. Raises Conflict `ref_ambiguous`."""
        by_id = self._table.by_id(tx, self._repository_id, ref, lock=lock)
        rows = self._table.expired(tx, self._repository_id, ref) if by_id is None else [by_id]
        found = [row for row in rows if self._state(tx, row) is LifecycleState.TRASHED]
        if len(found) > 1:
            raise ambiguous(self.kind, ref, [row.ref_id for row in found])
        return found[0] if found else None

    def _state(self, tx: Transaction, row: Row) -> LifecycleState:
        return state_at(row.expires_at, trash_time=self._context.trash_time, now=tx.now())

    def _look(self, tx: Transaction, row: Row) -> Found:
        return self._found(row, self._state(tx, row))


def require_free_name(tx: Transaction, repository_id: str, name: str) -> None:
    """Raises Conflict `branch_exists` or `tag_exists` if the name is taken.

    Branches and tags share their names, so that a name never means two commits. The caller has
    locked the repository exclusively.
    """
    kind = _holder(tx, repository_id, name)
    if kind is not None:
        raise taken(kind, name)


def _holder(tx: Transaction, repository_id: str, name: str) -> str | None:
    """Returns the kind of the live ref with that name, or None."""
    if BRANCHES.find(tx, repository_id, name) is not None:
        return BRANCHES.kind
    return None if TAGS.find(tx, repository_id, name) is None else TAGS.kind
