"""Pages of Arvados's lists: filtered, sorted and counted by the database.

What is in a trashed project is hidden with it, although its own dates do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import Condition, Field
from ebbtide.doors.arvados.store.filters import Filter, Ordering, of_resource
from ebbtide.errors import InvalidInput
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import projects
from ebbtide.text import shown

DEFAULT_ORDER: Final = (
    Ordering("modified_at", is_descending=True),
    Ordering("uuid", is_descending=True),
)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What a list is asked for. Without `is_counted` the matching items are not counted. With
    `distinct_by`, only one is listed of all items that are equal in these fields."""

    filters: tuple[Filter, ...] = ()
    order: tuple[Ordering, ...] = ()
    limit: int = 100
    offset: int = 0
    is_counted: bool = True
    include_trash: bool = False
    distinct_by: tuple[str, ...] | None = None

    @property
    def full_order(self) -> tuple[Ordering, ...]:
        """The order, made total by the ids. In a distinct list, only its own fields give an
        order."""
        order = self.order or DEFAULT_ORDER
        if self.distinct_by is not None:
            names = {*self.distinct_by} - {"uuid"}
            order = tuple(each for each in order if each.field.rpartition(".")[2] in names)
            return (*order, Ordering("uuid"))
        if any(each.field == "uuid" for each in order):
            return order
        return (*order, Ordering("uuid", is_descending=order[-1].is_descending))


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Item]):
    """Some items of a list. `available` is the number of all; None if it was not asked for."""

    items: list[Item]
    available: int | None


@dataclass(frozen=True, slots=True)
class Source(Generic[Item]):
    """One kind of items: its name as a prefix of fields, its fields, the query for its rows, and
    the function that makes an item of a row."""

    name: str
    fields: Mapping[str, Field]
    query: sa.Select[Any]
    item: Callable[[Any], Item]

    def has(self, name: str) -> bool:
        """Whether the items have a field of this name."""
        return name in self.fields

    def page(self, tx: Transaction, asked: ListQuery) -> ListPage[Item]:
        """Returns a page. Raises InvalidInput `invalid_argument`."""
        query = self.query.where(
            *(
                self._field(each.field).condition(each)
                for each in of_resource(asked.filters, self.name, (self.name,))
            )
        )
        orders = [self._order(each) for each in asked.full_order]
        if asked.distinct_by is not None:
            query = self._distinct(query, asked.distinct_by)
        available = None
        if asked.is_counted:
            counted = sa.select(sa.func.count()).select_from(query.order_by(None).subquery())
            available = tx.execute(counted).scalar_one()
        rows = tx.execute(query.order_by(*orders).limit(asked.limit).offset(asked.offset))
        return ListPage([self.item(row) for row in rows], available)

    def _distinct(self, query: sa.Select[Any], names: tuple[str, ...]) -> sa.Select[Any]:
        """Returns the query with the first item, by its id, of those that are equal in the named
        fields. Raises InvalidInput `invalid_argument`."""
        keys = [self._field(name).key() for name in names]
        uuid = self._field("uuid").key()
        rank = sa.func.row_number().over(partition_by=keys or None, order_by=uuid)
        ranked = query.add_columns(uuid.label("item_id"), rank.label("item_rank")).subquery()
        first = sa.select(ranked.c.item_id).where(ranked.c.item_rank == 1)
        return query.where(uuid.in_(first))

    def _field(self, name: str) -> Field:
        if name not in self.fields:
            raise InvalidInput("invalid_argument", f"{self.name} have no field {shown(name)}")
        return self.fields[name]

    def _order(self, asked: Ordering) -> sa.ColumnElement[Any]:
        name = asked.field.removeprefix(f"{self.name}.")
        found = self._field(name).order()
        if found is None:
            raise InvalidInput("invalid_argument", f"{self.name} cannot be sorted by {shown(name)}")
        # Never is later than every instant.
        return found.desc().nulls_first() if asked.is_descending else found.asc().nulls_last()


def merged_page(
    tx: Transaction, sources: Sequence[Source[Any]], asked: ListQuery
) -> ListPage[Any]:  # items of several kinds
    """Returns a page of a list of several kinds, in one order.

    A filter or an order of one kind, such as `groups.name`, does not concern the others. If a kind
    lacks a field of a filter, no item of this kind is in the list. Raises InvalidInput
    `invalid_argument`.
    """
    names = tuple(source.name for source in sources)
    order = tuple(replace(each, field=each.field.rpartition(".")[2]) for each in asked.full_order)
    each_page = replace(asked, limit=asked.limit + asked.offset, offset=0, order=order)
    items: list[Any] = []
    available = 0
    for name in {each.field for each in asked.filters}:
        prefix, dot, field = name.rpartition(".")
        if not any(source.has(field) and (not dot or prefix == source.name) for source in sources):
            raise InvalidInput("invalid_argument", f"no field is called {shown(name)}")
    by = asked.distinct_by
    for name in by or ():
        if not any(source.has(name) for source in sources):
            raise InvalidInput("invalid_argument", f"no field is called {shown(name)}")
    for source in sources:
        filters = of_resource(asked.filters, source.name, names)
        if all(source.has(each.field) for each in filters):
            mine = None if by is None else tuple(filter(source.has, by))
            page = source.page(tx, replace(each_page, filters=filters, distinct_by=mine))
            items += page.items
            available += page.available or 0
    # The last field is sorted by first: sorting keeps the order of equal items.
    for ordering in reversed(order):
        items.sort(key=_key_of(ordering.field), reverse=ordering.is_descending)
    return ListPage(
        items[asked.offset : asked.offset + asked.limit], available if asked.is_counted else None
    )


def _key_of(field: str) -> Callable[[Any], tuple[bool, Any]]:
    def key(item: Any) -> tuple[bool, Any]:
        value = getattr(item, field)
        return value is None, 0 if value is None else value

    return key


def hidden_projects(repository_id: str, horizon: datetime) -> sa.Select[Any]:
    """Returns the query for the ids of the projects that expired at `horizon` or before it, and of
    all projects in these."""
    start = (
        sa.select(projects.c.project_id)
        .where(projects.c.repository_id == repository_id, projects.c.expires_at <= horizon)
        .cte("hidden", recursive=True)
    )
    below = projects.alias("below")
    inner = sa.select(below.c.project_id).where(below.c.parent_id == start.c.project_id)
    return sa.select(start.union(inner).c.project_id)


def projects_below(project_ids: Iterable[str]) -> sa.Select[Any]:
    """Returns the query for the ids of projects and of all projects in these."""
    start = (
        sa.select(projects.c.project_id)
        .where(projects.c.project_id.in_(list(project_ids)))
        .cte("above", recursive=True)
    )
    below = projects.alias("inner")
    inner = sa.select(below.c.project_id).where(below.c.parent_id == start.c.project_id)
    return sa.select(start.union(inner).c.project_id)


def visible(
    repository_id: str,
    horizon: datetime,
    *,
    expires_at: sa.ColumnElement[Any],
    parent_id: sa.ColumnElement[Any],
) -> tuple[Condition, ...]:
    """Returns the conditions that an item, and the projects above it, end after `horizon`."""
    return (
        sa.or_(expires_at.is_(None), expires_at > horizon),
        sa.or_(parent_id.is_(None), parent_id.not_in(hidden_projects(repository_id, horizon))),
    )
