"""Purging a whole repository: all files under its root that are ours, and all that is known of it.

The transaction drops the repository from the database, so that nobody finds it any more; the files
go after it. `_ebbtide/OWNER` goes last: as long as it is there, nobody can make a repository at the
root, and a purge that was stopped knows that the files are still its own. What does not look like
the store's own is kept.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by, texts
from ebbtide.errors import InvalidInput, Refused
from ebbtide.formats.base import FOREIGN
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.relations.inventory import classified
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.deleting import Deleted, delete_objects, part_of
from ebbtide.purge.objects import ENTRIES_SCHEMA, Buckets, distinct_ranges, own_entries
from ebbtide.purge.plan import PurgePlan, write_objects
from ebbtide.purge.references import HOLD, Reference
from ebbtide.storage import Storage, open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS, PURGES_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.embedded import Store
from ebbtide.store.leases import Lease
from ebbtide.store.metadata.commits import find_commits, list_holds
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.purges import move_records, update_purge
from ebbtide.store.metadata.references import list_intact
from ebbtide.store.metadata.repositories import (
    delete_repository,
    list_repositories,
    lock_all_repositories,
)
from ebbtide.store.owner import close_owner, read_owner

RECORDS_DIRECTORY: Final = "purges"
RECORDS_BESIDE: Final = "_ebbtide-purges"
ROUNDS_MAX: Final = 5
"""How often the root is listed again for what writes that were under way have left in it."""


def records_storage(store: Store) -> Storage:
    """Where the records of whole repositories are kept: in the store's directory, or below the
    store's own storage. Raises InvalidInput `invalid_argument` for a store that has neither."""
    if store.directory is not None:
        return open_storage(str(store.directory / RECORDS_DIRECTORY))
    if store.settings.storage_url is not None:
        return open_storage(f"{store.settings.storage_url.rstrip('/')}/{RECORDS_BESIDE}")
    raise InvalidInput(
        "invalid_argument",
        "the record of the purge of a whole repository outlasts its storage, and the store has no "
        "place of its own for it: open it with its directory, or set EBBTIDE_STORAGE_URL",
    )


def gather_whole(
    context: RepositoryContext,
) -> tuple[Generator[pa.Table, None, None], dict[str, int]]:
    """All files under the root that look like the store's own (OBJECTS_SCHEMA), with checksums and
    paths by the commits whose data is there; and, once these are read, how many others there are
    (key FOREIGN). OWNER is in neither. The first is to be closed, as that of `gather`."""
    counts = {FOREIGN: 0}
    with context.metadata.snapshot() as tx:
        ids = [commit.commit_id for commit in list_intact(tx, context.repository_id)]
        commits = list(find_commits(tx, context.repository_id, ids).values())
    ranges = distinct_ranges(context, commits, damaged=True)

    def tables() -> Generator[pa.Table, None, None]:
        with Buckets(2 * sum(info.entry_count for info in ranges)) as buckets:
            for table in _listed(context.storage, counts):
                buckets.add(table)
            for info in ranges:
                buckets.add(own_entries(context, info, damaged=True))
            yield from buckets.objects(listed=True)

    return tables(), counts


def _listed(storage: Storage, counts: dict[str, int]) -> Iterator[pa.Table]:
    """What is listed, as rows of ENTRIES_SCHEMA without paths."""
    layout = EmbeddedLayout()
    for batch in storage.list():
        for kind, rows in split_by(classified(batch, layout), "kind"):
            if kind == FOREIGN:
                counts[FOREIGN] += rows.num_rows
                continue
            rows = rows.filter(pc.not_equal(rows.column("address"), pa.scalar(OWNER_ADDRESS)))
            count = rows.num_rows
            columns: list[Any] = [
                pa.nulls(count, pa.string()),
                rows.column("address"),
                rows.column("size_bytes"),
                pa.repeat(pa.scalar("", pa.string()), count),
            ]
            yield pa.table(columns, schema=ENTRIES_SCHEMA)


def holds_in_the_way(tx: Transaction, repository_id: str) -> list[Reference]:
    """The holds on commits: nothing else can refer to what lies under a root."""
    return [
        Reference(HOLD, hold.commit_id, (hold.reason,), 0, ())
        for hold in list_holds(tx, repository_id)
    ]


def keep_records(context: RepositoryContext, records: Storage) -> None:
    """Copy the files of earlier purges to where they outlast the root, and say so in the
    database."""
    for batch in context.storage.list(PURGES_PREFIX):
        for address in texts(batch.column("address")):
            data = context.storage.get(address)
            records.put(address.removeprefix(PURGES_PREFIX), data)
    with context.metadata.transaction() as tx:
        tx.lock_repository(context.repository_id, trashed=True)
        move_records(tx, context.repository_id, lambda purge_id: folder_at(records, purge_id).path)


def outlast(store: Store, context: RepositoryContext) -> None:
    """Keep the records of a repository's purges, if there are any, where they outlast its root.
    Raises as `records_storage`."""
    if context.storage.list_prefixes(PURGES_PREFIX):
        keep_records(context, records_storage(store))


def folder_at(records: Storage, purge_id: str) -> RunFolder:
    """The folder of a purge in the store's own place."""
    return RunFolder(records, f"{purge_id}/")


def close_whole(context: RepositoryContext, lease: Lease, purge_id: str) -> list[Reference]:
    """Drop the repository from the database; or, if anything is in the way, change nothing and say
    what. Raises Refused `lease_lost`."""
    with context.metadata.transaction() as tx:
        lock_all_repositories(tx)
        tx.lock_repository(context.repository_id, "exclusive")
        lease.check(tx)
        found = holds_in_the_way(tx, context.repository_id)
        if not found:
            update_purge(tx, purge_id, state="deleting", closed_at=tx.now())
            delete_repository(tx, context.repository_id)
        return found


def delete_whole(store: Store, plan: PurgePlan, folder: RunFolder, into: Deleted) -> None:
    """Delete the files of a plan that was closed and what came to the root meanwhile; then OWNER
    says that the repository ended.

    Raises Refused `storage_foreign` when the root is somebody else's by now. Where OWNER says so
    already, or is not there, nothing is deleted: an earlier attempt had come to its end.
    """
    storage = open_storage(plan.storage_url)
    is_ours = _require_ours(store, storage, plan)
    check = _Check(store, storage, plan)
    delete_objects(storage, folder, plan.parts, check=check, into=into)
    parts = _left_behind(folder)
    delete_objects(storage, folder, parts, check=check, into=into)
    for number in range(len(parts), len(parts) + ROUNDS_MAX):
        if not is_ours or not into.is_complete:
            return
        found = write_objects(folder, _left(storage), stem=f"objects/left-{number:03d}")
        if not found:
            break
        delete_objects(storage, folder, found, check=check, into=into)
    if into.is_complete:
        identity = plan.identity
        close_owner(storage, store_id=identity.store_id, repository_id=identity.repository_id)


def _left_behind(folder: RunFolder) -> list[Part]:
    """Parts of what earlier attempts found in later rounds."""
    names = [name for name in folder.names("objects") if name.startswith("objects/left-")]
    return [part_of(folder, name, read_part(folder, name)) for name in names]


def _left(storage: Storage) -> Iterator[pa.Table]:
    with Buckets(0) as buckets:
        for table in _listed(storage, {FOREIGN: 0}):
            buckets.add(table)
        yield from buckets.objects()


class _Check:
    """Asked before each part: whether the root is still what was purged."""

    def __init__(self, store: Store, storage: Storage, plan: PurgePlan) -> None:
        self._store = store
        self._storage = storage
        self._plan = plan

    def __call__(self) -> None:
        if not _require_ours(self._store, self._storage, self._plan):
            raise Refused(
                "storage_foreign",
                f"{self._storage.url}/{OWNER_ADDRESS} went away: nothing more is deleted there",
            )


def _require_ours(store: Store, storage: Storage, plan: PurgePlan) -> bool:
    """Whether OWNER is there and of the repository that was purged. Raises Refused
    `storage_foreign` when it is another's."""
    with store.metadata.snapshot() as tx:
        taken = any(info.storage_url == plan.storage_url for info in list_repositories(tx))
    owner = read_owner(storage)
    wanted = (plan.identity.store_id, plan.identity.repository_id)
    if taken or (owner is not None and (owner.store_id, owner.repository_id) != wanted):
        raise Refused(
            "storage_foreign",
            f"{storage.url} belongs to another repository by now: nothing is deleted there",
        )
    return owner is not None and not owner.closed
