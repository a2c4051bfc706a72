"""Queries: projects, which contain collections and other projects.

An item in a project ends at the earliest date of the item and the projects above it. `lineage_of`
returns these projects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.database.conditions import begins_with
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.expiries import StateFilter
from ebbtide.store.database.schema import projects

DEPTH_MAX: Final = 64
"""The maximal depth of nested projects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """One project as it is stored. `parent_id` is None for a project at the top."""

    project_id: str
    repository_id: str
    parent_id: str | None
    name: str
    description: str
    properties: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None


_COLUMNS: Final = tuple(projects.c[name] for name in ProjectRow.__dataclass_fields__)


def _lineage() -> sa.Select[Any]:
    start = (
        sa.select(*_COLUMNS, sa.literal(0).label("depth"))
        .where(projects.c.project_id == sa.bindparam("project_id"))
        .cte("lineage", recursive=True)
    )
    above = sa.select(*_COLUMNS, (start.c.depth + 1).label("depth")).where(
        projects.c.project_id == start.c.parent_id,
        # A project cannot be moved below itself. The limit is for a damaged table, which must not
        # hang a server.
        start.c.depth < 2 * DEPTH_MAX,
    )
    lineage = start.union_all(above)
    names = tuple(ProjectRow.__dataclass_fields__)
    return sa.select(*(lineage.c[name] for name in names)).order_by(lineage.c.depth)


_LINEAGE: Final = _lineage()


def lineage_of(tx: Transaction, project_id: str) -> list[ProjectRow]:
    """Returns the project and all projects above it, the innermost first. The list is empty if
    there is no such project."""
    return [_row(row) for row in tx.execute(_LINEAGE, {"project_id": project_id})]


def projects_named(
    tx: Transaction, repository_id: str, parent_id: str | None, name: str
) -> list[ProjectRow]:
    """Returns all projects of this name in one parent, also trashed and gone ones."""
    return [
        _row(row)
        for row in tx.execute(
            sa.select(*_COLUMNS)
            .where(
                projects.c.repository_id == repository_id,
                _in_parent(parent_id),
                projects.c.name == name,
            )
            .order_by(projects.c.project_id)
        )
    ]


def project_from(tx: Transaction, repository_id: str, project_id: str) -> ProjectRow | None:
    """Returns the first project of the repository, by id, whose id is at or after `project_id`."""
    row = tx.execute(
        sa.select(*_COLUMNS)
        .where(projects.c.project_id >= project_id, projects.c.repository_id == repository_id)
        .order_by(projects.c.project_id)
        .limit(1)
    ).one_or_none()
    return None if row is None else _row(row)


def page_of_projects(
    tx: Transaction,
    repository_id: str,
    *,
    parent_id: str | None,
    states: StateFilter,
    prefix: str = "",
    after: tuple[str, str] = ("", ""),
    amount: int,
) -> list[ProjectRow]:
    """Returns at most `amount` projects of one parent, sorted by name and id.

    Their names begin with `prefix`. They sort after `after`, a pair of name and id.
    """
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(
            projects.c.repository_id == repository_id,
            _in_parent(parent_id),
            sa.tuple_(projects.c.name, projects.c.project_id) > sa.tuple_(*after),
            *begins_with(projects.c.name, prefix),
            *states.conditions(projects.c.expires_at),
        )
        .order_by(projects.c.name, projects.c.project_id)
        .limit(amount)
    )
    return [_row(row) for row in rows]


def projects_in_states(
    tx: Transaction,
    repository_id: str,
    *,
    states: StateFilter,
    after: tuple[str, str] = ("", ""),
    amount: int,
) -> list[ProjectRow]:
    """Returns at most `amount` projects of a repository in `states`, sorted by name and id.

    The projects can have any depth. They sort after `after`, a pair of name and id.
    """
    key = projects.c.project_id
    rows = tx.execute(states.page(key, _COLUMNS, repository_id, after=after, amount=amount))
    return [_row(row) for row in rows]


@dataclass(frozen=True, slots=True)
class ProjectLink:
    """The columns of a project that decide its path and its end."""

    parent_id: str | None
    name: str
    expires_at: datetime | None


def read_project_tree(tx: Transaction, repository_id: str) -> dict[str, ProjectLink]:
    """Returns every project of a repository, in any state, by id."""
    rows = tx.execute(
        sa.select(
            projects.c.project_id, projects.c.parent_id, projects.c.name, projects.c.expires_at
        ).where(projects.c.repository_id == repository_id)
    )
    return {row.project_id: ProjectLink(row.parent_id, row.name, row.expires_at) for row in rows}


def insert_project(tx: Transaction, row: ProjectRow) -> None:
    """Records a project."""
    values = {name: getattr(row, name) for name in ProjectRow.__dataclass_fields__}
    tx.execute(sa.insert(projects).values(**values | {"properties": dict(row.properties)}))


def update_project(
    tx: Transaction,
    project_id: str,
    **values: Any,  # column name to new value
) -> None:
    """Changes columns of a project."""
    tx.execute(sa.update(projects).where(projects.c.project_id == project_id).values(**values))


def delete_projects(tx: Transaction, project_ids: list[str]) -> None:
    """Deletes projects. Projects below them must be deleted in the same call, or before it."""
    tx.execute(sa.delete(projects).where(projects.c.project_id.in_(project_ids)))


def _in_parent(parent_id: str | None) -> sa.ColumnElement[bool]:
    if parent_id is None:
        return projects.c.parent_id.is_(None)
    return projects.c.parent_id == parent_id


def _row(row: Any) -> ProjectRow:  # a row with _COLUMNS
    return ProjectRow(**row._mapping)
