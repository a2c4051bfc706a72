"""The objects that an endpoint works with: the store, the jobs, and the request's access key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Request

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.formats.base import RepositoryFormat, WithPolicy
from ebbtide.formats.elsewhere import is_elsewhere, open_elsewhere
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.none import LocalEngine
from ebbtide.gc.options import RunOptions
from ebbtide.server.auth import principal_of
from ebbtide.server.import_threads import ImportThreads
from ebbtide.server.jobs import Jobs
from ebbtide.settings import Settings
from ebbtide.store.access.keys import AccessKey
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository


@dataclass(frozen=True, slots=True)
class Collected:
    """A repository of the store or elsewhere. The server shows and starts its runs.

    `key` identifies the repository among the jobs: its id if it is of the store, else its name.
    `sessions` is how long clients of a repository elsewhere can use data that no ref names; None
    for a repository of the store.
    """

    name: str
    key: str
    form: RepositoryFormat
    settings: Settings
    sessions: timedelta | None = None

    @property
    def with_policy(self) -> WithPolicy:
        """The repository, whose policy can be read and set. Raises NotFound `policy_not_found`
        for one that has none."""
        if not isinstance(self.form, WithPolicy):
            raise NotFound(
                "policy_not_found",
                f"{self.name} has no policy: each 'ebbtide expire' names what to keep",
            )
        return self.form

    @property
    def options(self) -> RunOptions:
        """The options of a run that is started without any."""
        return RunOptions.of(self.settings, sessions=self.sessions)

    @property
    def collector(self) -> Collector:
        """A collector that needs no Spark, because it only reads records."""
        return Collector(self.form, engine=LocalEngine(), options=self.options)


class Served:
    """The server as one request sees it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.store: Store = request.app.state.store
        self.jobs: Jobs = request.app.state.jobs
        self.import_threads: ImportThreads = request.app.state.import_threads

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self.store.settings

    @property
    def import_prefixes(self) -> tuple[str, ...]:
        """The beginnings of the URLs that may be imported."""
        return tuple(self.settings.import_prefixes.split())

    def repository(self, name: str) -> Repository:
        """Returns the repository of that name. Raises NotFound `repository_not_found`."""
        return self.store.repository(name)

    def collected(self, name: str) -> Collected:
        """Returns a repository of the store, or one that `EBBTIDE_SERVER_REPOSITORIES` names.

        Raises NotFound `repository_not_found`, and the errors of `open_elsewhere`.
        """
        if not is_elsewhere(name):
            found = self.repository(name)
            form = EmbeddedRepository(found.context, store_id=self.store.store_id)
            return Collected(found.info.name, found.info.repository_id, form, self.settings)
        if name not in self.elsewhere:
            raise NotFound(
                "repository_not_found",
                f"EBBTIDE_SERVER_REPOSITORIES does not name {shown(name)}: this server shows only "
                "the runs of its own repositories, and of those that it names",
            )
        opened, sessions = open_elsewhere(name, self.settings)
        return Collected(name, name, opened, self.settings, sessions)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The names of the repositories that are not of the store."""
        return tuple(self.settings.server_repositories.split())

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
