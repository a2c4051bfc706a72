"""The context of operations on one repository: database, storage, settings, owner, cache,
slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from ebbtide.clock import Clock
from ebbtide.errors import Refused
from ebbtide.ids import descending_id
from ebbtide.settings import Settings
from ebbtide.storage import Storage
from ebbtide.store.content.layout import new_object_address
from ebbtide.store.content.trees import ContentCache, Tree
from ebbtide.store.database.commit_rows import CommitRecord, find_commits, no_content
from ebbtide.store.database.engine import LockMode, Metadata, Transaction
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.repository_rows import RepositoryInfo


class CurrentSlice:
    """Makes addresses in this process's current slice. A full or old slice is closed.

    A slice is a directory of objects that one process fills. Its name is a descending id of the
    instant at which it was opened. The newest slice sorts first, and a listing can skip slices by
    name. No object in a slice is older than the slice's name.
    """

    def __init__(self, settings: Settings) -> None:
        self._objects_max = settings.slice_objects_max
        self._age_max = settings.slice_age_max
        self._lock = Lock()
        self._slice_id = ""
        self._opened_at: datetime | None = None
        self._object_count = 0

    def new_addresses(self, count: int, *, now: datetime) -> list[str]:
        """Returns `count` addresses that no other call returns. `now` is the database's time."""
        with self._lock:
            return [self._new_address(now) for _ in range(count)]

    def _new_address(self, now: datetime) -> str:
        opened_at = self._opened_at
        if (
            opened_at is None
            or self._object_count >= self._objects_max
            # A slice from a time when the clock was ahead must not stay open until then.
            or abs(now - opened_at) >= self._age_max
        ):
            self._slice_id = descending_id(now)
            self._opened_at = now
            self._object_count = 0
        address = new_object_address(self._slice_id, self._object_count)
        self._object_count += 1
        return address


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryContext:
    """One repository of an open store."""

    info: RepositoryInfo
    metadata: Metadata
    storage: Storage
    settings: Settings
    ownership: Ownership
    cache: ContentCache
    slices: CurrentSlice

    @property
    def repository_id(self) -> str:
        """The id of the repository, which is in each of its rows."""
        return self.info.repository_id

    @property
    def clock(self) -> Clock:
        """The store's clock."""
        return self.metadata.clock

    @property
    def trash_time(self) -> timedelta:
        """How long deleted refs, projects, collections and repositories can be restored."""
        return self.settings.trash_time

    def tree_of(self, commit: CommitRecord) -> Tree:
        """Returns the tree of a commit, closed or not.

        Raises Gone `commit_expired` if the commit was forgotten or given up, and as `read_tree`
        does.
        """
        return self.cache.tree(*commit.require_tree())

    @contextmanager
    def reading(self, *commits: CommitRecord) -> Iterator[None]:
        """A block that reads the trees of `commits`, which an earlier transaction looked up.

        If a run has forgotten one of them since, a missing file raises Gone `commit_expired`, and
        not Refused `missing_tree` or `missing_node`.
        """
        try:
            yield
        except Refused as error:
            if error.kind in ("missing_tree", "missing_node"):
                ids = [commit.commit_id for commit in commits]
                with self.metadata.snapshot() as tx:
                    found = find_commits(tx, self.repository_id, ids)
                for commit in commits:
                    if commit.commit_id not in found:
                        raise no_content(commit.commit_id) from error
                    if found[commit.commit_id].forgotten_by is not None:
                        found[commit.commit_id].require_intact()
            raise

    @contextmanager
    def changing(
        self, mode: LockMode = "share", *, first: Callable[[Transaction], None] | None = None
    ) -> Iterator[Transaction]:
        """A block with a transaction that changes what is kept. It locks the repository's row.

        `first` is called before that lock, for a lock of all repositories: those that create or
        delete a repository take the two locks in this order.

        After the transaction, the epoch in OWNER moves. From then on, a copy of the database from
        before the change can delete nothing on the storage.

        Raises NotFound `repository_not_found`; Refused `storage_foreign`; Failed `storage_error`.
        If the change is made but OWNER cannot be written, the message says so.
        """
        self.ownership.require()
        with self.metadata.transaction() as tx:
            if first is not None:
                first(tx)
            tx.lock_repository(self.repository_id, mode)
            yield tx
        self.ownership.announce()

    def touch_owner(self) -> None:
        """Checks, before a write, that the storage belongs to this database.

        Raises Refused `storage_foreign`.
        """
        self.ownership.touch()
