"""OWNER changes only from the content that was checked, whoever slept in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import Conflict, Failed, Refused
from ebbtide.storage import Storage
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.owner import (
    OWNER_ADDRESS,
    OwnerFile,
    Ownership,
    close_owner,
    read_owner,
)
from ebbtide.store.repository import Repository
from tests.support.faulty import FaultyStorage, OncePut
from tests.support.purging import purge, save


@pytest.fixture
def lake(repository: Repository) -> Repository:
    save(repository, "a")
    return repository


def ownership(store: Store, lake: Repository, storage: Storage) -> Ownership:
    """That of another process, which sees the storage so."""
    context = lake.context
    return Ownership(
        context.metadata,
        store_id=store.store_id,
        repository_id=context.repository_id,
        storage=storage,
        host_now=context.clock.host_now,
    )


def sleeping(lake: Repository, meanwhile: Callable[[], object]) -> FaultyStorage:
    """The storage of a process that sleeps before it writes OWNER."""
    return FaultyStorage(lake.storage, before=OncePut(OWNER_ADDRESS, meanwhile))


def owner(lake: Repository) -> OwnerFile:
    found = read_owner(lake.storage)
    assert found is not None
    return found


def follow(store: Store, lake: Repository) -> Repository:
    """The repository is purged whole, and another one is made at its root."""
    assert purge(store, whole=True).row.state == "done"
    assert owner(lake).closed
    made = store.create_repository("new", storage_url=lake.storage.url)
    save(made, "b")
    return made


def check_usable(made: Repository) -> None:
    assert owner(made).repository_id == made.info.repository_id
    assert not owner(made).closed
    made.context.ownership.check()
    assert made.objects.get("main", "b")


@pytest.mark.parametrize("writes", [False, True])
def test_a_writer_or_the_end_of_a_purge_that_slept(
    store: Store, lake: Repository, writes: bool
) -> None:
    """Two resumes of one purge; a new repository is made when the faster one has ended."""
    made: list[Repository] = []
    slow = sleeping(lake, lambda: made.append(follow(store, lake)))
    with pytest.raises(Refused, match="names another owner"):
        if writes:
            ownership(store, lake, slow).move()
        else:
            close_owner(slow, store_id=store.store_id, repository_id=lake.info.repository_id)
    check_usable(made[0])


def test_a_write_that_arrives_late(store: Store, lake: Repository) -> None:
    """Many short commands later it changes nothing, and nobody is locked out."""
    data, version = lake.storage.get_versioned(OWNER_ADDRESS)
    for _ in range(18):
        ownership(store, lake, lake.storage).move()
    before = owner(lake)
    with pytest.raises(Conflict):
        lake.storage.replace(OWNER_ADDRESS, data, version=version)
    assert owner(lake) == before
    lake.context.ownership.check()


def test_the_slower_of_two_writers_lets_the_faster_stand(store: Store, lake: Repository) -> None:
    fast = ownership(store, lake, lake.storage)

    def move_twice() -> None:
        fast.move()
        fast.move()

    ownership(store, lake, sleeping(lake, move_twice)).move()
    found = owner(lake)
    lake.context.ownership.check()
    fast.move()
    assert owner(lake).pair.epoch > found.pair.epoch


def test_two_repositories_at_the_root_of_one_that_ended(store: Store, lake: Repository) -> None:
    assert purge(store, whole=True).row.state == "done"
    root = lake.storage.url
    made: list[Repository] = []

    def take() -> None:
        made.append(store.create_repository("new", storage_url=root))

    other = store.create_repository("other")
    late = ownership(store, other, sleeping(lake, take))
    with pytest.raises(Conflict, match="belongs to a repository already"):
        late.claim()
    assert owner(lake).repository_id == made[0].info.repository_id


def failing(lake: Repository, error: Conflict | Failed) -> FaultyStorage:
    def refuse(method: str, address: str) -> None:
        del address
        if method == "replace":
            raise error

    return FaultyStorage(lake.storage, before=refuse)


@pytest.mark.parametrize(
    "error",
    [
        Conflict("object_changed", "as Ceph's gateway says of every condition"),
        Failed("storage_unconditional", "as a directory on NFS"),
    ],
    ids=lambda error: error.kind,
)
def test_a_storage_that_knows_no_conditions(
    store: Store, lake: Repository, error: Conflict | Failed
) -> None:
    storage = failing(lake, error)
    before = owner(lake)
    moving = ownership(store, lake, storage)
    moving.move()
    moving.move()
    assert owner(lake).pair.epoch == before.pair.epoch + 2
    close_owner(storage, store_id=store.store_id, repository_id=lake.info.repository_id)
    assert owner(lake).closed


def test_a_storage_that_fails_is_not_written_to_without_the_condition(
    store: Store, lake: Repository
) -> None:
    storage = failing(lake, Failed("storage_error", "made to fail"))
    before = owner(lake)
    with pytest.raises(Failed, match="made to fail"):
        ownership(store, lake, storage).move()
    assert owner(lake) == before
