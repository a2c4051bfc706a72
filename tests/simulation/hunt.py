"""Histories of many seeds, until one fails, which is then made smaller and told.

`python -m tests.simulation.hunt FIRST LAST [--on STAGE] [--fault NAME]… [--workers N]
[--all]`
"""

from __future__ import annotations

import argparse
import atexit
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

from tests.simulation.faults import FAULTS, made
from tests.simulation.icechunk import stage as icechunk
from tests.simulation.lakefs import stage as lakefs
from tests.simulation.simulation import Simulation, smallest, told
from tests.simulation.store import open_simulation

CHUNK: Final = 20
TOLD_SECONDS: Final = 60
SHOWN: Final = 160


_open: Final[list[Simulation]] = []
"""In a worker process, its simulation."""


STAGES: Final[Mapping[str, Callable[[], AbstractContextManager[Simulation]]]] = {
    "store": open_simulation,
    "icechunk 1": partial(icechunk.open_simulation, 1),
    "icechunk 2": partial(icechunk.open_simulation, 2),
    "lakefs": lakefs.open_simulation,
}


def _begin(stage: str, *faults: str) -> None:
    """In a worker process, until its end."""
    stack = ExitStack()
    atexit.register(stack.close)
    stack.enter_context(made(*faults))
    _open.append(stack.enter_context(STAGES[stage]()))
    # What is there now stays: nobody needs to look through it again and again.
    gc.freeze()


def _failed(seeds: range) -> tuple[range, dict[int, str]]:
    """Of some seeds those whose histories fail, and how."""
    (simulation,) = _open
    outcomes = ((seed, simulation.run(simulation.draw(seed)).violation) for seed in seeds)
    return seeds, {seed: str(each) for seed, each in outcomes if each is not None}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Prints how far it came each minute. The exit code says whether a history failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--fault", choices=sorted(FAULTS), action="append", default=[])
    parser.add_argument("--on", choices=STAGES, default="store", help="where histories happen")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="go on behind the first that fails")
    given = parser.parse_args()
    began, failed, said = time.monotonic(), dict[int, str](), 0.0
    starts = range(given.first, given.last, CHUNK)
    tasks = [range(start, min(start + CHUNK, given.last)) for start in starts]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(given.workers, _begin, (given.on, *given.fault)) as pool:
        for seeds, found in pool.imap(_failed, tasks):
            failed |= found
            for seed, violation in found.items():
                _say(f"seed {seed}: {violation[:SHOWN]}")
            passed = time.monotonic() - began
            if passed - said > TOLD_SECONDS or seeds.stop == given.last:
                said = passed
                _say(f"{seeds.stop - given.first:,} histories, {passed:,.0f} s")
            if failed and not given.all:
                break
    for seed in sorted(failed)[:1]:
        with made(*given.fault), STAGES[given.on]() as simulation:
            small, outcome = smallest(simulation, simulation.draw(seed))
            _say(f"seed {seed}: {outcome.violation}\n{small}\n{told(outcome)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
