"""The objects that an endpoint works with: the store, the jobs, the request's access key, and the
threads of imports."""

from __future__ import annotations

from collections.abc import Callable
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Annotated, Final

from fastapi import Depends, Request

from ebbtide.api.collected import Collected, open_collected
from ebbtide.errors import EbbtideError, UnknownRepository
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.server.auth import Rights, principal_of, rights_of
from ebbtide.server.jobs import Jobs
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import AccessKey
from ebbtide.store.embedded import Store
from ebbtide.store.imports import ImportRequest, Imports, Signs
from ebbtide.store.repository import Repository
from ebbtide.text import shown


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
        """Returns the repository of that name. Raises NotFound `repository_not_found`, and Denied
        as `Rights.opened` does."""
        return self.rights.opened(self.store.repository(name))

    def catalogued(self, name: str) -> str:
        """Returns the name or id by which the catalog finds the repository that the key's role was
        checked in."""
        return self.rights.limited_to or name

    def collected(self, name: str) -> Collected:
        """Returns a repository of the store, or one that `EBBTIDE_SERVER_REPOSITORIES` names.

        Raises NotFound `repository_not_found`, and the errors of `Scheme.open`.
        """
        if self.rights.limited_to is not None:
            self.repository(name)
        return open_served(self.store, name)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The names of the repositories that are not of the store."""
        return elsewhere_of(self.settings)

    @property
    def rights(self) -> Rights:
        """The rights of the request's key. Raises Denied `key_invalid`."""
        return rights_of(self._request.scope, self.store)

    @property
    def key(self) -> AccessKey:
        """The access key of the request. Raises Denied `key_invalid`."""
        return principal_of(self._request.scope)

    @property
    def committer(self) -> str:
        """The name of the request's key as commits record it; without a name, the key's id."""
        return self.key.name or self.key.access_key_id


def elsewhere_of(settings: Settings) -> tuple[str, ...]:
    """Returns the names of the served repositories that are not of the store."""
    return tuple(settings.server_repositories.split())


def open_served(store: Store, name: str) -> Collected:
    """Returns a repository of the store, or one that `EBBTIDE_SERVER_REPOSITORIES` names.

    Raises NotFound `repository_not_found`, and the errors of `Scheme.open`.
    """
    if is_elsewhere(name) and name not in elsewhere_of(store.settings):
        raise UnknownRepository(
            "repository_not_found",
            f"EBBTIDE_SERVER_REPOSITORIES does not name {shown(name)}: this server shows only "
            "the runs of its own repositories, and of those that it names",
        )
    return open_collected(name, settings=store.settings, store=lambda: store)


async def _served(request: Request) -> Served:
    # Async, because FastAPI would run a plain function in the thread pool, which costs time.
    return Served(request)


ServedDep = Annotated[Served, Depends(_served)]


AT_ONCE_MAX: Final = 4
"""The most imports that one server carries out at a time. Others wait."""
SIGN_SECONDS: Final = 10.0
"""How often a waiting import records a sign of life."""
STOP_SECONDS_MAX: Final = 5.0
"""How long the end of the server waits for imports. An import that waits longer for its storage is
told as failed when it has been silent for too long."""


class ImportThreads:
    """The imports that this server carries out. They end with the server. Thread-safe.

    An import is a thread and not a process: it waits for the storage most of the time. Not for: its
    steps (`store.imports`).
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns = BoundedSemaphore(AT_ONCE_MAX)
        self._stopping = Event()
        self._threads: list[Thread] = []

    def start(self, imports: Imports, import_id: str, request: ImportRequest) -> None:
        """Carries out an import that has begun, as soon as it is its turn."""
        thread = Thread(
            target=self._work, args=(imports, import_id, request), name="import", daemon=True
        )
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
        thread.start()

    def join(self, seconds_max: float | None = None) -> None:
        """Waits until the imports have ended, each for `seconds_max` at most."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(seconds_max)

    def stop(self) -> None:
        """Ends the imports. They commit nothing from now on, except one that is just committing."""
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)

    def _work(self, imports: Imports, import_id: str, request: ImportRequest) -> None:
        while not self._turns.acquire(timeout=SIGN_SECONDS):
            if not _waits(lambda: imports.wait(import_id)):
                return
        try:
            imports.carry_out(import_id, request, Signs(stopping=self._stopping.is_set))
        finally:
            self._turns.release()


def _waits(sign: Callable[[], None]) -> bool:
    """Whether a waiting import still has to be carried out, by its sign of life."""
    try:
        sign()
    except EbbtideError as error:
        # Without an answer of the database, nobody knows: the import records its next sign later.
        return error.kind != "import_ended"
    return True
