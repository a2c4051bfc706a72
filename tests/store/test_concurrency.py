"""Real threads that wait for each other, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict, Refused
from ebbtide.ids import new_id
from ebbtide.store.content.layout import TREES_PREFIX
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import owner_epochs, staged
from ebbtide.store.embedded import Store
from ebbtide.store.objects.objects import Readable
from ebbtide.store.refs.ref_rows import require_branch, update_branch
from ebbtide.store.repositories.owner import EPOCHS_BEHIND_MAX, Ownership, read_owner
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import Change, write_staged
from tests.support.faulty import FaultyStorage, OncePut, with_storage
from tests.support.lakes import rows
from tests.support.locks import SECONDS_MAX, waits_for_a_lock


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_staging_the_same_paths_in_another_order_makes_no_deadlock(
    repository: Repository,
) -> None:
    context = repository.context
    changes: dict[str, Change] = {f"{number:03}": None for number in range(100)}
    backwards = dict(reversed(changes.items()))

    def stage(mine: dict[str, Change]) -> None:
        for _ in range(10):
            with context.metadata.transaction() as tx:
                write_staged(tx, context.repository_id, "token", mine, lease_ttl=timedelta(hours=1))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(stage, mine) for mine in (changes, backwards)]:
            future.result()


MAKERS: dict[str, Callable[[Repository], object]] = {
    "create a branch": lambda lake: lake.branches.create("dev", "main"),
    "create a tag": lambda lake: lake.tags.create("v1", "main"),
    "restore a branch": lambda lake: lake.branches.restore("old"),
    "restore a tag": lambda lake: lake.tags.restore("v0"),
    "give a commit up": lambda lake: lake.give_up(lake.commits.resolve("main~1"), ""),
    "make a project": lambda lake: lake.projects.create("new"),
    "make a collection": lambda lake: lake.collections.create(
        lake.projects.find("p").project_id, "new"
    ),
    "rename a collection": lambda lake: lake.collections.update(
        lake.collections.find("p/c").collection_id, name="renamed"
    ),
    "trash a collection": lambda lake: lake.collections.delete(
        lake.collections.find("p/new").collection_id
    ),
    "trash a project": lambda lake: lake.projects.delete(lake.projects.find("p").project_id),
}


@pytest.mark.twins
def test_whoever_takes_a_name_waits_for_all_who_change_refs(repository: Repository) -> None:
    """Names are unique only by this: nothing in the tables says so."""
    repository.commits.commit("main", "", allow_empty=True)
    repository.branches.create("old", "main")
    repository.tags.create("v0", "main")
    repository.branches.delete("old")
    repository.tags.delete("v0")
    repository.collections.create(repository.projects.create("p").project_id, "c")
    context = repository.context
    for name, maker in MAKERS.items():
        with ThreadPoolExecutor(1) as pool:
            with context.metadata.transaction() as tx:
                tx.lock_repository(context.repository_id, "share")
                made = pool.submit(maker, repository)
                assert waits_for_a_lock(context.metadata, made), name
            made.result(timeout=20)


OPERATIONS: dict[str, Callable[[Repository], object]] = {
    "commit": lambda lake: lake.commits.commit("main", "more"),
    "delete": lambda lake: lake.objects.delete("main", "a"),
    "move": lambda lake: lake.objects.move("main", "b", "a"),
    "put": lambda lake: lake.objects.put("main", "c", b"c"),
    "reset": lambda lake: lake.commits.reset("main"),
}


@pytest.mark.twins
def test_they_wait_for_the_branch(repository: Repository) -> None:
    context = repository.context
    for name, operation in OPERATIONS.items():
        repository.objects.put("main", "a", b"a")
        with ThreadPoolExecutor(1) as pool:
            with context.metadata.transaction() as tx:
                require_branch(tx, context.repository_id, "main", lock="exclusive")
                begun = pool.submit(operation, repository)
                assert waits_for_a_lock(context.metadata, begun), name
            begun.result(timeout=SECONDS_MAX)


@pytest.mark.twins
def test_an_upload_that_waited_for_a_commit_is_not_in_what_that_sealed(
    repository: Repository,
) -> None:
    """The commit would drop it unpublished."""
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            branch = require_branch(tx, context.repository_id, "main", lock="exclusive")
            begun = pool.submit(repository.objects.put, "main", "a", b"a")
            assert waits_for_a_lock(context.metadata, begun)
            tokens: dict[str, Any] = {"staging_token": "new", "sealed_tokens": branch.tokens}
            update_branch(tx, context.repository_id, branch.branch_id, **tokens)
        begun.result(timeout=SECONDS_MAX)
    assert [row[1:3] for row in rows(repository, staged)] == [("new", "a")]


@pytest.mark.twins
def test_a_commit_looks_at_the_branch_again_once_it_has_it(repository: Repository) -> None:
    """Its tree is written, and another transaction moves the branch before it is published."""
    other = repository.commits.commit("main", "other", allow_empty=True)
    repository.commits.commit("main", "head", allow_empty=True)
    repository.objects.put("main", "a", b"a")
    context = repository.context
    is_written, is_locked = Event(), Event()

    def wait() -> None:
        is_written.set()
        assert is_locked.wait(SECONDS_MAX)

    hook = OncePut(TREES_PREFIX, wait)
    slow = with_storage(repository, FaultyStorage(repository.storage, before=hook))
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(slow.commits.commit, "main", "more")
        assert is_written.wait(SECONDS_MAX)
        with context.metadata.transaction() as tx:
            branch = require_branch(tx, context.repository_id, "main", lock="exclusive")
            update_branch(tx, context.repository_id, branch.branch_id, commit_id=other.commit_id)
            is_locked.set()
            assert waits_for_a_lock(context.metadata, begun)
        with pytest.raises(Conflict) as moved:
            begun.result(timeout=SECONDS_MAX)
    assert moved.value.kind == "branch_moved"


def copy_across(source: Repository, target: Repository) -> object:
    return target.objects.put_copy(
        "main", "copy", source.objects.open("main", "a"), content_type=None, metadata={}
    )


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_copies_that_cross_make_no_deadlock(
    store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy has its own repository shared, and asks for the other one, for which a fence waits.
    PostgreSQL gives a shared lock beside shared ones, whoever waits: so nobody waits in a circle.
    On SQLite each transaction that writes runs alone."""
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    for lake in (repository, other):
        lake.objects.put("main", "a", lake.info.name.encode())
    original = Readable.require_kept
    met, may_go_on = Barrier(3), Event()

    def require_kept(self: Readable, tx: Transaction) -> None:
        met.wait(SECONDS_MAX)
        assert may_go_on.wait(SECONDS_MAX)
        original(self, tx)

    def fence(lake: Repository) -> None:
        with store.metadata.transaction() as tx:
            tx.lock_repository(lake.info.repository_id, "exclusive")

    monkeypatch.setattr(Readable, "require_kept", require_kept)
    with ThreadPoolExecutor(4) as pool:
        begun: list[Future[object]] = [
            pool.submit(copy_across, repository, other),
            pool.submit(copy_across, other, repository),
        ]
        met.wait(SECONDS_MAX)
        for count, lake in enumerate((repository, other), 1):
            begun.append(pool.submit(fence, lake))
            assert waits_for_a_lock(store.metadata, begun[-1], count=count)
        may_go_on.set()
        for each in begun:
            each.result(SECONDS_MAX)
    assert repository.objects.get("main", "copy") == b"other"
    assert other.objects.get("main", "copy") == b"lake"


PROCESSES: Final = 4
MOVES: Final = 10


@pytest.mark.twins
def test_all_of_them_own_the_storage(store: Store, tmp_path: Path) -> None:
    context = store.create_repository("lake", storage_url=str(tmp_path / "root")).context
    processes = [
        Ownership(
            context.metadata,
            store_id=store.store_id,
            repository_id=context.repository_id,
            storage=context.storage,
            host_now=store.clock.host_now,
        )
        for _ in range(PROCESSES)
    ]

    def move(ownership: Ownership) -> None:
        for _ in range(MOVES):
            ownership.move()

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(move, processes))
    with context.metadata.snapshot() as tx:
        epochs = tx.execute(sa.select(owner_epochs.c.epoch)).scalars().all()
    # Each move has a pair of its own.
    assert sorted(epochs) == list(range(1, 2 + PROCESSES * MOVES)), (
        "each move has a pair of its own"
    )
    found = read_owner(context.storage)
    assert found is not None
    assert found.pair.epoch > MOVES
    for ownership in (*processes, context.ownership):
        assert ownership.check().pair == found.pair


def test_an_owner_that_others_move_while_it_is_checked(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again: only a file that stays behind is of a backup."""
    ownership, old = repository.context.ownership, repository.context.ownership.check()
    for _ in range(EPOCHS_BEHIND_MAX + 2):
        ownership.move()
    now = ownership.check()
    reads = iter([old, now, now])
    monkeypatch.setattr(Ownership, "_read", lambda _: next(reads))
    assert ownership.check().pair == now.pair
    assert next(reads, None) is None
    monkeypatch.setattr(Ownership, "_read", lambda _: old)
    with pytest.raises(Refused, match="the storage was restored from a backup"):
        ownership.check()
