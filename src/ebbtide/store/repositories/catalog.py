"""The repositories of a store: finding, listing, trashing and restoring them.

A repository is named by its name or by its id. No name looks like an id. Several deleted
repositories can have one name. Not for: making a repository (`creation`), collecting a gone one
(`removal`), or the content of one.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.listing import check_amount
from ebbtide.store.names import REPOSITORY_LENGTH_MAX, check_metadata
from ebbtide.store.repositories.lifecycle import ListFilter, ambiguous, free_name, taken
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.queries import (
    RepositoryInfo,
    delete_grants,
    find_repository,
    list_repositories,
    lock_all_repositories,
    page_of_repositories,
    read_metadata,
    repositories_named,
    repository_by_id,
    update_repository,
    write_metadata,
)
from ebbtide.store.repositories.removal import RemovalRow, read_removal, removals_named


@dataclass(frozen=True, slots=True)
class Catalogued:
    """A repository as it was when it was read."""

    info: RepositoryInfo
    state: LifecycleState


class Catalog:
    """The repositories of one store."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        trash_time: timedelta,
        ownership: Callable[[RepositoryInfo], Ownership],
    ) -> None:
        """`ownership` returns the Ownership of a repository. A restore, or a change of the date of
        expiry, checks OWNER first, and moves it afterwards."""
        self._metadata = metadata
        self._trash_time = trash_time
        self._ownership = ownership

    def get(self, ref: str, *, include_expired: bool = False) -> Catalogued:
        """Returns the live repository with that name or id.

        With `include_expired`, returns one in the trash if there is no live one. Raises NotFound
        `repository_not_found`, and Conflict `ref_ambiguous` if several in the trash have the name.
        """
        with self._metadata.snapshot() as tx:
            return self._require(tx, ref, include_expired=include_expired)

    def list(self, *, include_expired: bool = False) -> list[Catalogued]:
        """Returns all live repositories by name; with `include_expired`, also those in the
        trash."""
        with self._metadata.snapshot() as tx:
            found = [self._look(tx, info) for info in list_repositories(tx)]
        return [each for each in found if each.state.is_visible(include_expired=include_expired)]

    def page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        amount: int = 1000,
        search: str = "",
        listed: ListFilter | None = None,
        only: Collection[str] | None = None,
    ) -> builtins.list[Catalogued]:
        """Returns at most `amount` repositories, sorted by name and id.

        Their names begin with `prefix` and contain `search`. They sort behind `after`, which is
        `NAME` or `NAME ID`. `only` are the ids to choose from; None chooses from all. Raises
        InvalidInput `invalid_argument`, `invalid_date`.
        """
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            found = page_of_repositories(
                tx,
                (listed or ListFilter()).at(tx.now(), self._trash_time),
                prefix=prefix,
                after=after,
                amount=amount,
                search=search,
                only=only,
            )
            return [self._look(tx, info) for info in found]

    def gone(self) -> builtins.list[Catalogued]:
        """Returns the repositories that are gone and not collected yet, by name."""
        with self._metadata.snapshot() as tx:
            infos = self._in_state(tx, list_repositories(tx), LifecycleState.GONE)
        return [Catalogued(info, LifecycleState.GONE) for info in infos]

    def find_gone(self, ref: str) -> RepositoryInfo | None:
        """Returns the gone repository with that id or name, or None.

        A name is found only if no live or trashed repository has it. Raises Conflict
        `ref_ambiguous`.
        """
        with self._metadata.snapshot() as tx:
            found = _fitting(tx, ref)
            gone = self._in_state(tx, found, LifecycleState.GONE)
        if len(gone) > 1:
            raise ambiguous("repository", ref, [info.repository_id for info in gone])
        return gone[0] if len(gone) == len(found) == 1 else None

    def find_removed(self, ref: str) -> RemovalRow | None:
        """Returns the record of a repository that a run collected whole, by id or name, or None.

        Also None if a repository of that name is still there. Raises Conflict `ref_ambiguous`.
        """
        with self._metadata.snapshot() as tx:
            by_id = read_removal(tx, ref)
            found = removals_named(tx, ref) if by_id is None else [by_id]
            others = _fitting(tx, ref)
        if len(found) > 1:
            raise ambiguous("repository", ref, [removal.repository_id for removal in found])
        return found[0] if found and not others else None

    def delete(self, ref: str) -> Catalogued:
        """Moves a repository to the trash. Its name is free at once.

        Its content stays for `trash_time`. Its storage root is taken until a run has collected all
        of it. The roles that access keys have in it are deleted, also for a later restore. Raises
        NotFound `repository_not_found`.
        """
        with self._metadata.transaction() as tx:
            lock_all_repositories(tx)
            found = self._locked(tx, ref)
            delete_grants(tx, found.info.repository_id)
            return self._update(tx, found.info, expires_at=tx.now())

    def set_expiry(
        self, ref: str, expires_at: datetime | None, *, ensure_unique_name: bool = False
    ) -> Catalogued:
        """Sets when a repository moves to the trash: None is never, and a past time is now.

        For a repository in the trash, None or a future time restores it. If its name was taken
        meanwhile, `ensure_unique_name` gives it another name.

        Raises NotFound `repository_not_found`; Conflict `ref_ambiguous`, `repository_exists`;
        InvalidInput `invalid_date`; Refused `storage_foreign`; Failed.
        """
        self._ownership(self.get(ref, include_expired=True).info).require()
        with self._metadata.transaction() as tx:
            lock_all_repositories(tx)
            asked = expiry_asked(expires_at, now=tx.now())
            found = self._locked(tx, ref, include_expired=True)
            comes_back = asked is None or asked > tx.now()
            if found.state is LifecycleState.TRASHED and comes_back:
                changed = self._revive(tx, found.info, asked, ensure_unique_name=ensure_unique_name)
            else:
                changed = self._update(tx, found.info, expires_at=asked)
        self._ownership(changed.info).announce()
        return changed

    def restore(self, ref: str, *, ensure_unique_name: bool = False) -> Catalogued:
        """Restores a repository from the trash, and clears its date of expiry.

        `ref` is its id, or its name if no other repository in the trash has the name. Raises as
        `set_expiry` does.
        """
        with self._metadata.snapshot() as tx:
            recoverable = self._recoverable(tx, ref)
        if recoverable is not None:
            self._ownership(recoverable.info).require()
        with self._metadata.transaction() as tx:
            lock_all_repositories(tx)
            recoverable = self._recoverable(tx, ref)
            if recoverable is None:
                raise taken("repository", self._require(tx, ref).info.name)
            found = self._locked(tx, recoverable.info.repository_id, include_expired=True)
            revived = self._revive(tx, found.info, None, ensure_unique_name=ensure_unique_name)
        self._ownership(revived.info).announce()
        return revived

    def metadata(self, ref: str) -> dict[str, str]:
        """Returns the metadata of a live repository. Raises NotFound `repository_not_found`."""
        with self._metadata.snapshot() as tx:
            return read_metadata(tx, self._require(tx, ref).info.repository_id)

    def change_metadata(
        self, ref: str, *, added: Mapping[str, str] | None = None, removed: Iterable[str] = ()
    ) -> dict[str, str]:
        """Adds or replaces metadata of a repository, and removes names. Returns the result. A name
        that does not exist is no error.

        Raises NotFound `repository_not_found`, InvalidInput `invalid_argument`.
        """
        with self._metadata.transaction() as tx:
            repository_id = self._locked(tx, ref).info.repository_id
            changed = read_metadata(tx, repository_id) | dict(added or {})
            for name in removed:
                changed.pop(name, None)
            check_metadata(changed)
            write_metadata(tx, repository_id, changed)
        return changed

    def _revive(
        self,
        tx: Transaction,
        info: RepositoryInfo,
        expires_at: datetime | None,
        *,
        ensure_unique_name: bool,
    ) -> Catalogued:
        """Restores a repository with another date of expiry. The caller has locked all
        repositories, so that the name stays free."""
        name = info.name
        if ensure_unique_name:
            name = free_name(
                name,
                lambda each: find_repository(tx, each) is not None,
                length_max=REPOSITORY_LENGTH_MAX,
            )
        elif find_repository(tx, name) is not None:
            raise taken("repository", name)
        return self._update(tx, info, expires_at=expires_at, name=name)

    def _update(
        self,
        tx: Transaction,
        info: RepositoryInfo,
        **values: Any,  # values of the columns' types
    ) -> Catalogued:
        update_repository(tx, info.repository_id, **values)
        return self._look(tx, replace(info, **values))

    def _locked(self, tx: Transaction, ref: str, *, include_expired: bool = False) -> Catalogued:
        """Locks a repository, and returns it as `_require` finds it afterwards.

        The fence of a run that collects the repository takes the same lock. The repository is read
        again, because it may have changed while this transaction waited.
        """
        repository_id = self._require(tx, ref, include_expired=include_expired).info.repository_id
        tx.lock_repository(repository_id, "exclusive", trashed=True)
        return self._require(tx, repository_id, include_expired=include_expired)

    def _require(self, tx: Transaction, ref: str, *, include_expired: bool = False) -> Catalogued:
        info = find_repository(tx, ref) or repository_by_id(tx, ref)
        if info is not None:
            found = self._look(tx, info)
            if found.state.is_visible(include_expired=include_expired):
                return found
        recoverable = self._recoverable(tx, ref) if include_expired else None
        if recoverable is None:
            raise no_repository(tx, ref, trash_time=self._trash_time)
        return recoverable

    def _recoverable(self, tx: Transaction, ref: str) -> Catalogued | None:
        """Returns the repository in the trash with that id or name. Raises Conflict
        `ref_ambiguous`."""
        found = self._in_state(tx, _fitting(tx, ref), LifecycleState.TRASHED)
        if len(found) > 1:
            raise ambiguous("repository", ref, [info.repository_id for info in found])
        return self._look(tx, found[0]) if found else None

    def _in_state(
        self, tx: Transaction, infos: Iterable[RepositoryInfo], state: LifecycleState
    ) -> builtins.list[RepositoryInfo]:
        return [info for info in infos if self._look(tx, info).state is state]

    def _look(self, tx: Transaction, info: RepositoryInfo) -> Catalogued:
        return Catalogued(info, info.state_at(tx.now(), trash_time=self._trash_time))


def _fitting(tx: Transaction, ref: str) -> builtins.list[RepositoryInfo]:
    """Returns the repository with that id, or all with that name, in any state."""
    by_id = repository_by_id(tx, ref)
    return repositories_named(tx, ref) if by_id is None else [by_id]


def no_repository(tx: Transaction, ref: str, *, trash_time: timedelta) -> NotFound:
    """Returns the error for a name or id that no live repository has. If one in the trash has it,
    the message says so."""
    hint = "'ebbtide repo list' lists the repositories"
    now = tx.now()
    for info in _fitting(tx, ref):
        if info.state_at(now, trash_time=trash_time) is LifecycleState.TRASHED:
            hint = (
                "it was deleted or has expired; 'ebbtide repo restore "
                f"{info.repository_id}' restores it"
            )
    return NotFound("repository_not_found", f"there is no repository {shown(ref)}: {hint}")
