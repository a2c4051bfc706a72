"""Random histories by the thousand: where they happen, and how they are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.memory_world import Place, open_place
from tests.support.randomized import INDEPENDENT, examples

RUNS_JUDGED: Final = 200
"""Of fewer, chance may have made any clean."""


class PlacedMachine(RuleBasedStateMachine):
    """A machine whose histories share a place. `modes` counts the runs that were made in them."""

    place: ClassVar[Place]
    modes: ClassVar[Counter[str]]


@contextmanager
def fast_place() -> Iterator[Place]:
    """A database for all histories."""
    with TemporaryDirectory() as directory, open_place(Path(directory)) as made:
        yield made


def run_histories(machine: type[PlacedMachine], place: Place, volume: str, *, steps: int) -> None:
    """Run as many histories as the volume says, of so many steps each."""

    class InThisPlace(machine):  # type: ignore[valid-type, misc]
        modes: ClassVar[Counter[str]] = Counter()

    InThisPlace.place = place
    run_state_machine_as_test(
        InThisPlace,
        settings=examples(
            volume,
            stateful_step_count=steps,
            backend=INDEPENDENT,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # Where nearly all runs had been clean, nothing would have been seen of incremental ones.
    made = InThisPlace.modes
    assert made.total() < RUNS_JUDGED or made["incremental"] > made["clean"] / 10
