"""Deletes the closed objects, and records the outcome of each address. Closes whole repositories.

It handles one part of the plan at a time. An address with a recorded outcome other than `failed` is
not tried again. A purge that was stopped, or had failed deletes, therefore continues from there.

A bucket with versions keeps the bytes of deleted objects. If the request says so, the versions are
deleted too: those of the objects, and of their copies in the quarantines of runs, also of copies
that were deleted before.

A whole repository is deleted from the database first, so that nobody finds it any more. Then its
own files are deleted. At the end `_ebbtide/OWNER` is closed: it stays, and says that the repository
ended. Until then nobody can make a repository at this root, and a stopped purge knows that the
files still belong to it. Foreign files are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts, without
from ebbtide.errors import InvalidInput, Refused
from ebbtide.gc.deletes import ended, remove_versions, with_outcomes
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.quarantine import delete_copies, hidden_copies
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import advance
from ebbtide.purge.objects import LEFT_STEM, distinct_ranges, gather_files, read_objects
from ebbtide.purge.plan import DELETED_SCHEMA, PurgePlan, outcome_counts
from ebbtide.purge.references import HOLD, Reference
from ebbtide.storage import Storage, open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS, PURGES_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import find_commits, list_holds
from ebbtide.store.database.engine import Transaction
from ebbtide.store.embedded import Store
from ebbtide.store.gc.references import list_intact
from ebbtide.store.purge_records import PURGES, move_records
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repositories.owner import close_owner, read_owner
from ebbtide.store.repositories.repository_rows import (
    delete_repository,
    list_repositories,
    lock_all_repositories,
)

RECORDS_DIRECTORY: Final = "purges"
RECORDS_BESIDE: Final = "_ebbtide-purges"
ROUNDS_MAX: Final = 5
"""How often the root is listed again, for files of writes that were under way."""


@dataclass(slots=True)
class Deleted:
    """The outcomes of a purge: the parts that contain them (DELETED_SCHEMA), and the number of each
    outcome."""

    parts: list[Part] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def is_complete(self) -> bool:
        """Whether no delete failed."""
        return not self.outcomes["failed"]

    def add(self, folder: RunFolder, name: str, table: pa.Table) -> None:
        """Writes the outcomes of one part of the plan as part `name`, and adds them."""
        answer = PartRows()
        answer.wrote(folder, name, table, durable=True)
        self.parts += answer.parts()
        self.outcomes.update(outcome_counts(table))


def delete_objects(
    storage: Storage,
    folder: RunFolder,
    parts: Sequence[Part],
    *,
    check: Callable[[], None],
    into: Deleted,
    with_versions: bool = False,
) -> None:
    """Deletes the objects of the plan's `parts`, except those that earlier attempts settled.

    `check` is called before each part. It raises an error if the purge must not continue.
    `with_versions` includes versions. An object of which a version is left is `failed`.
    """
    done = set(folder.names("deleted"))
    hidden = _hidden_copies(storage, folder, parts) if with_versions else None
    for part, objects in zip(parts, read_objects(folder, parts), strict=True):
        name = f"deleted/{part.name.rpartition('/')[2]}"
        earlier = read_part(folder, name).cast(DELETED_SCHEMA) if name in done else None
        into.add(folder, name, _delete_part(storage, objects, earlier, check, hidden))
        advance(part.rows)


def _hidden_copies(
    storage: Storage, folder: RunFolder, parts: Sequence[Part]
) -> dict[str, list[str]]:
    """Returns the files that were in quarantines, and of which the storage keeps versions, by the
    addresses of `parts`."""
    objects = read_objects(folder, parts)
    wanted = {address for table in objects for address in texts(table.column("address"))}
    found: dict[str, list[str]] = defaultdict(list)
    for copies in hidden_copies(storage):
        for name, address in copies.items():
            if address in wanted:
                found[address].append(name)
    return found


def _delete_part(
    storage: Storage,
    objects: pa.Table,
    earlier: pa.Table | None,
    check: Callable[[], None],
    hidden: Mapping[str, Sequence[str]] | None,
) -> pa.Table:
    """Returns the outcomes of a part. With `hidden`, the result of `_hidden_copies`, versions are
    deleted too."""
    settled = DELETED_SCHEMA.empty_table()
    if earlier is not None:
        settled = earlier.filter(pc.not_equal(earlier.column("outcome"), pa.scalar("failed")))
    left = without(objects, "address", settled)
    if not left.num_rows:
        return settled
    check()
    addresses = texts(left.column("address"))
    kept = delete_copies(storage, addresses, with_versions=hidden is not None)
    outcomes = ended(storage.delete(addresses))
    if hidden is not None:
        copies = {name: address for address in addresses for name in hidden.get(address, ())}
        for each in storage.delete_versions(list(copies)):
            if each.outcome == "failed":
                kept[copies[each.address]] = each.error or "failed"
        outcomes = remove_versions(storage, addresses, outcomes)
    outcomes = [
        ("failed", kept[address]) if address in kept else outcome
        for address, outcome in zip(addresses, outcomes, strict=True)
    ]
    table = with_outcomes(left, outcomes, DELETED_SCHEMA)
    return pa.concat_tables([settled, table]).sort_by("address")


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


def gather_whole(context: RepositoryContext, folder: RunFolder) -> tuple[list[Part], int]:
    """Writes the repository's own files, as `gather_files` does, with checksums and paths from the
    commits that have their data."""
    with context.metadata.snapshot() as tx:
        ids = [commit.commit_id for commit in list_intact(tx, context.repository_id)]
        commits = find_commits(tx, context.repository_id, ids).values()
    ranges = distinct_ranges(context, commits, damaged=True)
    return gather_files(context.storage, folder, ranges=ranges)


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
        move_records(
            tx,
            context.repository_id,
            lambda purge_id: RunFolder(records, f"{purge_id}/").path,
        )


def outlast(store: Store, context: RepositoryContext) -> None:
    """Copies the records of a repository's purges, if there are any, to a storage that outlasts its
    root. Raises as `records_storage` does."""
    if context.storage.list_prefixes(PURGES_PREFIX):
        keep_records(context, records_storage(store))


def close_whole(context: RepositoryContext, lease: Lease, purge_id: str) -> list[Reference]:
    """Deletes the repository from the database. If holds prevent this, changes nothing, and returns
    them. Raises Refused `lease_lost`."""
    with context.metadata.transaction() as tx:
        lock_all_repositories(tx)
        tx.lock_repository(context.repository_id, "exclusive")
        lease.check(tx)
        found = holds_in_the_way(tx, context.repository_id)
        if not found:
            PURGES.update(tx, purge_id, state="deleting", closed_at=tx.now())
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
    is_ours = _is_ours(store, storage, plan)

    def check() -> None:
        if not _is_ours(store, storage, plan):
            raise Refused(
                "storage_foreign",
                f"{storage.url}/{OWNER_ADDRESS} is missing or closed: nothing more is deleted "
                "there",
            )

    delete = partial(
        delete_objects, storage, folder, check=check, into=into, with_versions=with_versions
    )
    delete(plan.parts)
    names = [name for name in folder.names("objects") if name.startswith(LEFT_STEM)]
    parts = [Part(name, read_part(folder, name).num_rows, 0, None) for name in names]
    delete(parts)
    for number in range(len(parts), len(parts) + ROUNDS_MAX):
        if not is_ours or not into.is_complete:
            return
        stem = f"{LEFT_STEM}{number:03d}"
        found, _ = gather_files(storage, folder, stem=stem, hidden=with_versions)
        if not found:
            break
        delete(found)
    if into.is_complete:
        identity = plan.identity
        close_owner(storage, store_id=identity.store_id, repository_id=identity.repository_id)


def _is_ours(store: Store, storage: Storage, plan: PurgePlan) -> bool:
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
