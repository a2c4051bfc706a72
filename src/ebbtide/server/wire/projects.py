"""Projects."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ebbtide.server.wire.base import Instant, Pagination, Text, Wire
from ebbtide.store.projects import Project

Properties = dict[Text, Any]
"""JSON: what users attach, as they like it."""


class ProjectCreation(Wire):
    """A project in a repository, or in another project of it."""

    repository: Text
    name: Text
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class ProjectUpdate(Wire):
    """What to change: what is left out stays as it is. A `parent_id` of null is none, an
    `expires_at` of null never."""

    name: Text = ""
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class ProjectAnswer(Wire):
    """A project. `state` goes by `ends_at`: the first of its own `expires_at` and those of the
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
        """As it is now; `repository` is the name."""
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
    """Projects, by name and id."""

    pagination: Pagination
    results: list[ProjectAnswer]
