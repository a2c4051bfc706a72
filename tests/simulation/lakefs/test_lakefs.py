"""Histories of a lakeFS repository by chance: nothing that was needed all the time is lost, and
whatever is needed again is brought back or told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.lakefs.stage import open_simulation
from tests.simulation.simulation import Simulation, require_none_fails
from tests.support.randomized import randomized


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    with open_simulation() as made:
        yield made


@pytest.mark.timeout(0)
@randomized("simulated lakeFS histories")
def test_histories(simulation: Simulation, seed: int) -> None:
    require_none_fails(simulation, seed)
