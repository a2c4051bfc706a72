"""The repositories of a store: finding and listing them, and their lifecycle.

Not for: making a repository (`creation`), collecting a gone one (`removal`), or the content of one.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import sqlalchemy as sa

from ebbtide.documents import INLINE, documented
from ebbtide.errors import NotFound
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import repositories
from ebbtide.store.lifecycle import (
    LIVE,
    ByName,
    Find,
    ListFilter,
    Place,
    SeenItem,
    ambiguous,
    place_of,
)
from ebbtide.store.names import REPOSITORY_LENGTH_MAX, check_metadata
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.queries import (
    REPOSITORIES,
    RepositoryInfo,
    delete_grants,
    find_repository,
    list_repositories,
    lock_all_repositories,
    read_metadata,
    repositories_named,
    write_metadata,
)
from ebbtide.store.repositories.removal import REMOVALS, RemovalRow, removals_named
from ebbtide.text import shown


@documented
@dataclass(frozen=True, slots=True)
class Catalogued:
    """A repository as it was when it was read."""

    info: RepositoryInfo = field(metadata=INLINE)
    state: LifecycleState


class Catalog(ByName[RepositoryInfo, Catalogued]):
    """The repositories of one store."""

    kind = "repository"
    length_max = REPOSITORY_LENGTH_MAX

    def __init__(
        self,
        metadata: Metadata,
        *,
        trash_time: timedelta,
        ownership: Callable[[RepositoryInfo], Ownership],
    ) -> None:
        """`ownership` returns the Ownership of a repository. A restore, or a change of the date of
        expiry, checks OWNER first, and moves it afterwards."""
        super().__init__(metadata, trash_time, REPOSITORIES)
        self._ownership = ownership

    def list(self, *, include_expired: bool = False) -> list[Catalogued]:
        """Returns all live repositories by name; with `include_expired`, also those in the
        trash."""
        with self._metadata.snapshot() as tx:
            found = [self._found(tx, SeenItem(info)) for info in list_repositories(tx)]
        return [each for each in found if each.state.is_visible(include_expired=include_expired)]

    def page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        amount: int = 1000,
        search: str = "",
        listed: ListFilter = LIVE,
        only: Collection[str] | None = None,
    ) -> builtins.list[Catalogued]:
        """Returns at most `amount` repositories, sorted by name and id.

        Their names begin with `prefix` and contain `search`. They sort behind `after`, which is
        `NAME` or `NAME ID`. Repositories that a run is collecting are left out. `only` are the ids
        to choose from; None chooses from all. Raises InvalidInput `invalid_argument`,
        `invalid_date`.
        """
        row = repositories.c
        conditions = [row.tombstoned_by.is_(None), row.name.contains(search, autoescape=True)]
        if only is not None:
            conditions.append(row.repository_id.in_(only))
        with self._metadata.snapshot() as tx:
            found = self._page(
                tx,
                *conditions,
                listed=listed,
                prefix=prefix,
                after=place_of(after),
                amount=amount,
                name=sa.collate(row.name, "C") if tx.dialect_name == "postgresql" else None,
            )
            return [self._found(tx, SeenItem(info)) for info in found]

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
            found = self._fitting(tx, ref)
            gone = self._in_state(tx, found, LifecycleState.GONE)
        if len(gone) > 1:
            raise ambiguous("repository", ref, [info.repository_id for info in gone])
        return gone[0] if len(gone) == len(found) == 1 else None

    def find_removed(self, ref: str) -> RemovalRow | None:
        """Returns the record of a repository that a run collected whole, by id or name, or None.

        Also None if a repository of that name is still there. Raises Conflict `ref_ambiguous`.
        """
        with self._metadata.snapshot() as tx:
            by_id = REMOVALS.by_id(tx, ref)
            found = removals_named(tx, ref) if by_id is None else [by_id]
            others = self._fitting(tx, ref)
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
            seen = self._locked(tx, ref, self._require)
            delete_grants(tx, seen.row.repository_id)
            return self._expire(tx, seen, tx.now())

    def metadata(self, ref: str) -> dict[str, str]:
        """Returns the metadata of a live repository. Raises NotFound `repository_not_found`."""
        with self._metadata.snapshot() as tx:
            return read_metadata(tx, self._require(tx, ref).row.repository_id)

    def change_metadata(
        self, ref: str, *, added: Mapping[str, str] | None = None, removed: Iterable[str] = ()
    ) -> dict[str, str]:
        """Adds or replaces metadata of a repository, and removes names. Returns the result. A name
        that does not exist is no error.

        Raises NotFound `repository_not_found`, InvalidInput `invalid_argument`.
        """
        with self._metadata.transaction() as tx:
            repository_id = self._locked(tx, ref, self._require).row.repository_id
            changed = read_metadata(tx, repository_id) | dict(added or {})
            for name in removed:
                changed.pop(name, None)
            check_metadata(changed)
            write_metadata(tx, repository_id, changed)
        return changed

    @contextmanager
    def _changing(
        self, ref: str, find: Find[RepositoryInfo]
    ) -> Iterator[tuple[Transaction, SeenItem[RepositoryInfo]]]:
        with self._metadata.snapshot() as tx:
            ownership = self._ownership(find(tx, ref).row)
        ownership.require()
        with self._metadata.transaction() as tx:
            # All of them, so that a name stays free.
            lock_all_repositories(tx)
            yield tx, self._locked(tx, ref, find)
        ownership.announce()

    def _locked(
        self, tx: Transaction, ref: str, find: Find[RepositoryInfo]
    ) -> SeenItem[RepositoryInfo]:
        """Locks a repository, and returns it as `find` finds it afterwards.

        The fence of a run that collects the repository takes the same lock. The repository is read
        again, because it may have changed while this transaction waited.
        """
        repository_id = find(tx, ref).row.repository_id
        tx.lock_repository(repository_id, "exclusive", trashed=True)
        return find(tx, repository_id)

    def _found(self, tx: Transaction, seen: SeenItem[RepositoryInfo]) -> Catalogued:
        return Catalogued(seen.row, self._state(tx, seen))

    def _state(self, tx: Transaction, seen: SeenItem[RepositoryInfo]) -> LifecycleState:
        return seen.row.state_at(tx.now(), trash_time=self._trash_time)

    def _holder(self, tx: Transaction, place: Place, _own_id: str | None) -> str | None:
        return None if find_repository(tx, *place) is None else self.kind

    def _live_named(self, tx: Transaction, name: str) -> RepositoryInfo | None:
        return find_repository(tx, name)

    def _expired_named(self, tx: Transaction, name: str) -> Sequence[RepositoryInfo]:
        return repositories_named(tx, name)

    def missing(self, tx: Transaction, ref: str) -> NotFound:
        hint = "'ebbtide repo list' lists the repositories"
        for info in self._in_state(tx, self._fitting(tx, ref), LifecycleState.TRASHED):
            hint = (
                "it was deleted or has expired; 'ebbtide repo restore "
                f"{info.repository_id}' restores it"
            )
        return NotFound("repository_not_found", f"there is no repository {shown(ref)}: {hint}")
