"""The lifecycle of everything that has one: refs, repositories, projects and collections.

`Lifecycle` has the operations of all kinds. What differs is in the class of a kind: where its rows
are, which of them a name means, and what a change must check first. Not for: the states and their
table (`retention.lifecycle`). The database stores dates, not states: when something expires by
itself, no row changes. Source: the Arvados wiki, "Expiring collections".
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import sqlalchemy as sa

from ebbtide.errors import Conflict, NotFound
from ebbtide.retention.dates import to_utc
from ebbtide.retention.lifecycle import LifecycleState, earliest, expiry_asked, state_at
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import HasFields, Query, Rows, values_of
from ebbtide.store.names import free_name
from ebbtide.store.page import check_amount
from ebbtide.text import shown

IDS_SHOWN: Final = 20


class ExpiringRow(HasFields, Protocol):
    """A row with a name and a date of expiry."""

    @property
    def name(self) -> str:
        """The name, for people."""

    @property
    def expires_at(self) -> datetime | None:
        """The time when it goes to the trash, or went there. None is never."""


Row = TypeVar("Row", bound=ExpiringRow)
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SeenItem(Generic[Row]):
    """An item as one transaction read it. `above` are the projects that it is in, the innermost
    first."""

    row: Row
    above: tuple[ExpiringRow, ...] = ()

    @property
    def line(self) -> tuple[ExpiringRow, ...]:
        """The item and the projects above it."""
        return (self.row, *self.above)

    @property
    def ends_at(self) -> datetime | None:
        """The earliest date of the item and the projects above it, which decides its state."""
        return earliest(*(each.expires_at for each in self.line))

    @property
    def path(self) -> str:
        """The names, from the outermost project on."""
        return "/".join(each.name for each in reversed(self.line))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """A filter of a list. With `include_expired`, the list includes the trash.

    `state`, `expires_after` (this instant or later) and `expires_before` restrict the list, by the
    items' own `expires_at`.
    """

    include_expired: bool = False
    state: LifecycleState | None = None
    expires_after: datetime | None = None
    expires_before: datetime | None = None

    def conditions(
        self, expires_at: sa.ColumnElement[Any], *, now: datetime, trash_time: timedelta
    ) -> list[sa.ColumnElement[bool]]:
        """Returns the filter as SQL conditions on the column `expires_at`. Gone items never meet
        them. Raises InvalidInput `invalid_date` for a date without a zone."""
        found = [ends_after(expires_at, now - trash_time if self.include_expired else now)]
        if self.state is LifecycleState.PERSISTENT:
            found.append(expires_at.is_(None))
        elif self.state is LifecycleState.EXPIRING:
            found.append(expires_at > now)
        elif self.state is LifecycleState.TRASHED:
            found.append(expires_at <= now)
        elif self.state is LifecycleState.GONE:
            found.append(sa.false())
        if self.expires_after is not None:
            found.append(expires_at >= to_utc(self.expires_after, what="expires_at"))
        if self.expires_before is not None:
            found.append(expires_at < to_utc(self.expires_before, what="expires_at"))
        return found


LIVE: Final = ListFilter()
"""Lists what is not in the trash."""
TRASH: Final = ListFilter(include_expired=True, state=LifecycleState.TRASHED)
"""Lists the content of the trash alone."""


def ends_after(expires_at: sa.ColumnElement[Any], instant: datetime) -> sa.ColumnElement[bool]:
    """Returns the SQL condition that something with this column has not expired at an instant."""
    return sa.or_(expires_at.is_(None), expires_at > instant)


Place = tuple[Any, ...]  # texts, or None
"""What two live items of a kind cannot both have: the id of their project, if they are in one, and
their name, which comes last."""

Find = Callable[[Transaction, str], SeenItem[Row]]
"""Returns the item that a name or id means. Raises the error for one that does not exist."""


class Lifecycle(ABC, Generic[Row, Found]):
    """The items of one kind."""

    kind: ClassVar[str]
    """The kind's name in the kinds of errors, in messages and in commands."""
    length_max: ClassVar[int]
    """The most bytes of a name."""
    form: ClassVar[str] = "{}-{}"
    """How a name that is taken becomes another one, of itself and a number."""
    advice: ClassVar[str] = ""
    """What an error about a taken name says behind it."""

    def __init__(
        self,
        metadata: Metadata,
        trash_time: timedelta,
        rows: Rows[Row],
        *scope: sa.ColumnElement[bool],
    ) -> None:
        """`scope` are the conditions for the rows that belong here, such as their repository."""
        self._metadata = metadata
        self._trash_time = trash_time
        self._rows = rows
        self._scope = scope

    @abstractmethod
    def _require(
        self, tx: Transaction, ref: str, *, include_expired: bool = False
    ) -> SeenItem[Row]:
        """Returns the live item that `ref` means; with `include_expired`, one in the trash if there
        is no live one. Raises NotFound, Conflict `ref_ambiguous`."""

    @abstractmethod
    def _require_trashed(self, tx: Transaction, ref: str) -> SeenItem[Row]:
        """Returns the item in the trash that `ref` means. Raises NotFound, Conflict."""

    @abstractmethod
    def _changing(
        self, ref: str, find: Find[Row]
    ) -> AbstractContextManager[tuple[Transaction, SeenItem[Row]]]:
        """A block with a transaction and the item that `find` returns in it. No other transaction
        changes the item, or takes a name of its kind, until the end."""

    @abstractmethod
    def _holder(self, tx: Transaction, place: Place, own_id: str | None) -> str | None:
        """Returns the kind of the live item that has a place, or None. The item `own_id` does not
        count."""

    @abstractmethod
    def _found(self, tx: Transaction, seen: SeenItem[Row]) -> Found:
        """Returns an item as callers get it, with its state."""

    def _changed(self, _tx: Transaction, _row: Row, changed: Row) -> Row:
        """Checks a change of `expires_at`, and returns the row to store. `changed` is the row with
        the new date, and with a free name if it comes back from the trash."""
        return changed

    def get(self, ref: str, *, include_expired: bool = False) -> Found:
        """Returns the live item that `ref` means; with `include_expired`, one in the trash if there
        is no live one.

        Raises NotFound `KIND_not_found`, and Conflict `ref_ambiguous` if several in the trash have
        the name.
        """
        with self._metadata.snapshot() as tx:
            return self._found(tx, self._require(tx, ref, include_expired=include_expired))

    def delete(self, ref: str) -> Found:
        """Moves an item to the trash, with its content. Its name is free at once.

        Its data stays for `trash_time`. Raises NotFound `KIND_not_found`, also if it is in the
        trash already. Raises Conflict `branch_protected` for the default branch.
        """
        with self._changing(ref, self._require) as (tx, seen):
            return self._expire(tx, seen, tx.now())

    def restore(self, ref: str, *, ensure_unique_name: bool = False) -> Found:
        """Restores an item from the trash, with its content, and clears its date of expiry.

        If its name was taken meanwhile, `ensure_unique_name` gives it another name.

        Raises NotFound `KIND_not_found`; Conflict `KIND_exists`, also if the item is not in the
        trash; Conflict `ref_ambiguous`; Conflict `trashed` if its project is in the trash; Gone
        `commit_expired`.
        """
        with self._changing(ref, self._require_trashed) as (tx, seen):
            return self._expire(tx, seen, None, ensure_unique=ensure_unique_name)

    def _page(
        self,
        tx: Transaction,
        *conditions: sa.ColumnElement[bool],
        listed: ListFilter = LIVE,
        prefix: str = "",
        after: tuple[str, str | None],
        amount: int,
        name: sa.ColumnElement[str] | None = None,
    ) -> builtins.list[Row]:
        """Returns a page of the rows, as `Rows.page` does. Raises InvalidInput `invalid_argument`,
        `invalid_date`."""
        check_amount(amount)
        query = self._listed(tx, listed, *conditions)
        return self._rows.all(
            tx, self._rows.page(query, prefix=prefix, after=after, amount=amount, name=name)
        )

    def _listed(
        self, tx: Transaction, listed: ListFilter, *conditions: sa.ColumnElement[bool]
    ) -> Query:
        expires_at = self._rows.table.c.expires_at
        states = listed.conditions(expires_at, now=tx.now(), trash_time=self._trash_time)
        return self._rows.select(*self._scope, *conditions, *states)

    def _expire(
        self,
        tx: Transaction,
        seen: SeenItem[Row],
        expires_at: datetime | None,
        *,
        ensure_unique: bool = False,
    ) -> Found:
        """Sets when an item goes to the trash. One in the trash is restored by None or a later
        date."""
        changed = replace(seen.row, expires_at=expires_at)
        changed = self._placed(tx, seen.row, changed, ensure_unique=ensure_unique)
        changed = self._changed(tx, seen.row, changed)
        self._store(tx, seen.row, changed)
        return self._found(tx, replace(seen, row=changed))

    def _store(self, tx: Transaction, row: Row, changed: Row) -> None:
        """Writes the columns that differ. There are none if the same update comes twice at one
        instant."""
        before = values_of(row)
        values = {name: each for name, each in values_of(changed).items() if each != before[name]}
        if values:
            self._rows.update(tx, self._rows.id_of(row), *self._scope, **values)

    def _placed(self, tx: Transaction, row: Row, changed: Row, *, ensure_unique: bool) -> Row:
        """Returns the changed row with a name that is free there, if the row comes back from the
        trash, or is live and gets another name or place. Raises Conflict `KIND_exists`."""
        stays = not self._is_over(tx, row.expires_at) and self._place(row) == self._place(changed)
        if stays or self._is_over(tx, changed.expires_at):
            return changed
        own_id, place = self._rows.id_of(row), self._place(changed)
        name = self._free_name(tx, place, ensure_unique=ensure_unique, own_id=own_id)
        return replace(changed, name=name)

    def _place(self, row: Row) -> Place:
        """Returns the place of a row."""
        return (row.name,)

    def _free_name(
        self, tx: Transaction, place: Place, *, ensure_unique: bool, own_id: str | None = None
    ) -> str:
        """Returns the name of a place if it is free, or a similar one that is. The item `own_id`
        may have it. Raises Conflict `KIND_exists` if it is taken, unless `ensure_unique`."""
        name: str = place[-1]
        if ensure_unique:
            return free_name(
                name,
                lambda each: self._holder(tx, (*place[:-1], each), own_id),
                form=self.form,
                bytes_max=self.length_max,
            )
        holder = self._holder(tx, place, own_id)
        if holder is not None:
            raise taken(holder, name, self.advice)
        return name

    def _is_over(self, tx: Transaction, ends_at: datetime | None) -> bool:
        return ends_at is not None and ends_at <= tx.now()

    def _state(self, tx: Transaction, seen: SeenItem[Row]) -> LifecycleState:
        return self._state_at(tx, seen.ends_at)

    def _state_at(self, tx: Transaction, ends_at: datetime | None) -> LifecycleState:
        return state_at(ends_at, trash_time=self._trash_time, now=tx.now())


class ByName(Lifecycle[Row, Found]):
    """Items that are named by name or by id. No name looks like an id. Several items in the trash
    can have one name."""

    @abstractmethod
    def _live_named(self, tx: Transaction, name: str) -> Row | None:
        """Returns the live item of this name, or None."""

    @abstractmethod
    def _expired_named(self, tx: Transaction, name: str) -> Sequence[Row]:
        """Returns the items of this name that are not live, and perhaps others, the latest expiry
        first."""

    @abstractmethod
    def missing(self, tx: Transaction, ref: str) -> NotFound:
        """Returns the error for a name or id that no live item has."""

    def set_expiry(
        self, ref: str, expires_at: datetime | None, *, ensure_unique_name: bool = False
    ) -> Found:
        """Sets when an item moves to the trash: None is never, and a past time is now.

        For an item in the trash, None or a future time restores it. Raises as `restore` and
        `delete` do, and InvalidInput `invalid_date`.
        """
        find = partial(self._require, include_expired=True)
        with self._changing(ref, find) as (tx, seen):
            asked = expiry_asked(expires_at, now=tx.now())
            return self._expire(tx, seen, asked, ensure_unique=ensure_unique_name)

    def _require(
        self, tx: Transaction, ref: str, *, include_expired: bool = False
    ) -> SeenItem[Row]:
        row = self._live(tx, ref)
        if row is None and include_expired:
            row = self._recoverable(tx, ref)
        if row is None:
            raise self.missing(tx, ref)
        return SeenItem(row)

    def _require_trashed(self, tx: Transaction, ref: str) -> SeenItem[Row]:
        row = self._recoverable(tx, ref)
        if row is not None:
            return SeenItem(row)
        live = self._live(tx, ref)
        raise self.missing(tx, ref) if live is None else taken(self.kind, live.name)

    def _live(self, tx: Transaction, ref: str) -> Row | None:
        row = self._live_named(tx, ref) or self._rows.by_id(tx, ref, *self._scope)
        return row if row is not None and self._state(tx, SeenItem(row)).is_visible() else None

    def _fitting(self, tx: Transaction, ref: str) -> Sequence[Row]:
        """Returns the item with that id, or all that are not live with that name, and perhaps
        others, the latest expiry first."""
        by_id = self._rows.by_id(tx, ref, *self._scope)
        return self._expired_named(tx, ref) if by_id is None else [by_id]

    def _in_state(
        self, tx: Transaction, rows: Iterable[Row], state: LifecycleState
    ) -> builtins.list[Row]:
        return [row for row in rows if self._state(tx, SeenItem(row)) is state]

    def _recoverable(self, tx: Transaction, ref: str) -> Row | None:
        """Returns the item in the trash with that id or name. Raises Conflict `ref_ambiguous`."""
        found = self._in_state(tx, self._fitting(tx, ref), LifecycleState.TRASHED)
        if len(found) > 1:
            raise ambiguous(self.kind, ref, [self._rows.id_of(row) for row in found])
        return found[0] if found else None


def place_of(after: str) -> tuple[str, str | None]:
    """Returns the place in a list that a text `NAME` or `NAME ID` names."""
    name, _, item_id = after.partition(" ")
    return name, item_id or None


def missing(kind: str, name: str, *, is_trashed: bool = False) -> NotFound:
    """Returns the error for an item that does not exist, or is in the trash."""
    hint = ""
    if is_trashed:
        hint = f": it was deleted or has expired; 'ebbtide {kind} restore' may restore it"
    return NotFound(f"{kind}_not_found", f"there is no {kind} {shown(name)}{hint}")


def ambiguous(kind: str, name: str, ids: Sequence[str]) -> Conflict:
    """Returns the error for a name that several things in the trash have."""
    more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
    return Conflict(
        "ref_ambiguous",
        f"more than one deleted {kind} has the name {shown(name)}: name it by its id, one of (the "
        f"last deleted first) {', '.join(ids[:IDS_SHOWN])}{more}",
        ids=list(ids),
    )


def taken(kind: str, name: str, advice: str = "") -> Conflict:
    """Returns the error for a name that is taken."""
    return Conflict(f"{kind}_exists", f"there is a {kind} {shown(name)} already{advice}")
