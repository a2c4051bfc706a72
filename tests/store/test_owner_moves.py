"""Processes of one store that move the epoch of a storage at one time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from ebbtide.store.database.schema import owner_epochs
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.owner import Ownership, read_owner

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
