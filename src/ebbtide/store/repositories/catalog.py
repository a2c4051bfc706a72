"""The repositories of a store: finding and listing them, and their lifecycle.

Gone repositories too: the functions below the class work in a transaction of their caller. All
transactions of a run are therefore in one place (`formats/gone.py`). Not for: making a repository
(`new_repositories`), or the content of one.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import INLINE, documented
from ebbtide.errors import NotFound, Refused, UnknownRepository
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.settings import Settings
from ebbtide.store.database.dialects import by_code_points
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import (
    branches,
    commits,
    leased_addresses,
    pending,
    readings,
    removals,
    repositories,
    schedules,
    upload_tokens,
)
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
from ebbtide.store.repositories.repository_rows import (
    REPOSITORIES,
    RepositoryInfo,
    delete_grants,
    find_repository,
    list_repositories,
    lock_all_repositories,
    read_metadata,
    repositories_named,
    repository_by_id,
    update_repository,
    write_metadata,
)
from ebbtide.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalRow:
    """A gone repository whose storage run `run_id` emptied, with the run's `report` as JSON.
    `finished_at` is None until OWNER is closed and the repository's rows are deleted."""

    repository_id: str
    run_id: str
    name: str
    storage_url: str
    report: Mapping[str, Any]  # JSON
    emptied_at: datetime
    finished_at: datetime | None = None


REMOVALS: Final = Rows(removals, RemovalRow, removals.c.repository_id)


def removals_named(tx: Transaction, name: str) -> list[RemovalRow]:
    """Returns the records of all repositories that had this name, the newest first."""
    query = REMOVALS.select(removals.c.name == name)
    return REMOVALS.all(tx, query.order_by(removals.c.emptied_at.desc()))


def finish_removal(tx: Transaction, repository_id: str) -> None:
    """Records that the removal is finished."""
    REMOVALS.update(tx, repository_id, finished_at=tx.now())


def require_removable(tx: Transaction, repository_id: str, promised: Settings) -> None:
    """Raises Refused unless the repository is gone, and all promises of it have ended.

    Promises are leases, writes, addresses for uploads, and readings. The database's clock decides.
    Raises Refused `repository_not_gone`, Refused `repository_in_use` with the time until which to
    wait, and NotFound `repository_not_found`.
    """
    info = repository_by_id(tx, repository_id)
    if info is None:
        raise UnknownRepository("repository_not_found", f"no repository has the id {repository_id}")
    now = tx.now()
    if info.expires_at is None or (
        info.state_at(now, trash_time=promised.trash_time) is not LifecycleState.GONE
    ):
        raise Refused(
            "repository_not_gone",
            f"repository {info.name} ({repository_id}) is not gone: it was restored, or its "
            "time in the trash is not over",
        )
    until = _ends(tx, info, info.expires_at + promised.lease_ttl)
    what = max(until, key=lambda each: until[each])
    if until[what] > now:
        raise Refused(
            "repository_in_use",
            f"repository {info.name} ({repository_id}) is gone, but {what} may last until "
            f"{until[what]:%Y-%m-%d %H:%M:%S} UTC: collect it then",
        )


def _ends(tx: Transaction, info: RepositoryInfo, leased: datetime) -> dict[str, datetime]:
    """Returns the latest end of each kind of promise, by the kind's name in messages."""
    columns: dict[str, sa.Column[Any]] = {  # all of type Timestamp
        "a write in progress": pending.c.ends_at,
        "an address for an upload": upload_tokens.c.expires_at,
        "a list of uncommitted files": readings.c.ends_at,
        "a lease on a commit": commits.c.leased_until,
        "a signed URL": leased_addresses.c.leased_until,
    }
    found = {"a lease from before it expired": leased}
    for what, column in columns.items():
        last = tx.execute(
            sa.select(sa.func.max(column)).where(column.table.c.repository_id == info.repository_id)
        ).scalar_one()
        if last is not None:
            found[what] = last
    return found


def close_repository(tx: Transaction, repository_id: str, *, run_id: str) -> None:
    """Closes a repository for good: afterwards it cannot be restored, whatever a clock or setting
    says.

    Its branches are deleted, so that a process that still has it open finds no branch to write to.
    Its schedule is deleted too.
    """
    update_repository(tx, repository_id, tombstoned_by=run_id)
    tx.execute(sa.delete(branches).where(branches.c.repository_id == repository_id))
    tx.execute(sa.delete(schedules).where(schedules.c.repository_key == repository_id))


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
                name=by_code_points(row.name),
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
        return UnknownRepository(
            "repository_not_found", f"there is no repository {shown(ref)}: {hint}"
        )
