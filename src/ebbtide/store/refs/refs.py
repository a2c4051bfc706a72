"""The branches and the tags of a repository: making and listing them, and their lifecycle.

Not for: the entries on a branch, or moving a branch to a new commit.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ebbtide.documents import documented
from ebbtide.errors import Conflict, NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import values_of
from ebbtide.store.database.schema import branches
from ebbtide.store.lifecycle import LIVE, ByName, Find, ListFilter, Place, SeenItem, place_of, taken
from ebbtide.store.names import REF_LENGTH_MAX, check_ref_name
from ebbtide.store.refs.ref_rows import (
    BRANCHES,
    TAGS,
    BranchRow,
    RefRow,
    RefTable,
    TagRow,
    insert_reflog,
)
from ebbtide.store.refs.revisions import resolve
from ebbtide.text import shown


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(BranchRow):
    """A branch as it was when it was read."""

    state: LifecycleState


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Tag(TagRow):
    """A tag as it was when it was read."""

    state: LifecycleState


NamedCommit = Branch | Tag
"""A branch or a tag: what both have."""

Row = TypeVar("Row", bound=RefRow)
Found = TypeVar("Found", bound=NamedCommit)


class Refs(ByName[Row, Found]):
    """The branches, or the tags, of one repository."""

    length_max = REF_LENGTH_MAX

    def __init__(self, context: RepositoryContext, table: RefTable[Row]) -> None:
        self._context = context
        self._repository_id = context.repository_id
        self._table: RefTable[Row] = table
        super().__init__(
            context.metadata,
            context.trash_time,
            table.rows,
            table.table.c.repository_id == context.repository_id,
        )

    def list(self, *, include_expired: bool = False) -> list[Found]:
        """Returns the live refs by name; with `include_expired`, also those in the trash."""
        listed = ListFilter(include_expired=include_expired)
        with self._metadata.snapshot() as tx:
            row = self._table.table.c
            query = self._listed(tx, listed).order_by(row.name, row.created_at, self._rows.key)
            return [self._found(tx, SeenItem(each)) for each in self._rows.each(tx, query)]

    def page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        amount: int = 1000,
        listed: ListFilter = LIVE,
        hidden: bool = False,
    ) -> builtins.list[Found]:
        """Returns at most `amount` refs, sorted by name and id.

        They sort behind `after`, which is `NAME` or `NAME ID`. Their names begin with `prefix`, and
        `listed` filters them. `hidden` includes the hidden branches. Raises InvalidInput
        `invalid_argument`, `invalid_date`.
        """
        seen = [] if hidden or self._table is not BRANCHES else [branches.c.hidden.is_(False)]
        with self._metadata.snapshot() as tx:
            rows = self._page(
                tx, *seen, listed=listed, prefix=prefix, after=place_of(after), amount=amount
            )
            return [self._found(tx, SeenItem(row)) for row in rows]

    def _make(
        self,
        name: str,
        source: str,
        expires_at: datetime | None,
        **own: Any,  # the columns that only branches, or only tags have
    ) -> Found:
        """Makes a ref of the commit that `source` names. Raises as `Branches.create` does."""
        check_ref_name(name)
        with self._context.changing("exclusive") as tx:
            require_free_name(tx, self._repository_id, name)
            commit = resolve(tx, self._repository_id, source).commit
            commit.require_intact()
            now = tx.now()
            row = self._rows.row(
                name=name,
                commit_id=commit.commit_id,
                created_at=now,
                expires_at=expiry_asked(expires_at, now=now),
                **own,
            )
            self._table.insert(tx, self._repository_id, row)
            return self._found(tx, SeenItem(row))

    @contextmanager
    def _changing(self, ref: str, find: Find[Row]) -> Iterator[tuple[Transaction, SeenItem[Row]]]:
        with self._context.changing("exclusive") as tx:
            # Uploads to a branch lock its row, and not the repository.
            self._table.lock(tx, self._repository_id, ref)
            yield tx, find(tx, ref)

    def _changed(self, tx: Transaction, row: Row, changed: Row) -> Row:
        """Raises Conflict `branch_protected` for the default branch; Gone `commit_expired` for a
        ref from the trash whose commit a run has closed."""
        if self._is_over(tx, row.expires_at):
            if not self._is_over(tx, changed.expires_at):
                require_intact_commits(tx, self._repository_id, [row.commit_id])
        elif changed.expires_at is not None:
            if self.kind == "branch" and row.name == self._context.info.default_branch:
                raise Conflict(
                    "branch_protected",
                    f"cannot delete repository default branch: {shown(row.name)} stays as long as "
                    "its repository",
                )
            if row.expires_at is None or changed.expires_at < row.expires_at:
                # Locators that were signed until now may last longer than the new date.
                insert_reflog(
                    tx,
                    self._repository_id,
                    kind=self.kind,
                    name=row.name,
                    commit_id=row.commit_id,
                )
        return changed

    def _holder(self, tx: Transaction, place: Place, _own_id: str | None) -> str | None:
        return _holder(tx, self._repository_id, *place)

    def _live_named(self, tx: Transaction, name: str) -> Row | None:
        return self._table.find(tx, self._repository_id, name)

    def _expired_named(self, tx: Transaction, name: str) -> Sequence[Row]:
        return self._table.expired(tx, self._repository_id, name)

    def missing(self, tx: Transaction, ref: str) -> NotFound:
        return self._table.missing(tx, self._repository_id, ref)

    def _require_trashed(self, tx: Transaction, ref: str) -> SeenItem[Row]:
        try:
            return super()._require_trashed(tx, ref)
        except NotFound:
            # Not as `missing` says it: a gone ref has expired, and nothing restores it.
            raise NotFound(
                f"{self.kind}_not_found", f"there is no {self.kind} {shown(ref)} to restore"
            ) from None


class Branches(Refs[BranchRow, Branch]):
    """The branches of one repository."""

    kind = BRANCHES.kind

    def __init__(self, context: RepositoryContext) -> None:
        super().__init__(context, BRANCHES)

    def create(
        self,
        name: str,
        source: str,
        *,
        hidden: bool = False,
        expires_at: datetime | None = None,
    ) -> Branch:
        """Makes a branch at the commit that `source` names, without staged changes.

        `page` leaves a hidden branch out by default. Otherwise it is like any other. At
        `expires_at` the branch moves to the trash. A past time means now.

        Raises InvalidInput `invalid_name`, `invalid_date`; Conflict `branch_exists` or
        `tag_exists`; NotFound; Gone `commit_expired`.
        """
        own = {"branch_id": new_id(), "staging_token": new_id(), "hidden": hidden}
        return self._make(name, source, expires_at, **own)

    def _found(self, tx: Transaction, seen: SeenItem[BranchRow]) -> Branch:
        return Branch(**values_of(seen.row), state=self._state(tx, seen))


class Tags(Refs[TagRow, Tag]):
    """The tags of one repository. A tag never moves. It can be deleted, and made again."""

    kind = TAGS.kind

    def __init__(self, context: RepositoryContext) -> None:
        super().__init__(context, TAGS)

    def create(self, name: str, ref: str, *, expires_at: datetime | None = None) -> Tag:
        """Makes a tag of the commit that `ref` names, without staged changes.

        At `expires_at` the tag moves to the trash. A past time means now. Raises as
        `Branches.create` does.
        """
        return self._make(name, ref, expires_at, tag_id=new_id())

    def _found(self, tx: Transaction, seen: SeenItem[TagRow]) -> Tag:
        return Tag(**values_of(seen.row), state=self._state(tx, seen))


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
