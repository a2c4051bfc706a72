"""The context of operations on one repository: database, storage, settings, owner, cache,
slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from ebbtide.clock import Clock
from ebbtide.errors import Refused
from ebbtide.settings import Settings
from ebbtide.storage import Storage
from ebbtide.store.content.cache import ContentCache
from ebbtide.store.content.slices import CurrentSlice
from ebbtide.store.content.trees import Tree
from ebbtide.store.database.commits import CommitRecord, find_commits, no_content
from ebbtide.store.database.engine import LockMode, Metadata, Transaction
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.queries import RepositoryInfo


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
