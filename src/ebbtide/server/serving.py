"""What an endpoint works with: the store, and who asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from ebbtide.server.auth import principal_of
from ebbtide.server.jobs import Jobs
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.keys import AccessKey
from ebbtide.store.repository import Repository


class Served:
    """One request's view of the server."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.store: Store = request.app.state.store
        self.jobs: Jobs = request.app.state.jobs

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self.store.settings

    def repository(self, name: str) -> Repository:
        """The repository of that name. Raises NotFound `repository_not_found`."""
        return self.store.repository(name)

    @property
    def key(self) -> AccessKey:
        """Who asks."""
        return principal_of(self._request.scope)

    @property
    def committer(self) -> str:
        """Who asks, as commits name them."""
        return self.key.name or self.key.access_key_id


async def _served(request: Request) -> Served:
    # Not a plain function: that would be a turn on the thread pool for nothing.
    return Served(request)


ServedDep = Annotated[Served, Depends(_served)]
