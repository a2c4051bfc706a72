"""What tests of a repository ask and do often."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import TREES_PREFIX
from ebbtide.store.database.schema import commits, pending, purged, reflog
from ebbtide.store.repository import Repository
from tests.support.collections import raises
from tests.support.faulty import FailNth, FaultyStorage, OncePut, with_storage


def contents(lake: Repository, ref: str) -> dict[str, bytes]:
    return {entry.path: lake.objects.get(ref, entry.path) for entry in lake.objects.walk(ref)}


def every_file(lake: Repository, prefix: str = "") -> set[str]:
    return {
        str(address)
        for batch in lake.storage.list(prefix)
        for address in batch.column("address").to_pylist()
    }


def rows(lake: Repository, table: sa.Table) -> list[tuple[Any, ...]]:
    with lake.context.metadata.snapshot() as tx:
        return sorted(map(tuple, tx.execute(sa.select(table))), key=repr)


def count(lake: Repository, table: sa.Table) -> int:
    return len(rows(lake, table))


def pending_addresses(lake: Repository) -> list[str]:
    with lake.context.metadata.snapshot() as tx:
        return list(tx.execute(sa.select(pending.c.address)).scalars())


def reflog_of(lake: Repository) -> list[tuple[str, str, str]]:
    """The earlier targets of refs, the latest last."""
    columns = (reflog.c.kind, reflog.c.name, reflog.c.commit_id)
    with lake.context.metadata.snapshot() as tx:
        rows = tx.execute(sa.select(*columns).order_by(reflog.c.entry_id))
        return [(row.kind, row.name, row.commit_id) for row in rows]


def save(lake: Repository, path: str, branch: str = "main") -> str:
    lake.objects.put(branch, path, path.encode())
    return lake.commits.commit(branch, path).commit_id


def save_files(lake: Repository, branch: str = "main", /, **files: bytes | None) -> str:
    """Commits files, and deletions (None)."""
    for path, data in files.items():
        if data is None:
            lake.objects.delete(branch, path)
        else:
            lake.objects.put(branch, path, data)
    return lake.commits.commit(branch, " ".join(files)).commit_id


def seal(lake: Repository, branch: str = "main") -> None:
    """Makes a commit that fails when it has sealed what is staged."""
    later = lake.context.clock.host_now() + timedelta(days=1)
    with raises("invalid_date"):
        lake.commits.commit(branch, "", date=later)


def tombstone(lake: Repository, commit_id: str) -> None:
    with lake.context.metadata.transaction() as tx:
        tx.lock_repository(lake.info.repository_id, "exclusive")
        mine = commits.c.commit_id == commit_id
        tx.execute(sa.update(commits).where(mine).values(tombstoned_by="run7"))


def mark_purged(lake: Repository, address: str) -> None:
    values = {"repository_id": lake.info.repository_id, "address": address, "purge_id": "p"}
    with lake.context.metadata.transaction() as tx:
        tx.execute(sa.insert(purged).values(**values, purged_at=tx.now()))


def link(lake: Repository, branch: str, path: str) -> Entry:
    """Link an upload past the program."""
    given = lake.addresses.get(branch, path)
    lake.storage.put(given.address, b"uploaded")
    return lake.addresses.link(branch, path, given.token)


def meanwhile(lake: Repository, action: Callable[[], object], at: str = TREES_PREFIX) -> Repository:
    """The repository, whose next operation calls `action` before its first file at `at`."""
    return with_storage(lake, FaultyStorage(lake.storage, before=OncePut(at, action)))


def each_failure(
    lake: Repository,
    operation: Callable[[Repository], object],
    check: Callable[[], object] = lambda: None,
) -> int:
    """Does the operation with its n-th call of the storage failing, before or after the call, for
    n = 0, 1, … until it passes. Returns n. What a failed operation has written is deleted, nothing
    stays registered, and `check` passes."""
    before = every_file(lake)
    for nth in range(200):
        for when in ("before", "after"):
            hook = FailNth(nth)
            faulty = with_storage(lake, FaultyStorage(lake.storage, **{when: hook}))
            try:
                operation(faulty)
            except Failed as error:
                assert error.kind == "storage_error"
                assert every_file(lake) == before
                assert pending_addresses(lake) == []
                check()
            else:
                assert hook.count <= nth
                return nth
    raise AssertionError("it never passed")
