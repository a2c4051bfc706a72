"""Histories, as a seed draws them, and smaller ones.

A history begins in one of some bases, which are histories without disturbances themselves, and is a
list of steps: how much time passes, who does what, and what disturbs it. A step begins when the one
before it has ended or sleeps. All of it follows from the seed. Not for: carrying them out
(`simulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Final

from tests.simulation.scheduler import Disturbance, Fault
from tests.simulation.world import LEASE, RUN_LEASE

BASES: Final = 16
STEPS: Final = (2, 3, 3, 3, 4, 4, 4, 5, 5, 7)
ALWAYS: Final = ("save", "run")
MINUTE: Final = timedelta(minutes=1)

DELAYS: Final[tuple[timedelta, ...]] = (
    *(timedelta(0),) * 6,
    timedelta(seconds=1),
    RUN_LEASE + timedelta(seconds=1),
    RUN_LEASE + timedelta(seconds=1),
    LEASE * 0.3,
    LEASE * 0.6,
    LEASE * 0.8,
    LEASE + MINUTE,
    LEASE + MINUTE,
    LEASE * 2 + MINUTE,
    LEASE * 3 + MINUTE,
)
SLEEPS: Final[tuple[timedelta, ...]] = (
    *(timedelta(0),) * 5,
    RUN_LEASE + timedelta(seconds=1),
    RUN_LEASE + timedelta(seconds=1),
    LEASE * 0.4,
    LEASE * 0.7,
    LEASE + MINUTE,
    LEASE * 3 + MINUTE,
)
SLICES: Final = (1, 1, 1, 1, 2, 2, 3, 5, 9)
FAULTS: Final[tuple[Fault, ...]] = (*("sleep",) * 12, "kill", "kill", "die", "fail", "lose", "part")

LENGTHS: Final[Mapping[str, tuple[int, int]]] = {
    "save": (60, 13),
    "run": (190, 24),
    "sweep": (110, 20),
    "undo": (80, 15),
    "copied run": (190, 24),
    "purge aside": (35, 8),
    "plan": (95, 8),
    "merge": (30, 6),
    "purge": (90, 20),
    "purge whole": (130, 40),
    "resume purge": (60, 30),
    "remove": (190, 40),
    "create repository": (20, 5),
    "reclaim": (30, 10),
    "upload": (35, 7),
    "stage": (18, 4),
    "collect files": (30, 7),
    "change collection": (25, 5),
    "sign": (12, 2),
}
"""About how many points and effects an operation has, where these are not few."""

THEMES: Final[Mapping[tuple[str, ...], int]] = {
    ("stage", "upload"): 2,
    ("stage", "reclaim"): 2,
    ("branch", "delete branch", "restore branch"): 3,
    ("tag", "hold"): 2,
    ("policy",): 2,
    ("merge", "branch"): 2,
    ("sign", "collect files"): 4,
    ("upload located", "collect files"): 2,
    ("collect files", "change collection"): 3,
    ("undo",): 4,
    ("sweep", "undo"): 4,
    ("plan", "sweep"): 2,
    ("purge aside", "undo"): 2,
    ("purge", "undo"): 2,
    ("purge whole", "resume purge", "create repository"): 3,
    ("delete repository", "restore repository", "remove", "create repository"): 2,
    ("copy database", "copied run"): 3,
}
"""Kinds of steps that have to do with each other, and how often they are chosen."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next. `process` 0 and 1 are servers, any other is a process of its own."""

    name: str
    number: int
    numbers: tuple[int, ...]
    delay: timedelta
    process: int
    disturbances: tuple[Disturbance, ...] = ()

    def __str__(self) -> str:
        disturbed = "".join(f"; {each}" for each in self.disturbances)
        return f"{self.number} {self.name} {self.numbers}, {self.delay} later{disturbed}"


@dataclass(frozen=True, slots=True)
class History:
    """What happens, from a base on; whether in the end all is collected and looked through."""

    base: int
    steps: tuple[Step, ...]
    settles: bool = False


def draw(seed: int) -> History:
    """The history of a seed."""
    random = Random(f"history {seed}")
    # A few kinds at a time meet more often than all of them would.
    themes = random.choices([*THEMES], [*THEMES.values()], k=random.choice((1, 1, 1, 2, 2, 3)))
    chosen = [*ALWAYS, *(name for theme in themes for name in theme)]
    steps = [
        _step(random, number, random.choice(chosen))
        for number in range(1, random.choice(STEPS) + 1)
    ]
    for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2, 2, 2, 3))):
        # The last one has nobody beside it.
        place = random.randrange(len(steps) - (random.random() < 0.8))
        step = steps[place]
        disturbance = _disturbance(random, step.name)
        steps[place] = replace(step, disturbances=(*step.disturbances, disturbance))
    return History(random.randrange(BASES), tuple(steps), settles=random.random() < 0.1)


def _step(random: Random, number: int, name: str) -> Step:
    numbers = tuple(random.randrange(60) for _ in range(4))
    return Step(name, number, numbers, random.choice(DELAYS), random.choice((0, 0, 0, 1, 2)))


def _disturbance(random: Random, name: str) -> Disturbance:
    points, effects = LENGTHS.get(name, (40, 12))
    by_effects = random.random() < 0.7
    return Disturbance(
        random.choice(FAULTS),
        random.randrange(effects if by_effects else points),
        by_effects,
        random.choice(SLICES),
        random.choice(SLEEPS),
    )


def draw_base(number: int) -> History:
    """How a base comes about: some commits, and perhaps a branch, a collection, a run."""
    random = Random(f"base {number}")
    names = ["save", "save", "policy"]
    more = ["branch", "save", "run", "collect files", "tag", "stage", "hold", "plan", "sign", "run"]
    names += random.sample(more, random.randint(1, 5))
    steps = [_step(random, place - 100, name) for place, name in enumerate(names)]
    first = Step("create repository", -200, (0,), LEASE, 0)
    late = Step("save", -1, (0, 1, number % 4, 0), LEASE * 2, 0)
    return History(-1, (first, *steps, late))


def shrink(fails: Callable[[History], bool], history: History) -> History:
    """A history that fails, from which nothing more can be taken away so that it still does."""
    smaller = True
    while smaller:
        smaller = False
        for tried in _simpler(history):
            if fails(tried):
                history, smaller = tried, True
                break
    return history


def _simpler(history: History) -> Iterator[History]:
    steps = history.steps
    for place in reversed(range(len(steps))):
        yield replace(history, steps=steps[:place] + steps[place + 1 :])
    if history.settles:
        yield replace(history, settles=False)
    for place, step in enumerate(steps):
        for changed in _simpler_steps(step):
            yield replace(history, steps=(*steps[:place], changed, *steps[place + 1 :]))


def _simpler_steps(step: Step) -> Iterator[Step]:
    for number in range(len(step.disturbances)):
        others = step.disturbances[:number] + step.disturbances[number + 1 :]
        yield replace(step, disturbances=others)
    if step.delay:
        yield replace(step, delay=timedelta(0))
    for number, each in enumerate(step.disturbances):
        before, after = step.disturbances[:number], step.disturbances[number + 1 :]
        if each.lasts:
            calmer = replace(each, lasts=timedelta(0))
            yield replace(step, disturbances=(*before, calmer, *after))
        if each.slices > 1:
            shorter = replace(each, slices=1)
            yield replace(step, disturbances=(*before, shorter, *after))
