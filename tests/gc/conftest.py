"""A store of its own for each test of the collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store with one empty repository."""
    made = World(tmp_path)
    yield made
    made.close()
