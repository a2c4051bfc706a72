"""Randomized tests: how often each is repeated, with which seeds, and how a failure is repeated.

A randomized test is one test, whatever its volume. Each repetition is a *case* with a seed of its
own, drawn from the base seed of the run (`--randomly-seed`), so that every run tries something new
and any run can be repeated. `tests/support/volumes.py` has the volumes. Not for fixed examples.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from zlib import crc32

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, Phase, core, settings
from hypothesis.internal.conjecture import providers

from tests.support.volumes import DRAWN, VOLUMES, Volume

Test = Callable[..., None]
T = TypeVar("T")

INDEPENDENT: Final = "independent"
"""A backend of Hypothesis that draws each example anew. The built-in one makes most examples of a
long history by changing the one before."""

providers.AVAILABLE_PROVIDERS[INDEPENDENT] = providers.HypothesisProvider


FAST_PART: Final = 4
"""A fast run has this part of the cases of a commit."""
SETS_SHARE: Final = 0.15
"""The part of a long run that sets of alike tests may take."""

OUTCOME: Final = "randomized"
"""The property of a test's report that has its `Outcome`."""


@dataclass(slots=True)
class Outcome:
    volume: str
    cases: int = 0
    seconds: float = 0.0
    failed: int | None = None


@dataclass(slots=True)
class Run:
    base_seed: int = 0
    case: int | None = None
    """The one case to repeat, if any."""
    is_fast: bool = False
    """Whether each test goes through a part of its cases."""
    worker: str = ""
    """In a long run, the name of this process: each goes through all tests, by other chances."""
    ends_at: float | None = None
    """When a long run ends, in monotonic seconds; None in any other."""
    sets_end_at: float | None = None
    """When a long run begins no more tests of a set, of which a commit tries some."""
    shares: float = 0.0
    """The sum of the shares of the tests of a long run that have not begun."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of tests of this process that nobody has been told of."""


RUN: Final = Run()
"""This process's; filled by `configure`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One repetition. `seconds` is how long it lasts, in a test whose volume is in seconds."""

    number: int
    seed: int
    seconds: float


def configure(config: pytest.Config) -> None:
    """Reads the options of the run. Tests of Hypothesis begin at the base seed, too."""
    RUN.base_seed = int(config.getoption("randomly_seed"))
    RUN.case = config.getoption("case")
    RUN.is_fast = config.getoption("fast") is not None
    minutes = config.getoption("long")
    if minutes is not None:
        RUN.worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        RUN.ends_at = time.monotonic() + 60 * minutes
    if config.getoption("hypothesis_seed") is None:
        _force_seed(RUN.base_seed)


def share_out(names: Iterable[str]) -> None:
    """The time of a long run is for sets first, then for tests with these volumes, by shares."""
    RUN.shares = sum(VOLUMES[name].share for name in names)
    if RUN.ends_at is not None:
        now = time.monotonic()
        RUN.sets_end_at = now + SETS_SHARE * (RUN.ends_at - now)


def is_too_late() -> bool:
    return RUN.sets_end_at is not None and time.monotonic() > RUN.sets_end_at


def examples(name: str, **more: Any) -> settings:
    """The settings of a test of Hypothesis that is randomized by the volume `name`.

    Examples may take any time, and each is drawn by the seed alone, not from a database. A failing
    one is shrunk, but not explained: that takes minutes for a long history.
    """
    chosen: dict[str, Any] = {
        "max_examples": VOLUMES[name].examples,
        "deadline": None,
        "database": None,
        # Where CI is set, Hypothesis would draw the same examples in every run.
        "derandomize": False,
        "print_blob": True,
        "phases": [Phase.explicit, Phase.generate, Phase.shrink],
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    }
    return settings(**chosen | more)


def randomized(name: str) -> Callable[[Test], Test]:
    """Repeats a test as often as the volume `name` says; in a long run, for its share of the time.

    The test may take three arguments. `seed` (int) is the source of all its chances. `seconds`
    (float) is how long it goes on, if its volume is in seconds. `tmp_path` is a new directory for
    each case, and is removed after the case has passed. Other fixtures are the same for all cases.
    """
    volume = VOLUMES[name]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        ours = signature.parameters.keys() & {"seed", "seconds"}

        @functools.wraps(test)
        def run_cases(*arguments: Any, **options: Any) -> None:
            node = _current_test()
            outcome = RUN.outcomes[node] = Outcome(name)
            for case in _cases(node, volume):
                began = time.monotonic()
                outcome.failed = case.seed
                own = {key: getattr(case, key) for key in ours}
                with _directory_of(case, options) as directory, _drawing(case):
                    test(*arguments, **options | directory | own)
                outcome.failed = None
                outcome.cases += 1
                outcome.seconds += time.monotonic() - began

        # pytest takes the other parameters for the names of fixtures.
        others = [each for key, each in signature.parameters.items() if key not in ours]
        run_cases.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        marked: Test = pytest.mark.randomized(name)(run_cases)
        return marked

    return decorate


def name_of(node: str) -> str:
    return node.rpartition("@")[0] if node.rfind("@") > node.rfind("]") else node


def choose(node: str, choices: Sequence[T]) -> T:
    """One of the choices, by the seed of the run and the name of a test."""
    return Random(f"{RUN.base_seed} {name_of(node)}").choice(choices)


def sample(name: str, choices: Sequence[T], count: int) -> list[T]:
    """Some of the choices, by the seed of the run and a name."""
    return Random(f"{RUN.base_seed} {name}").sample(choices, min(count, len(choices)))


def in_turn(sets: Mapping[pytest.Item, str]) -> list[pytest.Item]:
    """The tests of all sets in the order of a long run, which may not come to all: one of each set
    in turn, and those of a set by chance."""
    rng = Random(f"{RUN.base_seed} {RUN.worker} sets")
    tests = sorted(sets, key=lambda item: item.nodeid)
    rng.shuffle(tests)
    turns = defaultdict[str, int](int)
    numbered = []
    for item in tests:
        turns[sets[item]] += 1
        numbered.append((turns[sets[item]], item))
    return [item for _, item in sorted(numbered, key=lambda pair: pair[0])]


def not_drawn(sets: Mapping[pytest.Item, str | None]) -> set[pytest.Item]:
    """The tests that this run leaves out, of those that belong to sets of which it tries some."""
    members = defaultdict[str, list[pytest.Item]](list)
    for item, name in sets.items():
        if name is not None:
            members[name].append(item)
    left_out = set[pytest.Item]()
    for name, items in members.items():
        items.sort(key=lambda item: item.nodeid)
        left_out |= set(items) - set(sample(name, items, DRAWN[name]))
    return left_out


def dealt(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those of the tests that this process takes where each process is given all of them."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return {item for item in items if crc32(item.nodeid.encode()) % count == number}


def volume_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("randomized")
    return None if marker is None else str(marker.args[0])


def summarize(reporter: TerminalReporter) -> None:
    """Prints a command for each test that failed; of a long run, what it went through."""
    failed = [*reporter.getreports("failed"), *reporter.getreports("error")]
    if failed:
        reporter.section("to repeat what failed")
    for report in failed:
        outcome = _outcome_of(report)
        chances = [f"--randomly-seed={RUN.base_seed}"]
        chances += [f"--case={outcome.failed}"] if outcome and outcome.failed is not None else []
        reporter.write_line(shlex.join(["scripts/test", *chances, name_of(report.nodeid)]))
    if RUN.ends_at is not None:
        _tell_volumes(reporter)


def _tell_volumes(reporter: TerminalReporter) -> None:
    """A line for each volume: what a test of it went through at least, and what it should."""
    found: dict[str, dict[str, Outcome]] = {}
    for report in [*reporter.getreports("passed"), *reporter.getreports("failed")]:
        if (outcome := _outcome_of(report)) is not None:
            tests = found.setdefault(outcome.volume, {})
            whole = tests.setdefault(report.nodeid, Outcome(outcome.volume))
            whole.cases += outcome.cases
            whole.seconds += outcome.seconds
    reporter.section("what was gone through")
    for name, tests in sorted(found.items()):
        volume = VOLUMES[name]
        least = min(volume.amount(each.cases, each.seconds) for each in tests.values())
        seconds = sum(each.seconds for each in tests.values())
        short = "" if least >= volume.long else "   (less than a long run should)"
        reporter.write_line(
            f"{name}: {least:,.0f} of {volume.long:,} in each of {len(tests)} tests, "
            f"{seconds:,.0f} s{short}"
        )


def _outcome_of(report: pytest.TestReport | pytest.CollectReport) -> Outcome | None:
    if isinstance(report, pytest.CollectReport):
        return None
    found: Any = dict(report.user_properties).get(OUTCOME)  # as it travelled between processes
    return None if found is None else Outcome(**found)


def _current_test() -> str:
    return name_of(os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0])


def _cases(node: str, volume: Volume) -> Iterator[Case]:
    """The cases of a test: the one that is to be repeated; or as many as volume and time allow."""
    if RUN.case is not None:
        yield Case(0, RUN.case, volume.seconds)
        return
    seeds = Random(f"{RUN.base_seed} {RUN.worker} {node}")
    if RUN.ends_at is None:
        cases = max(1, volume.cases // FAST_PART) if RUN.is_fast else volume.cases
        for number in range(cases):
            yield Case(number, seeds.getrandbits(32), volume.seconds)
        return
    ends_at = time.monotonic() + _time_of(volume, RUN.ends_at)
    number = 0
    while number == 0 or time.monotonic() < ends_at:
        seconds = min(volume.seconds, max(ends_at - time.monotonic(), 1.0))
        yield Case(number, seeds.getrandbits(32), seconds)
        number += 1


def _time_of(volume: Volume, run_ends_at: float) -> float:
    """The seconds of a test that begins now, in a long run.

    They are its share of what is left. So all tests to come pay alike for a case that took longer
    than its test had time for; those that come last would have none left otherwise.
    """
    left = max(run_ends_at - time.monotonic(), 0.0)
    shares = max(RUN.shares, volume.share)
    RUN.shares -= volume.share
    return left * volume.share / shares


@contextmanager
def _directory_of(case: Case, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole: Path | None = options.get("tmp_path")
    if whole is None:
        yield {}
        return
    own = whole / f"case-{case.number}"
    own.mkdir()
    yield {"tmp_path": own}
    shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _drawing(case: Case) -> Iterator[None]:
    """Hypothesis draws by the seed of the case. A failure says which case it was."""
    before = core.global_force_seed
    _force_seed(case.seed)
    try:
        yield
    except Exception as error:
        error.add_note(f"case {case.number}, --case={case.seed}")
        raise
    finally:
        _force_seed(before)


def _force_seed(seed: int | None) -> None:
    """What Hypothesis's own option for a seed does; it has no other way for state machines."""
    core.global_force_seed = seed  # type: ignore[assignment]
