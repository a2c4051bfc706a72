"""Defects of what protects Icechunk's and lakeFS's files: put into the code, the simulation finds
each.

A hunt from seed 0 on finds them too, in some hundred histories (`tests/simulation/hunt.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import pytest

from tests.simulation.faults import require_found
from tests.simulation.histories import MINUTE, History, history, step
from tests.simulation.icechunk import stage as icechunk
from tests.simulation.lakefs import stage as lakefs
from tests.simulation.scheduler import Disturbance
from tests.simulation.simulation import Simulation
from tests.simulation.world import LEASE

Opened = Callable[[], AbstractContextManager[Simulation]]

KNOWN: Final[dict[str, tuple[Opened, History, str]]] = {
    "Icechunk: an expiry that is dated by a run": (
        partial(icechunk.open_simulation, 2),
        history(0, step("read", 39, 48, 8, 43), step("expire", 11), step("run", 49, process=2)),
        "promise",
    ),
    "Icechunk: sessions that nobody thinks of": (
        partial(icechunk.open_simulation, 1),
        history(
            0,
            step("expire", 15, disturbed=Disturbance("sleep", "get gc/LEASE", 1, 1)),
            step("branch", 33, 27, disturbed=Disturbance("sleep", "put refs", 0, 2)),
            step("run", 48, process=2),
        ),
        "open",
    ),
    "lakeFS: a restored database that nobody notices": (
        lakefs.open_simulation,
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
        lakefs.open_simulation,
        history(
            0,
            step("run aside"),
            step("branch back", 3),
            step("run", later=LEASE * 2, process=2),
        ),
        "back",
    ),
}
"""By the fault: a simulation, a history that shows it, and the check that does."""


@pytest.mark.parametrize("fault", KNOWN)
def test_a_fault_is_found(fault: str) -> None:
    opened, shows, kind = KNOWN[fault]
    with opened() as simulation:
        require_found(simulation, fault, shows, kind)
