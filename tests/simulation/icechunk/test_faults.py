"""Defects of what holds Icechunk's files: put into the code, the simulation finds each.

A hunt from seed 0 on finds them too, in some hundred histories (`tests/simulation/hunt.py`).
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.faults import require_found
from tests.simulation.histories import History, history, step
from tests.simulation.icechunk.stage import open_simulation
from tests.simulation.scheduler import Disturbance

KNOWN: Final[dict[str, tuple[int, History, str]]] = {
    "Icechunk: an expiry that is dated by a run": (
        2,
        history(0, step("read", 39, 48, 8, 43), step("expire", 11), step("run", 49, process=2)),
        "promise",
    ),
    "Icechunk: sessions that nobody thinks of": (
        1,
        history(
            0,
            step("expire", 15, disturbed=Disturbance("sleep", "get gc/LEASE", 1, 1)),
            step("branch", 33, 27, disturbed=Disturbance("sleep", "put refs", 0, 2)),
            step("run", 48, process=2),
        ),
        "open",
    ),
}
"""By the fault: the version of the repository, a history that shows it, and the check that does."""


@pytest.mark.parametrize("fault", KNOWN)
def test_a_fault_is_found(fault: str) -> None:
    spec_version, shows, kind = KNOWN[fault]
    with open_simulation(spec_version) as simulation:
        require_found(simulation, fault, shows, kind)
