"""Concurrent operations in every order of their steps: nothing that anybody needs is deleted, and
nothing stays that nobody needs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from random import Random
from typing import Any, Final

import pytest

from ebbtide.store import moving, reclaiming
from ebbtide.store.collecting import drop_ended
from ebbtide.store.metadata import claims, staged
from ebbtide.store.reclaiming import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.exploring import (
    LEASE,
    Actor,
    Explored,
    Ground,
    Operation,
    Search,
    Violation,
    ground,
)

SECONDS: Final = os.environ.get("EBBTIDE_TEST_EXPLORATION", "60")
"""How long to explore; `full` is until everything has been."""
SEED: Final = int(os.environ.get("EBBTIDE_TEST_SEED", "0"))
SHARDS: Final = 2
RANDOM_SCHEDULES: Final = 100


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


@pytest.mark.timeout(0)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_order_of_few_operations(
    start: Ground, capsys: pytest.CaptureFixture[str], shard: int
) -> None:
    """All of any two, then of any three and of any four with two preemptions, in an order by
    chance, as far as the time goes. Each shard has its part of the groups."""
    random = Random(SEED)
    seconds = None if SECONDS == "full" else float(SECONDS) / SHARDS
    for size, preemptions_max, share in ((2, None, 0.0), (3, None, 0.6), (4, 2, 0.4)):
        ends_at = None if seconds is None else time.monotonic() + share * seconds
        total, count = Explored(), 0
        groups = list(combinations_with_replacement(OPERATIONS, size))
        random.shuffle(groups)
        groups = groups[shard::SHARDS]
        for names in groups:
            if size > 2 and ends_at is not None and time.monotonic() > ends_at:
                break
            total += Search(start, named(names), preemptions_max).run()
            count += 1
        with capsys.disabled():
            sys.stdout.write(
                f"\n{size} operations: {count} of {len(groups)} groups of shard {shard}, "
                f"{total.schedules} schedules to the end, {total.pruned} into known states, "
                f"{total.states} states"
            )
        assert size > 2 or count == len(groups)


def test_many_operations_in_orders_by_chance(start: Ground) -> None:
    for seed in range(SEED, SEED + RANDOM_SCHEDULES):
        random = Random(seed)
        names = tuple(random.choices(list(OPERATIONS), k=random.randint(5, 8)))
        Search(start, named(names)).random(random)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """Does nothing."""


def _without_lease(original: Callable[..., None]) -> Callable[..., None]:
    def release(*arguments: Any, lease_ttl: object, **options: Any) -> None:
        del lease_ttl
        original(*arguments, lease_ttl=LEASE * 0, **options)

    return release


FAULTS: Final[dict[str, tuple[object, str, Callable[[Any], Any], tuple[str, ...]]]] = {
    "a claim that does not look again": (
        claims,
        "referenced",
        lambda _: lambda *_arguments: set(),
        ("copy", "delete", "reclaim"),
    ),
    "a release without a lease": (
        staged,
        "release",
        _without_lease,
        ("overwrite", "reclaim"),
    ),
    "an overwrite that releases nothing": (
        staged,
        "release",
        lambda _: _nothing,
        ("overwrite", "upload"),
    ),
    "a commit that does not mark what is shared": (
        staged,
        "_keep_shared",
        lambda _: _nothing,
        ("commit", "move", "reset"),
    ),
    "a commit that releases nothing of what it hides": (
        staged,
        "release_selected",
        lambda _: _nothing,
        ("commit", "overwrite", "commit"),
    ),
    "a move that takes the row that a commit sealed": (
        moving,
        "share_row",
        lambda _: staged.take_row,
        ("commit", "move", "reset", "reclaim"),
    ),
    "dropped tokens that nobody takes apart": (
        reclaiming,
        "take_apart",
        lambda _: _nothing,
        ("delete branch", "reclaim"),
    ),
    "branches that are gone and stay": (
        reclaiming,
        "has_gone_branches",
        lambda _: lambda *_arguments, **_options: False,
        ("delete branch", "reclaim"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(start: Ground, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    module, name, broken, names = FAULTS[fault]
    monkeypatch.setattr(module, name, broken(getattr(module, name)))
    most = None if len(names) < 4 else 2
    with pytest.raises(Violation):
        Search(start, named(names), most).run()
