"""Owners: Arvados's users and projects as the projects of the store.

A user's home is the project at the top whose name is the user's id. Other projects at the top
belong to the root user.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ebbtide.doors.arvados.store.fields import homes, is_home_name
from ebbtide.doors.arvados.store.uuids import (
    GROUP,
    USER,
    UUID_LENGTH,
    cluster_of,
    first_id,
    home_prefix,
    kind_of,
    root_uuid,
    uuid_of,
)
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.store.collections.projects import Projects
from ebbtide.store.collections.queries import (
    ProjectRow,
    lineage_of,
    project_from,
    projects_named,
)
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.text import shown


class Owners:
    """The owners of one repository's projects and collections."""

    def __init__(self, context: RepositoryContext, projects: Projects) -> None:
        self._context = context
        self._projects = projects
        self.cluster = cluster_of(context.repository_id)

    @property
    def root(self) -> str:
        """The id of the root user."""
        return root_uuid(self.cluster)

    def owner_uuid(self, parent: ProjectRow | None) -> str:
        """Returns the id of the owner of what is in a project, or in none."""
        if parent is None:
            return self.root
        return self.uuid_of_parent(parent.project_id, parent.name, parent.parent_id)

    def uuid_of_parent(self, project_id: str | None, name: str | None, above_id: str | None) -> str:
        """Returns the owner of what is in a project of this name, whose parent is `above_id`; or in
        no project, if `project_id` is None."""
        if project_id is None or name is None:
            return self.root
        if self.is_home(above_id, name):
            return name
        return uuid_of(self.cluster, GROUP, project_id)

    def owner_in(self, tx: Transaction, project_id: str | None) -> str:
        """Returns the owner of what is in a project, or in none."""
        if project_id is None:
            return self.root
        return self.owner_uuid(lineage_of(tx, project_id)[0])

    def is_home(self, parent_id: str | None, name: str) -> bool:
        """Whether a project in this parent with this name is the home of a user."""
        is_id = name.startswith(home_prefix(self.cluster)) and len(name) == UUID_LENGTH
        return parent_id is None and is_id

    def project_id(self, owner_uuid: str, *, is_made: bool = False) -> str | None:
        """Returns the id of the project of an owner; None for the root user.

        With `is_made`, a home that does not exist is made. Raises NotFound `project_not_found`,
        also for such a home otherwise; InvalidInput `invalid_argument` if the id is neither a
        user's nor a project's.
        """
        if owner_uuid == self.root:
            return None
        with self._context.metadata.snapshot() as tx:
            found = self.found_in(tx, owner_uuid)
        if found is not None:
            return found
        if not is_made:
            raise _not_found(owner_uuid)
        return self._make_home(owner_uuid)

    def found_in(self, tx: Transaction, owner_uuid: str) -> str | None:
        """Returns the id of the project of an owner who is not the root user; None for a user
        without a home. Raises as `project_id` does."""
        if self.is_home(None, owner_uuid):
            return self.home_in(tx, owner_uuid)
        if kind_of(owner_uuid) not in (GROUP, USER):
            raise InvalidInput(
                "invalid_argument", f"{shown(owner_uuid)} is no id of a user or a project"
            )
        return self._group_in(tx, owner_uuid)

    def group_id(self, uuid: str) -> str:
        """Returns the store's id of a project in any state. Raises NotFound `project_not_found`."""
        with self._context.metadata.snapshot() as tx:
            return self._group_in(tx, uuid)

    def _group_in(self, tx: Transaction, uuid: str) -> str:
        if kind_of(uuid) != GROUP:
            raise _not_found(uuid)
        begin = first_id(self.cluster, GROUP, lambda each: each < uuid)
        row = project_from(tx, self._context.repository_id, begin)
        if row is None or uuid_of(self.cluster, GROUP, row.project_id) != uuid:
            raise _not_found(uuid)
        if self.is_home(row.parent_id, row.name):
            raise _not_found(uuid)
        return row.project_id

    def homes(self) -> sa.Select[Any]:
        """Returns the query for the ids of all home projects."""
        return homes(self._context.repository_id).where(is_home_name(self.cluster))

    def home_in(self, tx: Transaction, user_uuid: str) -> str | None:
        """Returns the id of a user's live home project, or None."""
        now = tx.now()
        for row in projects_named(tx, self._context.repository_id, None, user_uuid):
            if row.expires_at is None or row.expires_at > now:
                return row.project_id
        return None

    def _make_home(self, user_uuid: str) -> str:
        with self._context.changing("exclusive") as tx:
            # Another request can have made it since.
            home_id = self.home_in(tx, user_uuid)
            if home_id is None:
                home_id = self._projects.create_in(
                    tx, user_uuid, description="the home project of a user of Arvados's clients"
                ).project_id
        return home_id


def _not_found(uuid: str) -> NotFound:
    return NotFound("project_not_found", f"there is no project {shown(uuid)}")
