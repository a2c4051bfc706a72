"""The embedded store: making and opening it, and opening the repositories in it.

Not for: listing, trashing or restoring repositories (`catalog`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self

from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound, UnknownRepository
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import expiry_asked, state_at
from ebbtide.settings import Settings
from ebbtide.storage import contains, open_storage
from ebbtide.store.access.access_keys import AccessKeys, Grants
from ebbtide.store.access.secrets import SecretBox, make_key_file
from ebbtide.store.access.sessions import Sessions
from ebbtide.store.access.signed_tokens import SigningKey, SigningKeys, insert_signing_key
from ebbtide.store.collections.queries import COLLECTIONS, lineage_of
from ebbtide.store.completions import DATABASE_FILE as DATABASE_FILE
from ebbtide.store.content.trees import ContentCache
from ebbtide.store.context import CurrentSlice, RepositoryContext
from ebbtide.store.database.dialects import (
    create_database_file,
    database_file,
    open_engine,
    sqlite_url,
)
from ebbtide.store.database.engine import Metadata
from ebbtide.store.database.migrate import check_schema, has_schema, upgrade_schema
from ebbtide.store.database.prepared import Prepared
from ebbtide.store.gc.run_metadata import find_run
from ebbtide.store.lifecycle import missing
from ebbtide.store.names import (
    REPOSITORY_LENGTH_MAX,
    check_ref_name,
    check_repository_name,
    free_name,
)
from ebbtide.store.new_repositories import create, default_root
from ebbtide.store.objects.locators import SIGNING_MARGIN, parse_locator
from ebbtide.store.quick_reads import QuickReads
from ebbtide.store.repositories.catalog import Catalog
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.repository_rows import (
    LASTING,
    REPOSITORIES,
    RepositoryInfo,
    find_repository,
    insert_store,
    list_repositories,
    promise,
    promised,
    read_store_id,
    repository_by_id,
    times_of,
)
from ebbtide.store.repository import Repository, run_of
from ebbtide.store.schedules import Schedules

STORAGE_DIRECTORY: Final = "storage"


class Store:
    """A store: a metadata database, and repositories on object storages. Thread-safe."""

    def __init__(
        self, *, directory: Path | None, settings: Settings, metadata: Metadata, store_id: str
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.metadata = metadata
        self.store_id = store_id
        self.catalog = Catalog(metadata, trash_time=settings.trash_time, ownership=self._ownership)
        self.box = box = SecretBox(directory, settings)
        self.keys = AccessKeys(metadata, box)
        self.grants = Grants(metadata, box)
        self.sessions = Sessions(
            metadata,
            self.keys,
            box,
            ttl=settings.session_ttl,
            person_ttl=settings.oidc_session_ttl,
            issuer=settings.oidc_issuer,
        )
        self.signing_keys = SigningKeys(metadata, settings)
        self.schedules = Schedules(metadata)
        self.quick_reads = QuickReads(metadata, self.keys, self._opened)
        self._lasting = Prepared(metadata, LASTING)
        self._lock = Lock()
        self._repositories: dict[str, Repository] = {}

    @classmethod
    def init(
        cls,
        directory: Path | None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Makes a store in a directory, which may exist, or in the database of the settings.

        Raises Conflict `store_exists`, InvalidInput, Failed `database_error` or `storage_error`.
        """
        settings, directory = _place(directory, settings)
        with _opening(directory, settings, clock) as metadata:
            _make_places(directory, metadata)
            if not has_schema(metadata.engine):
                upgrade_schema(metadata.engine)
            check_schema(metadata.engine)
            with metadata.transaction() as tx:
                if read_store_id(tx) is not None:
                    place = _shown(directory, settings)
                    raise Conflict("store_exists", f"there is a store {place} already")
                store_id = new_id()
                insert_store(tx, store_id)
                promise(tx, times_of(settings))
                insert_signing_key(tx, SigningKey.generate())
            make_key_file(directory, settings)
        return cls(directory=directory, settings=settings, metadata=metadata, store_id=store_id)

    @classmethod
    def open(
        cls,
        directory: Path | None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Opens an existing store.

        The times of its promises (see `promise`) come from the database, not from the settings.

        Raises NotFound `store_not_found`, Failed `schema_outdated` or `database_error`, Refused
        `unknown_format_version`.
        """
        settings, directory = _place(directory, settings)
        with _opening(directory, settings, clock) as metadata:
            _require_schema(directory, settings, metadata)
            check_schema(metadata.engine)
            with metadata.snapshot() as tx:
                store_id = read_store_id(tx)
                settings = promised(tx, settings)
            if store_id is None:
                raise _not_found(directory, settings)
        return cls(directory=directory, settings=settings, metadata=metadata, store_id=store_id)

    @classmethod
    def upgrade(
        cls,
        directory: Path | None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Upgrades the database of a store to this program's version, then opens the store.

        No other process may use the store meanwhile. Raises as `open` does.
        """
        settings, directory = _place(directory, settings)
        with _opening(directory, settings, clock) as metadata:
            _require_schema(directory, settings, metadata)
            upgrade_schema(metadata.engine)
        metadata.close()
        return cls.open(directory, settings=settings, clock=clock)

    def promise(self, times: Mapping[str, timedelta]) -> None:
        """Sets the times of the store's promises, by the names of settings.

        The names are `lease_ttl`, `trash_time`, `upload_ttl` and `prepare_ttl`. Processes that open
        the store from now on use the times, and every process that deletes uses them at once. A
        shorter trash time also applies to what is in the trash already.

        Raises InvalidInput `invalid_argument`, `invalid_setting`.
        """
        with self.metadata.transaction() as tx:
            promise(tx, times)

    def can_sign(self) -> bool:
        """Whether the storage of new repositories signs URLs that last for EBBTIDE_LEASE_TTL, and
        EBBTIDE_UPLOAD_TTL. A repository elsewhere can differ."""
        settings = self.settings
        if settings.storage_url is None or settings.lease_ttl <= SIGNING_MARGIN:
            return False
        try:
            storage = open_storage(settings.storage_url)
            signed = (
                storage.sign_get("probe", lasts=settings.lease_ttl),
                storage.sign_put("probe", lasts=settings.upload_ttl),
            )
        except Failed:
            # A storage that has no credentials for signing serves through this program.
            return False
        return None not in signed

    @property
    def clock(self) -> Clock:
        """The clock that dates everything in the store."""
        return self.metadata.clock

    def create_repository(
        self,
        name: str,
        *,
        storage_url: str | None = None,
        default_branch: str = "main",
        expires_at: datetime | None = None,
        namespace: str | None = None,
    ) -> Repository:
        """Makes a repository with its root at `storage_url`, or under the store's own storage.
        `namespace` is the root as clients write it, if that is not the URL.

        The root must be empty. It must not contain, or be in, the root of another repository. At
        `expires_at` the repository moves to the trash. A past time means now.

        Raises Conflict `root_not_empty`, `nested_root`, `repository_exists`; InvalidInput
        `invalid_name`, `invalid_date` or `invalid_argument`; Failed.
        """
        check_repository_name(name)
        check_ref_name(default_branch)
        with self.metadata.snapshot() as tx:
            now = tx.now()
            roots = [info.storage_url for info in list_repositories(tx)]
        storage = open_storage(self._free_root(name, roots) if storage_url is None else storage_url)
        info = RepositoryInfo(
            new_id(),
            name,
            storage.url,
            default_branch,
            now,
            expiry_asked(expires_at, now=now),
            namespace=namespace,
        )
        create(self.metadata, info, storage, self.context_of(info).ownership)
        return self._opened(info)

    def repository(self, name: str) -> Repository:
        """Returns the live repository of that name. Raises NotFound `repository_not_found`."""
        row = self._lasting.first({"name": name})
        if row is not None:
            return self._opened(REPOSITORIES.of(self._lasting.decoded(row, slice(None))))
        with self.metadata.statement() as tx:
            info = find_repository(tx, name)
            if info is None:
                raise self.catalog.missing(tx, name)
        return self._opened(info)

    def _ownership(self, info: RepositoryInfo) -> Ownership:
        return self._opened(info).context.ownership

    def _opened(self, info: RepositoryInfo) -> Repository:
        with self._lock:
            # One object for each repository, so that a process writes to one slice of it at a time.
            known = self._repositories.get(info.repository_id)
            if known is None:
                known = Repository(self.context_of(info))
            elif known.info != info:
                known = Repository(replace(known.context, info=info))
            self._repositories[info.repository_id] = known
            return known

    def repository_of_project(self, project_id: str) -> Repository:
        """Returns the repository of a project. Raises NotFound `project_not_found`."""
        with self.metadata.snapshot() as tx:
            line = lineage_of(tx, project_id)
            info = repository_by_id(tx, line[0].repository_id) if line else None
        return self._repository_of(info, missing("project", project_id))

    def repository_of_collection(self, collection_id: str) -> Repository:
        """Returns the repository of a collection. Raises NotFound `collection_not_found`."""
        with self.metadata.snapshot() as tx:
            row = COLLECTIONS.by_id(tx, collection_id)
            info = None if row is None else repository_by_id(tx, row.repository_id)
        return self._repository_of(info, missing("collection", collection_id))

    def repository_of_locator(self, token: str) -> Repository:
        """Returns the repository of a locator.

        Raises InvalidInput as `parse_locator` does, NotFound `repository_not_found`.
        """
        with self.metadata.snapshot() as tx:
            info = repository_by_id(tx, parse_locator(tx, token).repository_id)
        missing = UnknownRepository(
            "repository_not_found", "the repository of the locator was deleted or has expired"
        )
        return self._repository_of(info, missing)

    def _repository_of(self, info: RepositoryInfo | None, missing: NotFound) -> Repository:
        """Returns the repository if it is there and not in the trash. Raises `missing`
        otherwise."""
        if info is not None:
            with self.metadata.snapshot() as tx:
                now = tx.now()
            state = state_at(info.expires_at, trash_time=self.settings.trash_time, now=now)
            if state.is_visible():
                return self._opened(info)
        raise missing

    def tell(self, error: EbbtideError) -> None:
        """Completes an error about a commit that a run closed: whether its data is in quarantine,
        until when, and how to restore it. Every place that shows errors to somebody calls this."""
        run_id = run_of(error)
        if run_id is None:
            return
        with suppress(EbbtideError):
            with self.metadata.snapshot() as tx:
                repository_id = find_run(tx, run_id)
                info = None if repository_id is None else repository_by_id(tx, repository_id)
            if info is not None:
                self._opened(info).tell(error)

    def close(self) -> None:
        """Closes the connections to the database."""
        self.metadata.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def default_root(self, name: str) -> str:
        """Returns the root for a repository of that name under the store's own storage.

        Raises InvalidInput `invalid_argument` if the store has no storage of its own.
        """
        if self.settings.storage_url is not None:
            return default_root(self.settings.storage_url, name)
        if self.directory is None:
            raise InvalidInput(
                "invalid_argument",
                "the store has no directory to put objects in: give a storage URL, or set "
                "EBBTIDE_STORAGE_URL",
            )
        return default_root(str(self.directory / STORAGE_DIRECTORY), name)

    def _free_root(self, name: str, roots: Sequence[str]) -> str:
        """Returns a root for that name that no repository has. Repositories in the trash keep their
        roots."""

        def is_taken(each: str) -> bool:
            url = self.default_root(each)
            return any(contains(root, url) or contains(url, root) for root in roots)

        return self.default_root(free_name(name, is_taken, bytes_max=REPOSITORY_LENGTH_MAX))

    def context_of(self, info: RepositoryInfo) -> RepositoryContext:
        """Returns the context of operations on a repository."""
        storage = open_storage(info.storage_url)
        return RepositoryContext(
            info=info,
            metadata=self.metadata,
            storage=storage,
            settings=self.settings,
            ownership=Ownership(
                self.metadata,
                store_id=self.store_id,
                repository_id=info.repository_id,
                storage=storage,
                host_now=self.clock.host_now,
            ),
            cache=ContentCache(storage),
            slices=CurrentSlice(self.settings),
        )


def _place(directory: Path | None, settings: Settings | None) -> tuple[Settings, Path | None]:
    settings = settings or Settings()
    directory = directory or settings.store
    if directory is None and settings.database_url is None:
        raise InvalidInput(
            "invalid_argument", "no store is named: give --store DIR, or set EBBTIDE_STORE"
        )
    return settings, directory


@contextmanager
def _opening(directory: Path | None, settings: Settings, clock: Clock | None) -> Iterator[Metadata]:
    """Opens the database for the block, and closes it if the block fails."""
    url = settings.database_url
    if url is None:
        assert directory is not None  # checked by `_place`
        url = sqlite_url(directory / DATABASE_FILE)
    metadata = Metadata(open_engine(url), clock or SystemClock())
    try:
        yield metadata
    except BaseException:
        metadata.close()
        raise


_WRONG_PLACE: Final = (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)


def _make_places(directory: Path | None, metadata: Metadata) -> None:
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        create_database_file(metadata.engine)
    except OSError as error:
        text = f"no store can be made in {directory or 'the database'}: {error.strerror}"
        if isinstance(error, _WRONG_PLACE):
            raise InvalidInput("invalid_argument", text) from error
        raise Failed("storage_error", text) from error


def _require_schema(directory: Path | None, settings: Settings, metadata: Metadata) -> None:
    """Raises NotFound `store_not_found`. Looks for the file first: a connection would create it."""
    file = database_file(metadata.engine)
    if (file is not None and not file.exists()) or not has_schema(metadata.engine):
        raise _not_found(directory, settings)


def _not_found(directory: Path | None, settings: Settings) -> NotFound:
    return NotFound(
        "store_not_found",
        f"there is no store {_shown(directory, settings)}: make one with 'ebbtide init'",
    )


def _shown(directory: Path | None, settings: Settings) -> str:
    """Returns where a store is, as a clause. If a database is named, it decides alone."""
    if directory is None or settings.database_url is not None:
        return "in the database that EBBTIDE_DATABASE_URL names"
    return f"in {directory}"
