"""Purges a whole repository: all its own files under the root, and everything in the database.

A transaction deletes the repository from the database, so that nobody finds it any more. Its files
are deleted afterwards. At the end `_ebbtide/OWNER` is closed: it stays, and says that the
repository ended. Until then nobody can make a repository at this root, and a stopped purge knows
that the files still belong to it. Foreign files are kept.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import split_by, texts
from ebbtide.errors import InvalidInput, Refused
from ebbtide.formats.base import FOREIGN
from ebbtide.formats.gone import GoneLayout
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.relations.inventory import classified
from ebbtide.gc.runs import RunFolder
from ebbtide.purge.deleting import Deleted, delete_objects, part_of
from ebbtide.purge.objects import ENTRIES_SCHEMA, Buckets, distinct_ranges, own_entries
from ebbtide.purge.plan import PurgePlan, write_objects
from ebbtide.purge.references import HOLD, Reference
from ebbtide.storage import Storage, open_storage
from ebbtide.store.collecting.references import list_intact
from ebbtide.store.content.layout import OWNER_ADDRESS, PURGES_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import find_commits, list_holds
from ebbtide.store.database.engine import Transaction
from ebbtide.store.embedded import Store
from ebbtide.store.purges.queries import move_records, update_purge
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repositories.owner import close_owner, read_owner
from ebbtide.store.repositories.queries import (
    delete_repository,
    list_repositories,
    lock_all_repositories,
)

RECORDS_DIRECTORY: Final = "purges"
RECORDS_BESIDE: Final = "_ebbtide-purges"
ROUNDS_MAX: Final = 5
"""How often the root is listed again, for files of writes that were under way."""


def records_storage(store: Store) -> Storage:
    """Returns the storage for records of whole repositories: in the store's directory, or below the
    store's own storage. Raises InvalidInput `invalid_argument` if the store has neither."""
    if store.directory is not None:
        return open_storage(str(store.directory / RECORDS_DIRECTORY))
    if store.settings.storage_url is not None:
        return open_storage(f"{store.settings.storage_url.rstrip('/')}/{RECORDS_BESIDE}")
    raise InvalidInput(
        "invalid_argument",
        "records of purges must outlast the repository's storage, and the store has no place of "
        "its own for them: open the store with its directory, or set EBBTIDE_STORAGE_URL",
    )


def gather_whole(
    context: RepositoryContext,
) -> tuple[Generator[pa.Table, None, None], dict[str, int]]:
    """Returns the repository's own files under the root (OBJECTS_SCHEMA), and the number of foreign
    files. Checksums and paths come from the commits that have their data. The number has the key
    FOREIGN, and is complete when all tables are read. Neither includes OWNER. Close the generator:
    it has files on the local disk."""
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
    """Yields the listed files as rows of ENTRIES_SCHEMA without paths."""
    layout = GoneLayout()
    for batch in storage.list():
        for kind, rows in split_by(classified(batch, layout), "kind"):
            if kind == FOREIGN:
                counts[FOREIGN] += rows.num_rows
                continue
            rows = rows.filter(pc.not_equal(rows.column("address"), pa.scalar(OWNER_ADDRESS)))
            yield _without_paths(rows.column("address"), rows.column("size_bytes"))


def _without_paths(addresses: Any, sizes: Any) -> pa.Table:  # arrays or columns
    """Returns files as rows of ENTRIES_SCHEMA without paths."""
    count = len(addresses)
    columns: list[Any] = [
        pa.nulls(count, pa.string()),
        addresses,
        sizes,
        pa.repeat(pa.scalar("", pa.string()), count),
    ]
    return pa.table(columns, schema=ENTRIES_SCHEMA)


def holds_in_the_way(tx: Transaction, repository_id: str) -> list[Reference]:
    """Returns the holds on commits. Nothing else prevents the purge of a whole repository: nothing
    outside it can refer to its files."""
    return [
        Reference(HOLD, hold.commit_id, (hold.reason,), 0, ())
        for hold in list_holds(tx, repository_id)
    ]


def keep_records(context: RepositoryContext, records: Storage) -> None:
    """Copies the files of earlier purges to a storage that outlasts the root, and records the new
    place in the database."""
    for batch in context.storage.list(PURGES_PREFIX):
        for address in texts(batch.column("address")):
            data = context.storage.get(address)
            records.put(address.removeprefix(PURGES_PREFIX), data)
    with context.metadata.transaction() as tx:
        tx.lock_repository(context.repository_id, trashed=True)
        move_records(tx, context.repository_id, lambda purge_id: folder_at(records, purge_id).path)


def outlast(store: Store, context: RepositoryContext) -> None:
    """Copies the records of a repository's purges, if there are any, to a storage that outlasts its
    root. Raises as `records_storage` does."""
    if context.storage.list_prefixes(PURGES_PREFIX):
        keep_records(context, records_storage(store))


def folder_at(records: Storage, purge_id: str) -> RunFolder:
    """Returns the folder of a purge in the store's own storage."""
    return RunFolder(records, f"{purge_id}/")


def close_whole(context: RepositoryContext, lease: Lease, purge_id: str) -> list[Reference]:
    """Deletes the repository from the database. If holds prevent this, changes nothing, and returns
    them. Raises Refused `lease_lost`."""
    with context.metadata.transaction() as tx:
        lock_all_repositories(tx)
        tx.lock_repository(context.repository_id, "exclusive")
        lease.check(tx)
        found = holds_in_the_way(tx, context.repository_id)
        if not found:
            update_purge(tx, purge_id, state="deleting", closed_at=tx.now())
            delete_repository(tx, context.repository_id)
        return found


def delete_whole(
    store: Store, plan: PurgePlan, folder: RunFolder, into: Deleted, *, with_versions: bool
) -> None:
    """Deletes the files of a closed plan, and files that were written to the root since. Then
    closes OWNER. `with_versions` includes versions, also of files that were deleted before.

    Raises Refused `storage_foreign` if the root belongs to another repository by now. If OWNER is
    closed or missing, an earlier attempt has finished, and nothing is deleted.
    """
    storage = open_storage(plan.storage_url)
    is_ours = _require_ours(store, storage, plan)
    check = _Check(store, storage, plan)
    delete = partial(
        delete_objects, storage, folder, check=check, into=into, with_versions=with_versions
    )
    delete(plan.parts)
    parts = _left_behind(folder)
    delete(parts)
    for number in range(len(parts), len(parts) + ROUNDS_MAX):
        if not is_ours or not into.is_complete:
            return
        left = _left(storage, hidden=with_versions)
        found = write_objects(folder, left, stem=f"objects/left-{number:03d}")
        if not found:
            break
        delete(found)
    if into.is_complete:
        identity = plan.identity
        close_owner(storage, store_id=identity.store_id, repository_id=identity.repository_id)


def _left_behind(folder: RunFolder) -> list[Part]:
    """Returns the parts that earlier attempts wrote for files that are not in the plan."""
    names = [name for name in folder.names("objects") if name.startswith("objects/left-")]
    return [part_of(folder, name, read_part(folder, name)) for name in names]


def _left(storage: Storage, *, hidden: bool) -> Iterator[pa.Table]:
    """Yields the repository's own files (OBJECTS_SCHEMA). `hidden` includes those of which the
    storage keeps only versions."""
    with Buckets(0) as buckets:
        for table in _listed(storage, {FOREIGN: 0}):
            buckets.add(table)
        for names in storage.hidden("") if hidden else ():
            buckets.add(_hidden_rows(names))
        yield from buckets.objects()


def _hidden_rows(names: list[str]) -> pa.Table:
    """Returns the repository's own files among `names`, as rows of ENTRIES_SCHEMA without paths.
    Their sizes are not known, and 0 stands for them."""
    addresses = pa.array(names, pa.string())
    is_own = pc.and_(
        pc.not_equal(GoneLayout().classify(addresses), pa.scalar(FOREIGN)),
        pc.not_equal(addresses, pa.scalar(OWNER_ADDRESS)),
    )
    own = addresses.filter(is_own)
    return _without_paths(own, pa.repeat(pa.scalar(0, pa.int64()), len(own)))


class _Check:
    """Checks before each part that the root still belongs to the purged repository."""

    def __init__(self, store: Store, storage: Storage, plan: PurgePlan) -> None:
        self._store = store
        self._storage = storage
        self._plan = plan

    def __call__(self) -> None:
        if not _require_ours(self._store, self._storage, self._plan):
            raise Refused(
                "storage_foreign",
                f"{self._storage.url}/{OWNER_ADDRESS} is missing or closed: nothing more is "
                "deleted there",
            )


def _require_ours(store: Store, storage: Storage, plan: PurgePlan) -> bool:
    """Whether OWNER is there, belongs to the purged repository, and is not closed. Raises Refused
    `storage_foreign` if the root belongs to another repository."""
    with store.metadata.snapshot() as tx:
        taken = any(info.storage_url == plan.storage_url for info in list_repositories(tx))
    owner = read_owner(storage)
    wanted = (plan.identity.store_id, plan.identity.repository_id)
    if taken or (owner is not None and (owner.store_id, owner.repository_id) != wanted):
        raise Refused(
            "storage_foreign",
            f"{storage.url} belongs to another repository now: nothing is deleted there",
        )
    return owner is not None and not owner.closed
