"""Histories, as a seed draws them, and smaller ones.

A history begins in one of some bases, which are histories without disturbances themselves, and is a
list of steps: how much time passes, who does what, and what disturbs it. A step begins when the one
before it has ended or sleeps. All of it follows from the seed. Not for: carrying them out
(`simulation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Final

from tests.simulation.scheduler import Disturbance, Fault
from tests.simulation.world import LEASE, RUN_LEASE

BASES: Final = 8
STEPS: Final = (1, 2, 2, 2, 3, 3, 3, 4, 4, 6)
MINUTE: Final = timedelta(minutes=1)

DELAYS: Final[tuple[timedelta, ...]] = (
    *(timedelta(0),) * 8,
    timedelta(seconds=1),
    RUN_LEASE + timedelta(seconds=1),
    LEASE * 0.4,
    LEASE * 0.8,
    LEASE + MINUTE,
    LEASE * 3 + MINUTE,
)
ENDS: Final = (0, 0, 0, 1, 1, 1, 2, 3)
SLICES: Final = (1, 1, 1, 1, 2, 2, 3, 5)
FAULTS: Final[tuple[Fault, ...]] = (*("sleep",) * 12, "kill", "kill", "die", "fail", "lose", "part")
DISTURBANCES: Final = (1, 1, 1, 1, 1, 2, 2, 2, 3)

Words = Mapping[str, Mapping[str, int]]
"""What kinds of points a kind of step has, and about how many of each."""

IN_ORDER: Final = 0.5
"""How many histories follow that order; in the others any step comes at any time."""
TWICE: Final = 0.25
BETWEEN: Final = 0.7

LONG: Final = 0.15
"""How many histories are long. Their steps cost little, but for runs."""
LONG_STEPS: Final = 30
RUN_SHARE: Final = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What there is to draw from.

    `themes` are kinds of steps that have to do with each other, in the order in which people take
    them, and how often they are chosen. `always` comes between them. A history ends with one of
    `last`, or `last_of` one of its kinds of steps, since nothing is lost before somebody deletes.
    `sleeps` is how long a process may be suspended. `first`, then some of `more`, then `late` make
    a base. From some bases, `tours` go through all kinds of steps, to see what points these have;
    a kind of step for which there is nothing to do yet is `instead` another. Times between steps
    are `hours` times as long as drawn. A long history draws its steps from one or two of `parts`,
    each with the weights of its kinds of steps, and from `runs` now and then.
    """

    themes: Mapping[tuple[str, ...], int]
    always: str
    last: tuple[str, ...]
    sleeps: tuple[timedelta, ...]
    first: tuple[str, ...]
    more: tuple[str, ...]
    late: str
    tours: Mapping[int, tuple[str, ...]]
    instead: Mapping[str, str]
    last_of: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    hours: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next. `process` 0 and 1 are servers, any other is a process of its own. With
    `until_end` it happens a moment before something that was promised may end: 1 is what ends
    first."""

    name: str
    number: int
    numbers: tuple[int, ...]
    delay: timedelta
    process: int
    disturbances: tuple[Disturbance, ...] = ()
    until_end: int = 0

    def __str__(self) -> str:
        disturbed = "".join(f"; {each}" for each in self.disturbances)
        when = f"just before end {self.until_end}" if self.until_end else f"{self.delay} later"
        return f"{self.name} {self.numbers}, {when}{disturbed}"


@dataclass(frozen=True, slots=True)
class History:
    """What happens, from a base on; whether in the end all is collected and looked through."""

    base: int
    steps: tuple[Step, ...]
    settles: bool = False


def draw(vocabulary: Vocabulary, seed: int, words: Words) -> History:
    """The history of a seed, where steps have points with these words."""
    random = Random(f"history {seed}")
    if vocabulary.parts and random.random() < LONG:
        return _draw_long(vocabulary, random, words)
    themes, always = vocabulary.themes, vocabulary.always
    # A few kinds at a time meet more often than all of them would.
    some = random.choices([*themes], [*themes.values()], k=random.choice((1, 1, 1, 1, 2, 3)))
    chosen = [always, *(name for theme in some for name in theme)]
    if random.random() < IN_ORDER:
        names = _in_order(random, some, always)
    else:
        names = [random.choice(chosen) for _ in range(random.choice(STEPS))]
    count = len(names)
    steps = [_step(random, number, name) for number, name in enumerate(names, start=1)]
    for _ in range(random.choice(DISTURBANCES)):
        place = _early(random, count)
        disturbance = _disturbance(random, words.get(steps[place].name, {}), vocabulary.sleeps)
        known = steps[place].disturbances
        steps[place] = replace(steps[place], disturbances=(*known, disturbance))
    fitting = [last for name, last in vocabulary.last_of.items() if name in chosen]
    name = fitting[0] if fitting else random.choice(vocabulary.last)
    steps.append(_last(random, count + 1, name))
    return History(random.randrange(BASES), tuple(steps), settles=random.random() < 0.1)


def _draw_long(vocabulary: Vocabulary, random: Random, words: Words) -> History:
    """Many steps of few parts, hardly disturbed, so that most of them are alone."""
    chosen = random.choices([*vocabulary.parts.values()], k=random.choice((1, 1, 2)))
    kinds = Counter[str]()
    for part in chosen:
        kinds.update(part)
    steps = []
    for number in range(1, LONG_STEPS + 1):
        some = vocabulary.runs if random.random() < RUN_SHARE else kinds
        name = random.choices([*some], [*some.values()])[0]
        steps.append(_step(random, number, name))
    for _ in range(random.choice((0, 1, 2))):
        place = random.randrange(LONG_STEPS)
        disturbance = _disturbance(random, words.get(steps[place].name, {}), vocabulary.sleeps)
        steps[place] = replace(steps[place], disturbances=(disturbance,))
    return History(random.randrange(BASES), tuple(steps), settles=True)


def _in_order(random: Random, themes: Sequence[tuple[str, ...]], always: str) -> list[str]:
    """The kinds of steps of themes in order, some of them twice, perhaps with a save between."""
    names = [
        name
        for theme in themes[:2]
        for name in theme[: random.randint(1, len(theme))]
        for _ in range(1 + (random.random() < TWICE))
    ]
    if random.random() < BETWEEN:
        names.insert(_early(random, len(names) + 1), always)
    return names


def _early(random: Random, count: int) -> int:
    """A place below `count`, more likely an early one: it meets all later operations."""
    return min(random.randrange(count), random.randrange(count))


def _step(random: Random, number: int, name: str) -> Step:
    numbers = tuple(random.randrange(60) for _ in range(4))
    return Step(name, number, numbers, random.choice(DELAYS), random.choice((0, 0, 0, 1, 2)))


def _last(random: Random, number: int, name: str) -> Step:
    delay = random.choice((timedelta(0), LEASE + MINUTE, LEASE + MINUTE, LEASE * 3 + MINUTE))
    step = replace(_step(random, number, name), delay=delay, process=2)
    return replace(step, until_end=random.choice(ENDS))


def _disturbance(
    random: Random, counts: Mapping[str, int], sleeps: Sequence[timedelta]
) -> Disturbance:
    words = sorted(counts) or ["read"]
    word = random.choices(words, [_weight(word) for word in words])[0]
    count = counts.get(word, 1)
    # The last of a kind is often the one that others have waited for.
    at = count - 1 if random.random() < 0.4 else random.randrange(count)
    return Disturbance(
        random.choice(FAULTS),
        word,
        at,
        random.choice(SLICES),
        random.choice(sleeps),
    )


def _weight(word: str) -> int:
    """What cannot be taken back weighs most, and then what others see."""
    if word.startswith(("delete", "move")):
        return 12
    if word in ("commit", "replace OWNER"):
        return 14
    if word.endswith(("OWNER", "EPOCH", "intended", "deleted", "quarantines")):
        return 3
    return 2 if word.startswith(("put", "list", "begin", "INSERT", "UPDATE")) else 1


def draw_base(vocabulary: Vocabulary, number: int) -> History:
    """How a base comes about."""
    random = Random(f"base {number}")
    first, *then = vocabulary.first
    names = [*then, *random.sample(vocabulary.more, random.randint(0, 4))]
    steps = [_step(random, place - 100, name) for place, name in enumerate(names)]
    made = Step(first, -200, (0,) * 4, LEASE, 0)
    late = Step(vocabulary.late, -1, (0, 1, number % 4, 0), LEASE * 2, 0)
    return History(-1, (made, *steps, late))


def draw_tour(base: int, names: Sequence[str]) -> History:
    """A history of these steps, which nothing disturbs."""
    random = Random(f"tour {base}")
    steps = [_step(random, number, name) for number, name in enumerate(names, start=1)]
    return History(base, tuple(replace(step, delay=LEASE, process=2) for step in steps))


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
    if step.until_end:
        yield replace(step, until_end=0)
    elif step.delay:
        yield replace(step, delay=timedelta(0))
    for number, each in enumerate(step.disturbances):
        before, after = step.disturbances[:number], step.disturbances[number + 1 :]
        if each.lasts:
            calmer = replace(each, lasts=timedelta(0))
            yield replace(step, disturbances=(*before, calmer, *after))
        if each.slices > 1:
            shorter = replace(each, slices=1)
            yield replace(step, disturbances=(*before, shorter, *after))


def step(
    name: str,
    *numbers: int,
    later: timedelta = timedelta(0),
    process: int = 0,
    disturbed: Disturbance | None = None,
) -> Step:
    """A step; its place in a history numbers it."""
    given = (*numbers, 0, 0, 0, 0)[:4]
    return Step(name, 0, given, later, process, (disturbed,) if disturbed else ())


def history(base: int, *steps: Step) -> History:
    numbered = [
        Step(s.name, number, s.numbers, s.delay, s.process, s.disturbances)
        for number, s in enumerate(steps, start=1)
    ]
    return History(base, tuple(numbered))
