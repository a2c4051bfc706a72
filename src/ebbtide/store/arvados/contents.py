"""What projects contain: projects and collections in one list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from ebbtide.store.arvados.fields import Condition
from ebbtide.store.arvados.groups import Group, Groups
from ebbtide.store.arvados.listed_collections import CollectionLists, ListedCollection
from ebbtide.store.arvados.listing import ListPage, ListQuery, Source, merged_page, projects_below
from ebbtide.store.arvados.owners import Owners
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import collections, projects

Content = Group | ListedCollection


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsPlace:
    """Whose contents are listed: those of `owner_uuid`, or of all owners but `except_of`. With
    `is_recursive`, also the contents of projects in a project."""

    owner_uuid: str | None = None
    is_recursive: bool = False
    except_of: str | None = None


class ProjectContents:
    """The contents of one repository's projects."""

    def __init__(
        self,
        context: RepositoryContext,
        groups: Groups,
        lists: CollectionLists,
        owners: Owners,
    ) -> None:
        self._context = context
        self._groups = groups
        self._lists = lists
        self._owners = owners

    def list(self, asked: ListQuery, place: ContentsPlace) -> ListPage[Content]:
        """Returns a page of the contents. A user without a home has none.

        Raises InvalidInput `invalid_argument`, NotFound `project_not_found`.
        """
        with self._context.metadata.snapshot() as tx:
            groups = self._groups.source(tx, include_trash=asked.include_trash)
            lists = self._lists.source(tx, include_trash=asked.include_trash)
            groups = _limited(groups, self._within(tx, place, projects.c.parent_id))
            lists = _limited(lists, self._within(tx, place, collections.c.project_id))
            return merged_page(tx, (groups, lists), asked)

    def shared(self, asked: ListQuery, *, except_of: str) -> ListPage[Group]:
        """Returns a page of the projects that are in no other project, and not in a user's home.

        Raises InvalidInput `invalid_argument`.
        """
        with self._context.metadata.snapshot() as tx:
            groups = self._groups.source(tx, include_trash=asked.include_trash)
            parent_id = projects.c.parent_id
            others = self._owners.homes().where(projects.c.name != except_of)
            is_shared = sa.or_(parent_id.is_(None), parent_id.in_(others))
            return _limited(groups, is_shared).page(tx, asked)

    def _within(
        self, tx: Transaction, place: ContentsPlace, column: sa.ColumnElement[Any]
    ) -> Condition:
        """Returns the condition that the project of a column is in a place."""
        if place.owner_uuid is None:
            if place.except_of is None:
                return sa.true()
            home_id = self._owners.home_in(tx, place.except_of)
            return sa.or_(column.is_(None), column != home_id) if home_id else sa.true()
        if place.owner_uuid == self._owners.root:
            return sa.true() if place.is_recursive else column.is_(None)
        project_id = self._owners.found_in(tx, place.owner_uuid)
        if project_id is None:
            return sa.false()
        return (
            column.in_(projects_below([project_id]))
            if place.is_recursive
            else (column == project_id)
        )


def _limited(source: Source[Any], condition: Condition) -> Source[Any]:
    return replace(source, query=source.query.where(condition))
