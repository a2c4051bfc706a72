"""Repositories: requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from ebbtide.server.wire.base import Instant, Pagination, Text, Wire, seconds_of
from ebbtide.store.repositories.catalog import Catalogued


class RepositoryCreation(Wire):
    """A new repository. `storage_namespace` is a URL, or `local://NAME` for a place below the
    store's storage."""

    name: Text
    storage_namespace: Annotated[Text, Field(min_length=1)]
    default_branch: Text | None = None
    sample_data: bool = False
    read_only: bool = False
    expires_at: Instant | None = None


class RepositoryAnswer(Wire):
    """A repository. `id` is its name, as lakeFS clients call it; `repository_id` is its id."""

    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    storage_id: str = ""
    read_only: bool = False
    repository_id: str
    state: str
    expires_at: datetime | None = None

    @classmethod
    def of(cls, found: Catalogued) -> RepositoryAnswer:
        """Makes the answer for a repository."""
        info = found.info
        return cls(
            id=info.name,
            creation_date=seconds_of(info.created_at),
            default_branch=info.default_branch,
            storage_namespace=info.storage_url,
            repository_id=info.repository_id,
            state=found.state.value,
            expires_at=info.expires_at,
        )


class RepositoryList(Wire):
    """Repositories, sorted by name."""

    pagination: Pagination
    results: list[RepositoryAnswer]
