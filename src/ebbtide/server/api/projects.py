"""Projects: create, find, change, delete and restore. lakeFS has no such routes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Body, Query, Response
from pydantic import Field

from ebbtide.server.api.base import Instant, Pagination, Restoration, Segment, Text, Wire
from ebbtide.server.api.lifecycle import ExpiredQuery, ListedDep
from ebbtide.server.api.paging import PagingDep, item_place
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.projects import Project

Properties = dict[Text, Any]
"""JSON values that users attach freely."""


class ProjectCreation(Wire):
    """A new project in a repository, or within another project."""

    repository: Text
    name: Text
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class ProjectUpdate(Wire):
    """A change of a project. A field that is left out stays as it is. A `parent_id` of null means
    no parent, an `expires_at` of null means never."""

    name: Text = ""
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class ProjectAnswer(Wire):
    """A project. `state` depends on `ends_at`: the earliest `expires_at` of the project and of the
    projects above it."""

    id: str
    repository: str
    parent_id: str | None = None
    name: str
    path: str
    description: str
    properties: dict[str, Any]
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None = None
    ends_at: datetime | None = None
    state: str

    @classmethod
    def of(cls, project: Project, repository: str) -> ProjectAnswer:
        """Makes the answer for a project; `repository` is the name of its repository."""
        return cls(
            id=project.project_id,
            repository=repository,
            parent_id=project.parent_id,
            name=project.name,
            path=project.path,
            description=project.description,
            properties=dict(project.properties),
            created_at=project.created_at,
            modified_at=project.modified_at,
            expires_at=project.expires_at,
            ends_at=project.ends_at,
            state=project.state.value,
        )


class ProjectList(Wire):
    """Projects, sorted by name and id."""

    pagination: Pagination
    results: list[ProjectAnswer]


routes = Routes("projects")

_PROJECT: Final = "/projects/{project_id:segment}"


@routes.add("POST", "/projects", Role.WRITER, status=201, anywhere=True)
def create_project(asked: ProjectCreation, served: ServedDep) -> ProjectAnswer:
    """Creates a project."""
    served.rights.require(Role.WRITER, {"repository": asked.repository})
    made = served.repository(asked.repository).projects.create(
        asked.name,
        parent_id=asked.parent_id,
        description=asked.description,
        properties=asked.properties,
        expires_at=asked.expires_at,
        ensure_unique_name=asked.ensure_unique_name,
    )
    return ProjectAnswer.of(made, asked.repository)


@routes.add("GET", "/projects", Role.READER, anywhere=True)
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
    served.rights.require(Role.READER, {"repository": repository})
    projects = served.repository(repository).projects
    page: Sequence[Project]
    if path is not None:
        page, more = [projects.find(path, include_expired=listed.include_expired)], False
    else:
        page, more = paging.cut(
            projects.page(
                parent_id=parent_id,
                listed=listed,
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
    """Changes the given fields. If the project is in the trash, only `expires_at` can be changed,
    which restores the project."""
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


def given_in(asked: Wire) -> dict[str, Any]:  # each value has the type of its field
    """Returns the fields that a request for a change contains, by name. Fields that it leaves out
    do not change."""
    return {name: getattr(asked, name) for name in asked.model_fields_set}
