"""A repository whose records can be signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock


@pytest.fixture
def store(database_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """A new store with small ranges, files in a directory, and leases of a day."""
    settings = Settings(database_url=database_url, range_entries_target=4, lease_ttl="1d")
    with Store.init(tmp_path / "store", settings=settings, clock=clock) as store:
        yield store


@pytest.fixture
def repository(store: Store) -> Repository:
    return store.create_repository("lake")
