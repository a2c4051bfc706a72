"""Projects: requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ebbtide.server.wire.base import Instant, Pagination, Text, Wire
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
