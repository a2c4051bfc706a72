"""Queries that branches and tags have in common: both are names of commits, with one lifecycle.

A name belongs to at most one branch or tag that is not trashed; any number of trashed ones may bear
it. Not for: staging (`branches`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import sqlalchemy as sa

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.model import RefKind
from ebbtide.store.metadata.engine import LockMode, Transaction
from ebbtide.store.metadata.prefixes import begins_with


class RefRow(Protocol):
    """What a row of either table has."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def ref_id(self) -> str:
        """Never changes, and belongs to no other."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def commit_id(self) -> str:
        """Where it points."""

    @property
    def created_at(self) -> datetime:
        """When it was made."""

    @property
    def expires_at(self) -> datetime | None:
        """When it goes to the trash, or went."""


Row = TypeVar("Row", bound=RefRow)


class RefTable(Generic[Row]):
    """The branches, or the tags, of all repositories. `row` is a dataclass with a field for each
    column but `repository_id`."""

    def __init__(
        self, kind: RefKind, table: sa.Table, ref_id: sa.Column[str], row: type[Row]
    ) -> None:
        self.kind: RefKind = kind
        self.table = table
        self._ref_id = ref_id
        self._row = row
        self._columns = [table.c[field.name] for field in fields(row)]
        # Made once: with each request several of these run, and making one takes longer.
        query = sa.select(*self._columns).where(
            table.c.repository_id == sa.bindparam("repository_id"),
            table.c.name == sa.bindparam("name"),
            sa.or_(table.c.expires_at.is_(None), table.c.expires_at > sa.bindparam("now")),
        )
        self._live_by_name: Mapping[LockMode | None, sa.Select[Any]] = {
            None: query,
            "share": query.with_for_update(read=True),
            "exclusive": query.with_for_update(key_share=True),
        }

    def find(
        self, tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
    ) -> Row | None:
        """The one of that name that is not trashed, by the database's now.

        With `lock`, its row is held until the transaction's end: shared by whoever stages entries
        under a branch's token, exclusive by whoever changes it.
        """
        row = tx.execute(
            self._live_by_name[lock],
            {"repository_id": repository_id, "name": name, "now": tx.now()},
        ).one_or_none()
        if row is None or (row.expires_at is not None and row.expires_at <= tx.now()):
            # The second look is for one that expired while its lock was waited for.
            return None
        return self._row(**row._mapping)

    def require(
        self, tx: Transaction, repository_id: str, name: str, *, lock: LockMode | None = None
    ) -> Row:
        """As `find`. Raises NotFound `branch_not_found` or `tag_not_found`, saying so if one is in
        the trash."""
        found = self.find(tx, repository_id, name, lock=lock)
        if found is not None:
            return found
        hint = ""
        if self.expired(tx, repository_id, name):
            hint = (
                f": it was deleted or has expired, and 'ebbtide {self.kind} restore' may bring it "
                "back"
            )
        raise NotFound(f"{self.kind}_not_found", f"there is no {self.kind} {shown(name)}{hint}")

    def by_id(
        self, tx: Transaction, repository_id: str, ref_id: str, *, lock: LockMode | None = None
    ) -> Row | None:
        """The one of that id, trashed or gone too; with `lock` as `find`."""
        query = self._select(repository_id, self._ref_id == ref_id)
        if lock is not None:
            query = query.with_for_update(read=lock == "share", key_share=lock == "exclusive")
        row = tx.execute(query).one_or_none()
        return None if row is None else self._row(**row._mapping)

    def expired(self, tx: Transaction, repository_id: str, name: str) -> list[Row]:
        """The expired ones of that name, gone ones too, the last to expire first."""
        query = self._select(
            repository_id, self.table.c.name == name, ~is_live(self.table.c.expires_at, tx.now())
        )
        rows = tx.execute(query.order_by(self.table.c.expires_at.desc(), self._ref_id))
        return [self._row(**row._mapping) for row in rows]

    def all(
        self, tx: Transaction, repository_id: str, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """All by name, trashed and gone ones too, but for what `conditions` leave out."""
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
        """At most `amount` by name and id. `after` is a name, or a name, a blank and an id."""
        name = self.table.c.name
        after_name, _, after_id = after.partition(" ")
        behind = name > after_name
        if after_id:
            behind = sa.or_(behind, sa.and_(name == after_name, self._ref_id > after_id))
        query = self._select(repository_id, behind, *begins_with(name, prefix), *conditions)
        rows = tx.execute(query.order_by(name, self._ref_id).limit(amount))
        return [self._row(**row._mapping) for row in rows]

    def insert(self, tx: Transaction, repository_id: str, row: Row) -> None:
        """Record one."""
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        tx.execute(sa.insert(self.table).values(repository_id=repository_id, **values))

    def update(
        self,
        tx: Transaction,
        repository_id: str,
        ref_id: str,
        **values: Any,  # of the columns' own types
    ) -> None:
        """Change columns of one."""
        tx.execute(
            sa.update(self.table)
            .where(self.table.c.repository_id == repository_id, self._ref_id == ref_id)
            .values(**values)
        )

    def is_on(
        self, tx: Transaction, repository_id: str, commit_id: str, *, gone_before: datetime
    ) -> bool:
        """Whether one points at the commit: a trashed one too, unless it expired that early."""
        query = self._select(
            repository_id,
            self.table.c.commit_id == commit_id,
            is_live(self.table.c.expires_at, gone_before),
        )
        return tx.execute(query.limit(1)).first() is not None

    def _select(
        self, repository_id: str, *conditions: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:  # of the row's columns
        return sa.select(*self._columns).where(
            self.table.c.repository_id == repository_id, *conditions
        )


def is_live(expires_at: sa.Column[datetime], now: datetime) -> sa.ColumnElement[bool]:
    """Persistent or expiring."""
    return sa.or_(expires_at.is_(None), expires_at > now)
