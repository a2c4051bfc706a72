"""The objects that an endpoint works with: the store, the jobs, and the request's access key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from ebbtide.server.auth import principal_of
from ebbtide.server.jobs import Jobs
from ebbtide.settings import Settings
from ebbtide.store.access.keys import AccessKey
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository


class Served:
    """The server as one request sees it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.store: Store = request.app.state.store
        self.jobs: Jobs = request.app.state.jobs

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self.store.settings

    def repository(self, name: str) -> Repository:
        """Returns the repository of that name. Raises NotFound `repository_not_found`."""
        return self.store.repository(name)

    @property
    def key(self) -> AccessKey:
        """The access key of the request. Raises Denied `key_invalid`."""
        return principal_of(self._request.scope)

    @property
    def committer(self) -> str:
        """The name of the request's key as commits record it; without a name, the key's id."""
        return self.key.name or self.key.access_key_id


async def _served(request: Request) -> Served:
    # Async, because FastAPI would run a plain function in the thread pool, which costs time.
    return Served(request)


ServedDep = Annotated[Served, Depends(_served)]
