"""Groups: the store's projects as Arvados's clients know them, and what they contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import (
    Condition,
    ConstantField,
    Field,
    OwnerField,
    StoreIdField,
    is_home_name,
)
from ebbtide.doors.arvados.store.listed_collections import CollectionLists, ListedCollection
from ebbtide.doors.arvados.store.lists import (
    ListPage,
    ListQuery,
    Source,
    merged_page,
    projects_below,
    visible,
)
from ebbtide.doors.arvados.store.owners import Owners
from ebbtide.doors.arvados.store.trashable import (
    Present,
    Timers,
    Trashable,
    shared_columns,
    shared_values,
)
from ebbtide.doors.arvados.store.uuids import GROUP, uuid_of
from ebbtide.store.collections.items import KEEP, Keep
from ebbtide.store.collections.projects import Project, Projects
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import collections, projects

PROJECT: Final = "project"
NAME: Final = "groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Trashable):
    """A project as Arvados's clients know it."""

    group_class: str = PROJECT


class Groups:
    """The groups of one repository. All have the class `project`."""

    def __init__(self, context: RepositoryContext, owned: Projects, owners: Owners) -> None:
        self._context = context
        self._projects = owned
        self._owners = owners

    def create(
        self,
        owner_uuid: str,
        name: str,
        *,
        description: str = "",
        properties: Mapping[str, Any] | None = None,
        timers: Timers,
        ensure_unique_name: bool = False,
    ) -> Group:
        """Makes a project in a project, or in the home of a user, which is made if it is missing.

        Raises as `Projects.create` and `Timers.expires_at` do.
        """
        with self._context.metadata.snapshot() as tx:
            now = tx.now()
        expires_at = timers.expires_at(present=None, now=now, trash_time=self._context.trash_time)
        made = self._projects.create(
            name,
            parent_id=self._owners.project_id(owner_uuid, is_made=True),
            description=description,
            properties=properties,
            expires_at=None if expires_at is KEEP else expires_at,
            ensure_unique_name=ensure_unique_name,
        )
        return self._group(made)

    def get(self, uuid: str, *, include_trash: bool = False) -> Group:
        """Returns a group. Raises NotFound `project_not_found`."""
        project_id = self._owners.group_id(uuid)
        return self._group(self._projects.get(project_id, include_expired=include_trash))

    def update(
        self,
        uuid: str,
        *,
        owner_uuid: str | Keep = KEEP,
        name: str | Keep = KEEP,
        description: str | Keep = KEEP,
        properties: Mapping[str, Any] | Keep = KEEP,
        timers: Timers,
        ensure_unique_name: bool = False,
    ) -> Group:
        """Changes the fields that are given. Raises as `Projects.update` and `Timers.expires_at`
        do."""
        project_id = self._owners.group_id(uuid)
        present = self._projects.get(project_id, include_expired=True)
        with self._context.metadata.snapshot() as tx:
            now = tx.now()
        parent_id: str | Keep | None = KEEP
        if owner_uuid is not KEEP:
            parent_id = self._owners.project_id(owner_uuid, is_made=True)
        changed = self._projects.update(
            project_id,
            name=name,
            description=description,
            properties=properties,
            parent_id=parent_id,
            expires_at=timers.expires_at(
                present=present.expires_at, now=now, trash_time=self._context.trash_time
            ),
            ensure_unique_name=ensure_unique_name,
        )
        return self._group(changed)

    def trash(self, uuid: str) -> Group:
        """Moves a group to the trash, with everything in it. Raises NotFound
        `project_not_found`, also if it is in the trash already."""
        return self._group(self._projects.delete(self._owners.group_id(uuid)))

    def untrash(self, uuid: str, *, ensure_unique_name: bool = False) -> Group:
        """Restores a group from the trash, with everything in it. Raises as `Projects.restore`
        does."""
        project_id = self._owners.group_id(uuid)
        restored = self._projects.restore(project_id, ensure_unique_name=ensure_unique_name)
        return self._group(restored)

    def list(self, asked: ListQuery) -> ListPage[Group]:
        """Returns a page of the groups. Raises InvalidInput `invalid_argument`."""
        with self._context.metadata.snapshot() as tx:
            return self.source(tx, include_trash=asked.include_trash).page(tx, asked)

    def source(self, tx: Transaction, *, include_trash: bool) -> Source[Group]:
        """Returns the groups of the repository as a list of their own, or a part of one."""
        context, cluster = self._context, self._owners.cluster
        present = Present(tx.now(), context.trash_time)
        horizon = present.now - context.trash_time if include_trash else present.now
        parent = projects.alias("parent")
        row = projects.c
        is_home = sa.and_(row.parent_id.is_(None), is_home_name(cluster))
        query = (
            sa.select(*row, parent.c.name.label("parent_name"), parent.c.parent_id.label("above"))
            .select_from(projects.outerjoin(parent, parent.c.project_id == row.parent_id))
            .where(
                row.repository_id == context.repository_id,
                sa.not_(is_home),
                *visible(
                    context.repository_id,
                    horizon,
                    expires_at=row.expires_at,
                    parent_id=row.parent_id,
                ),
            )
        )
        fields: dict[str, Field] = {
            "uuid": StoreIdField(row.project_id, cluster, GROUP),
            "owner_uuid": OwnerField(row.parent_id, cluster, context.repository_id),
            "group_class": ConstantField(PROJECT),
            **shared_columns(row, present),
        }
        return Source(NAME, fields, query, lambda each: self._item(each, present))

    def _item(self, row: Any, present: Present) -> Group:  # a row of the query in `source`
        return Group(
            uuid=uuid_of(self._owners.cluster, GROUP, row.project_id),
            owner_uuid=self._owners.uuid_of_parent(row.parent_id, row.parent_name, row.above),
            **shared_values(row, present),
        )

    def _group(self, project: Project) -> Group:
        with self._context.metadata.snapshot() as tx:
            present = Present(tx.now(), self._context.trash_time)
            owner_uuid = self._owners.owner_in(tx, project.parent_id)
        return Group(
            uuid=uuid_of(self._owners.cluster, GROUP, project.project_id),
            owner_uuid=owner_uuid,
            **shared_values(project, present),
        )


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
