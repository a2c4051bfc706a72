"""Fixtures that tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_world import Place, open_place
from tests.support.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store with files in a directory, and a collector."""
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where the memory worlds of a module are, one after another."""
    with open_place(tmp_path_factory.mktemp("place")) as found:
        yield found
