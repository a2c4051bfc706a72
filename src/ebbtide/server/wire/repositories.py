"""Repositories."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ebbtide.server.wire.base import Pagination, Text, Wire, seconds_of
from ebbtide.store.metadata.repositories import RepositoryInfo


class RepositoryCreation(Wire):
    """`storage_namespace` is a URL, or `local://NAME` for a place below the store's storage."""

    name: Text
    storage_namespace: Annotated[Text, Field(min_length=1)]
    default_branch: Text | None = None
    sample_data: bool = False
    read_only: bool = False


class RepositoryAnswer(Wire):
    """A repository."""

    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    storage_id: str = ""
    read_only: bool = False

    @classmethod
    def of(cls, info: RepositoryInfo) -> RepositoryAnswer:
        """As it is now."""
        return cls(
            id=info.name,
            creation_date=seconds_of(info.created_at),
            default_branch=info.default_branch,
            storage_namespace=info.storage_url,
        )


class RepositoryList(Wire):
    """Repositories, by name."""

    pagination: Pagination
    results: list[RepositoryAnswer]
