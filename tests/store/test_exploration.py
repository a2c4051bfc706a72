"""Concurrent operations in every order of their steps: what is needed stays, and only that."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from itertools import combinations_with_replacement
from random import Random
from typing import Final

import pytest

from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.exploring import (
    LEASE,
    Actor,
    Ground,
    Operation,
    Search,
    ground,
)
from tests.support.randomized import randomized

FULL: Final = os.environ.get("EBBTIDE_TEST_EXPLORATION") == "full"
"""Whether every order is gone through, which takes some hours."""


def prepare(lake: Repository) -> None:
    """`a` is committed, and on `main` `b` is staged; on `dev` something is staged over `a`."""
    lake.objects.put("main", "a", b"committed")
    lake.commits.commit("main", "")
    lake.branches.create("dev", "main")
    lake.objects.put("main", "b", b"staged")
    lake.objects.put("dev", "a", b"staged on dev")


def _reclaim(actor: Actor) -> object:
    actor.wait(LEASE)
    return Reclaimer(actor.store).once()


def _seal(actor: Actor) -> object:
    """A commit that fails when it has sealed what is staged."""
    later = actor.clock.host_now() + 2 * LEASE
    return actor.lake.commits.commit("main", "sealed", date=later)


def _fence(actor: Actor) -> None:
    context = actor.lake.context
    with context.metadata.transaction() as tx:
        tx.lock_repository(context.repository_id, "exclusive")
        drop_ended(tx, context.repository_id, lease_ttl=LEASE, trash_time=context.trash_time)


OPERATIONS: Final[dict[str, Operation]] = {
    "upload": lambda actor: actor.lake.objects.put("main", "a", b"uploaded"),
    "overwrite": lambda actor: actor.lake.objects.put("main", "b", b"overwritten"),
    "delete": lambda actor: actor.lake.objects.delete("main", "b"),
    "copy": lambda actor: actor.lake.objects.copy("main", "a", "main", "b"),
    "move": lambda actor: actor.lake.objects.move("main", "a", "b"),
    "move back": lambda actor: actor.lake.objects.move("main", "b", "a"),
    "commit": lambda actor: actor.lake.commits.commit("main", "explored"),
    "seal": _seal,
    "reset": lambda actor: actor.lake.commits.reset("main"),
    "reset path": lambda actor: actor.lake.commits.reset_path("main", "b"),
    "delete branch": lambda actor: actor.lake.branches.delete("dev"),
    "reclaim": _reclaim,
    "fence": _fence,
}


def named(names: tuple[str, ...]) -> dict[str, Operation]:
    """Those operations, each with a number: one may be there twice."""
    return {f"{number} {name}": OPERATIONS[name] for number, name in enumerate(names)}


@pytest.fixture
def start() -> Iterator[Ground]:
    with ground(prepare) as made:
        yield made


def test_every_order_of_two_operations(start: Ground) -> None:
    groups = combinations_with_replacement(OPERATIONS, 2)
    states = sum(Search(start, named(names)).run() for names in groups)
    assert states > 1_000, "each operation has several steps"


RACES: Final = (
    ("commit", "move", "reset"),
    ("delete", "move", "reclaim"),
    ("move", "move back", "reclaim"),
    ("copy", "delete", "reclaim"),
    ("copy", "reset", "reclaim"),
    ("move", "fence", "reclaim"),
)
"""What design note 008 says cannot happen, with what follows it."""


@pytest.mark.drawn("races of reclaiming")
@pytest.mark.parametrize("names", RACES, ids=" ".join)
def test_races_that_a_published_design_was_given_up_for(
    start: Ground, names: tuple[str, ...]
) -> None:
    assert Search(start, named(names), 2).run() > 1


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("size", "preemptions_max"), [(3, None), (4, 2)])
@randomized("orders of more operations")
def test_orders_of_more_operations(
    start: Ground, seed: int, seconds: float, size: int, preemptions_max: int | None
) -> None:
    """Explores groups of operations, in an order by chance, as far as the time goes."""
    until = math.inf if FULL else time.monotonic() + seconds
    groups = list(combinations_with_replacement(OPERATIONS, size))
    Random(seed).shuffle(groups)
    for names in groups:
        Search(start, named(names), preemptions_max).run(until=until)


@randomized("orders by chance")
def test_many_operations_in_orders_by_chance(start: Ground, seed: int) -> None:
    random = Random(seed)
    names = tuple(random.choices(list(OPERATIONS), k=random.randint(5, 8)))
    Search(start, named(names)).random(random)
