"""Icechunk histories by chance: what lasts no longer than the grace loses and leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.icechunk.stage import open_simulation
from tests.simulation.simulation import Simulation, require_none_fails
from tests.support.randomized import randomized

SPEC_VERSIONS = (1, 2)


@pytest.fixture(scope="module", params=SPEC_VERSIONS)
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Of a repository that begins as this version."""
    with open_simulation(request.param) as made:
        yield made


@pytest.mark.timeout(0)
@randomized("simulated Icechunk histories")
def test_histories(simulation: Simulation, seed: int) -> None:
    require_none_fails(simulation, seed)
