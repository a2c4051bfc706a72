"""Histories by chance: no promise is broken, and nothing is left over."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.simulation.histories import history, step
from tests.simulation.scheduler import Disturbance
from tests.simulation.simulation import Simulation, require_none_fails, told
from tests.simulation.store import open_simulation
from tests.simulation.world import LEASE
from tests.support.commands import captured
from tests.support.randomized import randomized

SHARES = 3
"""Tests that divide the histories among the processes of a test run."""
SEEDS = range(40, 42)


@pytest.fixture(scope="module")
def simulation() -> object:
    with open_simulation() as made:
        yield made


def in_group(share: int) -> pytest.MarkDecorator:
    """Tests of one group run in one process, which makes the beginnings of histories once."""
    return pytest.mark.xdist_group(f"simulation {share}")


@pytest.mark.parametrize(
    "share", [pytest.param(share, marks=in_group(share)) for share in range(SHARES)]
)
@pytest.mark.timeout(0)
@randomized("simulated histories")
def test_histories(simulation: Simulation, seed: int, share: int) -> None:
    require_none_fails(simulation, seed * SHARES + share)


@in_group(0)
def test_a_share_of_all_runs_is_incremental(simulation: Simulation) -> None:
    """Every second number asks for it, as here; the first run of some beginnings must be clean."""
    runs = [step("save"), step("run", 0, 1), step("save", 0, 1, 0, 1), step("run", 0, 1)]
    outcome = simulation.run(history(3, *runs))
    assert outcome.violation is None, told(outcome)
    assert any("swept incremental" in line.text for line in outcome.lines), told(outcome)


@in_group(0)
def test_a_copy_is_not_replaced_in_the_middle_of_a_transaction(simulation: Simulation) -> None:
    """The real database would wait for it, and with it the whole process."""
    sleeps = Disturbance("sleep", "commit", 3, 1, LEASE)
    copied_run = step("copied run", 54, 29, 54, 53, disturbed=sleeps)
    copy = step("copy database", process=2)
    outcome = simulation.run(history(3, copy, copied_run, copy))
    assert outcome.violation is None
    assert any("waits for the writer of the last copy" in line.text for line in outcome.lines)


@in_group(0)
@pytest.mark.drawn("whole programs")
def test_a_seed_gives_the_same_history_in_another_process(simulation: Simulation) -> None:
    """Whatever the order of hashes, and whatever was carried out before."""
    here = [simulation.run(simulation.draw(seed)).digest for seed in SEEDS]
    program = (
        "from tests.simulation.store import open_simulation\n"
        "with open_simulation() as simulation:\n"
        f"    for seed in reversed({list(SEEDS)}):\n"
        "        print(simulation.run(simulation.draw(seed)).digest)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    variables = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": path}
    answer = captured([sys.executable, "-c", program], env=variables)
    assert answer.stdout.split() == here[::-1], answer.stderr
