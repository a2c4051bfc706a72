"""Random histories by the thousand: where they happen, and how a shard of them is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.memory_world import Place, open_place

SHARDS: Final = 4


class PlacedMachine(RuleBasedStateMachine):
    """A machine whose histories share a place. `modes` counts the runs that were made in them."""

    place: ClassVar[Place]
    modes: ClassVar[Counter[str]]


@contextmanager
def fast_place() -> Iterator[Place]:
    """A database for all histories; in memory where the system has a place for that."""
    memory = Path("/dev/shm")
    with (
        TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory,
        open_place(Path(directory)) as made,
    ):
        yield made


def run_shard(
    machine: type[PlacedMachine], place: Place, shard: int, *, histories: int, steps: int
) -> None:
    """Run one of SHARDS of so many histories of so many steps."""

    class InThisPlace(machine):  # type: ignore[valid-type, misc]
        modes: ClassVar[Counter[str]] = Counter()

    InThisPlace.place = place
    InThisPlace.__qualname__ += f"-{shard}"
    run_state_machine_as_test(
        InThisPlace,
        settings=settings(
            max_examples=-(-histories // SHARDS),
            stateful_step_count=steps,
            # The built-in one makes five of six histories from the one before.
            backend="hypothesis-urandom",
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
    # Where nearly all runs had been clean, nothing would have been seen of incremental ones.
    assert histories < 100 or InThisPlace.modes["incremental"] > InThisPlace.modes["clean"] / 4
