"""Projects: create, find, change, delete and restore. lakeFS has no such routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import Body, Query, Response

from ebbtide.server.lifecycle import ExpiredQuery, ListedDep
from ebbtide.server.paging import PagingDep, item_place
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Restoration, Segment, Text, Wire
from ebbtide.server.wire.projects import (
    ProjectAnswer,
    ProjectCreation,
    ProjectList,
    ProjectUpdate,
)
from ebbtide.store.access.keys import Role
from ebbtide.store.collections.projects import Project

routes = Routes("projects")

_PROJECT: Final = "/projects/{project_id:segment}"


@routes.add("POST", "/projects", Role.WRITER, status=201)
def create_project(asked: ProjectCreation, served: ServedDep) -> ProjectAnswer:
    """Creates a project."""
    made = served.repository(asked.repository).projects.create(
        asked.name,
        parent_id=asked.parent_id,
        description=asked.description,
        properties=asked.properties,
        expires_at=asked.expires_at,
        ensure_unique_name=asked.ensure_unique_name,
    )
    return ProjectAnswer.of(made, asked.repository)


@routes.add("GET", "/projects", Role.READER)
def list_projects(
    repository: Annotated[Text, Query()],
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    parent_id: Annotated[Text | None, Query()] = None,
    path: Annotated[Text | None, Query()] = None,
) -> ProjectList:
    """Lists the projects within a parent, or those without a parent, by name; or returns the one
    project at a path."""
    projects = served.repository(repository).projects
    page: Sequence[Project]
    if path is not None:
        page, more = [projects.find(path, include_expired=listed.include_expired)], False
    else:
        page, more = paging.cut(
            projects.page(
                parent_id=parent_id,
                include_expired=listed.include_expired,
                state=listed.state,
                from_date=listed.expires_after,
                to_date=listed.expires_before,
                prefix=paging.prefix,
                after=paging.after_item,
                amount=paging.amount_and_one,
            )
        )
    last = item_place(page[-1].name, page[-1].project_id) if more else None
    return ProjectList(
        pagination=paging.pagination(len(page), last),
        results=[ProjectAnswer.of(project, repository) for project in page],
    )


@routes.add("GET", _PROJECT, Role.READER)
def get_project(
    project_id: Segment, served: ServedDep, include_expired: ExpiredQuery = False
) -> ProjectAnswer:
    """Returns one project."""
    found = served.store.repository_of_project(project_id)
    project = found.projects.get(project_id, include_expired=include_expired)
    return ProjectAnswer.of(project, found.info.name)


@routes.add("PATCH", _PROJECT, Role.WRITER)
def update_project(project_id: Segment, asked: ProjectUpdate, served: ServedDep) -> ProjectAnswer:
    """Changes the given fields. In the trash only `expires_at` can be changed, which restores the
    project."""
    found = served.store.repository_of_project(project_id)
    return ProjectAnswer.of(found.projects.update(project_id, **given_in(asked)), found.info.name)


@routes.add("DELETE", _PROJECT, Role.WRITER, status=204)
def delete_project(project_id: Segment, served: ServedDep) -> Response:
    """Moves a project to the trash, with everything in it."""
    served.store.repository_of_project(project_id).projects.delete(project_id)
    return Response(status_code=204)


@routes.add("POST", _PROJECT + "/restore", Role.WRITER)
def restore_project(
    project_id: Segment,
    served: ServedDep,
    asked: Annotated[Restoration | None, Body()] = None,
) -> ProjectAnswer:
    """Restores a project from the trash, with everything in it."""
    found = served.store.repository_of_project(project_id)
    unique = asked is not None and asked.ensure_unique_name
    project = found.projects.restore(project_id, ensure_unique_name=unique)
    return ProjectAnswer.of(project, found.info.name)


def given_in(asked: Wire) -> dict[str, Any]:  # values of the fields' types
    """Returns the fields that a request for a change contains, by name. Fields that it leaves out
    do not change."""
    return {name: getattr(asked, name) for name in asked.model_fields_set}
