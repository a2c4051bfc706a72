"""Histories by chance: no promise is broken, and nothing is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.simulation import Simulation, smallest, told
from tests.simulation.store import open_simulation
from tests.support.randomized import randomized

pytestmark = pytest.mark.xdist_group("simulation")  # whose beginnings are made once

SHARES = 3
SEEDS = range(40, 42)


@pytest.fixture(scope="module")
def simulation() -> object:
    with open_simulation() as made:
        yield made


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(0)
@randomized("simulated histories")
def test_histories(simulation: Simulation, seed: int, share: int) -> None:
    history = simulation.draw(seed * SHARES + share)
    outcome = simulation.run(history)
    if outcome.violation is not None:
        small, outcome = smallest(simulation, history)
        pytest.fail(f"{outcome.violation}\n{small}\n{told(outcome)}")


@pytest.mark.drawn("whole programs")
def test_a_seed_gives_the_same_history_in_another_process(simulation: Simulation) -> None:
    """Whatever the order of hashes, and whatever was carried out before."""
    here = [simulation.run(simulation.draw(seed)).digest for seed in SEEDS]
    program = (
        ""
        "from tests.simulation.store import open_simulation\n"
        "with open_simulation() as simulation:\n"
        f"    for seed in reversed({list(SEEDS)}):\n"
        "        print(simulation.run(simulation.draw(seed)).digest)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == here[::-1]
