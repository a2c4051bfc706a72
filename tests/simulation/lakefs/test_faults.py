"""Defects of what protects a lakeFS repository: put into the code, the simulation finds each.

A hunt from seed 0 on finds them too (`tests/simulation/hunt.py`).
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.faults import require_found
from tests.simulation.histories import MINUTE, History, history, step
from tests.simulation.lakefs.stage import open_simulation
from tests.simulation.world import LEASE

KNOWN: Final[dict[str, tuple[History, str]]] = {
    "lakeFS: a restored database that nobody notices": (
        history(
            0,
            step("back up", 0, 1, 0, 1),
            step("run"),
            step("restore"),
            step("run", later=LEASE + MINUTE, process=2),
        ),
        "safe",
    ),
    "lakeFS: needed files that nobody restores": (
        history(
            0,
            step("run aside"),
            step("branch back", 3),
            step("run", later=LEASE * 2, process=2),
        ),
        "back",
    ),
}
"""By the fault: a history that shows it, and the check that does."""


@pytest.mark.parametrize("fault", KNOWN)
def test_a_fault_is_found(fault: str) -> None:
    shows, kind = KNOWN[fault]
    with open_simulation() as simulation:
        require_found(simulation, fault, shows, kind)
