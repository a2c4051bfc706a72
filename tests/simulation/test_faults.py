"""Defects that are known: taken out of the code again, the simulation finds each.

A hunt from seed 0 on finds them too, given no hint (`hunt.py`), in more time than a commit has. So
each test begins with the history that such a hunt ended with. One history more shows what is no
defect, since nobody was promised anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest

from tests.simulation.faults import require_found
from tests.simulation.histories import MINUTE, History, history, step
from tests.simulation.scheduler import Disturbance
from tests.simulation.simulation import Simulation, told
from tests.simulation.store import open_simulation
from tests.simulation.world import LEASE, RUN_LEASE

KNOWN: Final[dict[str, tuple[History, str]]] = {
    "an undo that reads no intents": (
        history(
            7,
            step("policy"),
            step("save", 0, 1, 0, 1),
            step(
                "run",
                1,
                later=LEASE + MINUTE,
                process=2,
                disturbed=Disturbance("sleep", "move data", 0, 1, RUN_LEASE * 2),
            ),
            step("undo", process=2),
        ),
        "open",
    ),
    "OWNER is written over whatever is there": (
        history(
            7,
            step("save", disturbed=Disturbance("sleep", "replace OWNER", 0, 2)),
            step("purge whole", process=2),
            step("create repository", process=2),
        ),
        "owner",
    ),
    "a locator of a head that rests on the reflog": (
        history(
            7,
            step("policy"),
            step("save", 0, 0, 0, 1),
            step(
                "save",
                0,
                0,
                0,
                1,
                later=LEASE * 2,
                disturbed=Disturbance("sleep", "UPDATE branches", 1, 1, LEASE * 0.7),
            ),
            step("sign", 0, 0, 1),
            step("run", later=LEASE * 0.8, process=2),
        ),
        "promise",
    ),
    "a locator that leaves no trace": (
        history(
            2,
            step("copy database", process=2),
            step(
                "sign",
                31,
                37,
                33,
                42,
                later=MINUTE * 48,
                disturbed=Disturbance("sleep", "end", 3, 2, LEASE + MINUTE),
            ),
            step("copied run", 20, 24, 39, 8),
        ),
        "promise",
    ),
    "OWNER that moves once a minute": (
        history(
            7,
            step("save"),
            step("copy database"),
            # Later, so that the two saves are certainly not beside each other.
            step("save", 0, 1, 2, 1, later=timedelta(seconds=1)),
            step("copied run", later=LEASE + MINUTE),
        ),
        "promise",
    ),
}
"""By the fault: a history that shows it, and the check that does."""


KNOWN_BLOCK: Final = history(
    2,
    step("make project"),
    step("put block"),
    step("save manifest", 0, 1, 0, 1),
    step("end manifest", 0, 0, 1),
    step("put block", later=LEASE - 10 * MINUTE),
    step("run", later=45 * MINUTE, process=2),
)
"""A block is written again when its collection is gone. The new signature outlasts what was
promised before, which is half a lease more than the older signature. The run comes in between."""


UNACKNOWLEDGED: Final = history(
    1,
    step("save", 29, 1, 51, 27, process=2, disturbed=Disturbance("sleep", "INSERT reflog", 0, 5)),
    step("copy database", process=2),
    step("copied run", 21, 51, 39, 9, later=3 * LEASE + MINUTE, process=2),
)
"""A save sleeps in its transaction while a run over a copy of the database takes the storage."""


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    with open_simulation() as opened:
        yield opened


@pytest.mark.parametrize("fault", KNOWN)
def test_a_fault_is_found(simulation: Simulation, fault: str) -> None:
    shows, kind = KNOWN[fault]
    require_found(simulation, fault, shows, kind)


def test_what_was_never_acknowledged_is_not_promised_beside_a_copy(simulation: Simulation) -> None:
    """The save is refused, since the storage is the copy's by then; nothing else is lost."""
    outcome = simulation.run(UNACKNOWLEDGED)
    assert outcome.violation is None, told(outcome)
    assert any("refused: storage_foreign" in line.text for line in outcome.lines), told(outcome)


def test_a_block_that_is_written_again_stays_until_its_signature_ends(
    simulation: Simulation,
) -> None:
    outcome = simulation.run(KNOWN_BLOCK)
    assert outcome.violation is None, told(outcome)
    assert any(line.text.startswith("delete ") for line in outcome.lines), told(outcome)
