"""Rows that the store keeps for doors: with the door, and without it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.store import doors
from ebbtide.store.database.schema import arvados_blocks, arvados_collections, collections
from ebbtide.store.doors import all_door_rows
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.repository import Repository
from tests.support.arvados import manifest_of, put_block, save
from tests.support.clock import ManualClock
from tests.support.collections import raises

LEASE = timedelta(hours=1)
TRASH = timedelta(days=7)


@pytest.fixture
def no_doors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No door is installed."""
    all_door_rows.cache_clear()
    monkeypatch.setattr(doors, "plugins_of", lambda _group: {})
    yield
    all_door_rows.cache_clear()


def end(repository: Repository, clock: ManualClock) -> None:
    """Drops what has ended after a trash time, as a fence does."""
    clock.advance(TRASH)
    repository_id = repository.info.repository_id
    with repository.context.metadata.transaction() as tx:
        tx.lock_repository(repository_id, "exclusive")
        drop_ended(tx, repository_id, lease_ttl=LEASE, trash_time=TRASH)


def amount(repository: Repository, table: sa.Table) -> int:
    with repository.context.metadata.snapshot() as tx:
        return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


@pytest.mark.usefixtures("no_doors")
def test_rows_end_with_their_collection(
    repository: Repository, project_id: str, clock: ManualClock
) -> None:
    """The database would refuse otherwise, and with it each run."""
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    ArvadosRepository(repository).collections.delete(made.listed.uuid)
    end(repository, clock)
    assert amount(repository, collections) == amount(repository, arvados_collections) == 0
    assert amount(repository, arvados_blocks) == 1


def test_a_fence_drops_the_rows_of_doors(repository: Repository, clock: ManualClock) -> None:
    put_block(repository, b"unused")
    end(repository, clock)
    assert amount(repository, arvados_blocks) == 0


def test_ids_of_a_door(repository: Repository, project_id: str) -> None:
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    found = repository.collections.get(made.listed.collection_id)
    for name in (made.listed.uuid, made.listed.portable_data_hash):
        assert repository.collections.find(name) == found


@pytest.mark.usefixtures("no_doors")
def test_ids_of_a_door_that_is_not_there(repository: Repository, project_id: str) -> None:
    made = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))
    for name in (made.listed.uuid, made.listed.portable_data_hash):
        with raises("collection_not_found"):
            repository.collections.find(name)
