"""Rows of tables as objects, and parts of statements that queries share: pages, batches, prefixes.

Not for: the statements of one table, which are in `…_rows` of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import sqlalchemy as sa

from ebbtide.store.database.engine import LockMode, Transaction

VALUES_PER_STATEMENT: Final = 500


class HasFields(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Row = TypeVar("Row", bound=HasFields)
Query = sa.Select[Any]  # rows with the columns of one dataclass


class Rows(Generic[Row]):
    """The rows of a table as objects of the dataclass `row`. Each of its fields is a column of the
    table, with that name; columns without a field are not read. `key` is the column with the id of
    a row."""

    def __init__(self, table: sa.Table, row: type[Row], key: sa.Column[str]) -> None:
        self.table = table
        self.key = key
        self.columns = tuple(table.c[field.name] for field in fields(row))
        self.row = row

    def select(self, *conditions: sa.ColumnElement[bool]) -> Query:
        """Returns the query for the rows that meet all conditions."""
        return sa.select(*self.columns).where(*conditions)

    def of(self, values: Iterable[Any]) -> Row:  # of any column's type
        """Returns the row with these values of `columns`."""
        return self.row(**dict(zip(self.row.__dataclass_fields__, values, strict=True)))

    def one(
        self,
        tx: Transaction,
        query: Query,
        values: Mapping[str, Any] | None = None,  # of parameters
    ) -> Row | None:
        """Returns the only row of a query, or None if there is none."""
        found = tx.execute(query, values).one_or_none()
        return None if found is None else self.row(**found._mapping)

    def all(
        self,
        tx: Transaction,
        query: Query,
        values: Mapping[str, Any] | None = None,  # of parameters
    ) -> list[Row]:
        """Returns the rows of a query."""
        return list(self.each(tx, query, values))

    def each(
        self,
        tx: Transaction,
        query: Query,
        values: Mapping[str, Any] | None = None,  # of parameters
    ) -> Iterator[Row]:
        """Yields the rows of a query."""
        return (self.row(**found._mapping) for found in tx.execute(query, values))

    def id_of(self, row: Row) -> str:
        """Returns the id of a row."""
        found: str = getattr(row, self.key.name)
        return found

    def by_id(
        self,
        tx: Transaction,
        row_id: str,
        *scope: sa.ColumnElement[bool],
        lock: LockMode | None = None,
    ) -> Row | None:
        """Returns the row with this id that meets all conditions, or None. With `lock`, it is
        locked until the end of the transaction."""
        return self.one(tx, locked(self.select(*scope, self.key == row_id), lock))

    def insert(self, tx: Transaction, row: Row, **more: Any) -> None:  # more columns
        """Records a row."""
        tx.execute(sa.insert(self.table).values(**values_of(row), **more))

    def update(
        self,
        tx: Transaction,
        row_id: str,
        *scope: sa.ColumnElement[bool],
        **values: Any,  # values of the columns' types
    ) -> None:
        """Changes columns of the row with this id, if it meets all conditions."""
        tx.execute(sa.update(self.table).where(*scope, self.key == row_id).values(**values))

    def page(
        self,
        query: Query,
        *,
        prefix: str = "",
        after: tuple[str, str | None] = ("", None),
        amount: int,
        name: sa.ColumnElement[str] | None = None,
    ) -> Query:
        """Returns the query for at most `amount` of its rows, sorted by name and id.

        Their names begin with `prefix`. They sort behind `after`, a name and an id; without an id,
        behind all rows of that name. `name` is the column `name`, in another collation.
        """
        name = self.table.c.name if name is None else name
        after_name, after_id = after
        behind = name > after_name
        if after_id is not None:
            behind = sa.tuple_(name, self.key) > sa.tuple_(after_name, after_id)
        query = query.where(behind, *begins_with(name, prefix))
        return query.order_by(name, self.key).limit(amount)


def values_of(row: HasFields) -> dict[str, Any]:
    """Returns the fields of a row by their names. JSON objects are dictionaries, which the database
    can store."""
    values = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }


def locked(query: Query, mode: LockMode | None) -> Query:
    """Returns the query with a lock of its rows. An exclusive lock lets others refer to the row."""
    if mode is None:
        return query
    return query.with_for_update(read=mode == "share", key_share=mode == "exclusive")


def in_batches(values: Iterable[str]) -> Iterator[list[str]]:
    """Yields the values in their order, in batches of at most VALUES_PER_STATEMENT."""
    remaining = iter(values)
    while batch := list(islice(remaining, VALUES_PER_STATEMENT)):
        yield batch


def begins_with(column: sa.ColumnElement[str], prefix: str) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions for a prefix, as a range. LIKE ignores case on SQLite, and uses no
    index there."""
    if not prefix:
        return []
    conditions: list[sa.ColumnElement[bool]] = [column >= prefix]
    end = behind(prefix)
    return conditions if end is None else [*conditions, column < end]


def behind(prefix: str) -> str | None:
    """Returns the first text that sorts after all texts with the prefix, or None if there is
    none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    code = ord(kept[-1]) + 1
    # Surrogates are no characters: a database does not accept them.
    return kept[:-1] + chr(0xE000 if code == 0xD800 else code)
