"""The check before each batch: which refs it looks at, and what it finds behind them."""

from __future__ import annotations

import json
from datetime import timedelta
from random import Random

from ebbtide.formats.lakefs.layout import began_at
from ebbtide.formats.lakefs.needed import LakefsGuard
from ebbtide.formats.lakefs.repository import GRACE
from ebbtide.formats.notes import POLICY_ADDRESS
from ebbtide.retention.decision import decide
from tests.formats.lakefs.world import DAY, LakefsWorld, old_commit, open_lakefs_world, step
from tests.support.randomized import randomized

POLICY = {"default": "7d", "tags": {"keep_within": "1d"}}


def guarded(world: LakefsWorld) -> LakefsGuard:
    repository, cutoff = world.repository(), world.clock.now - GRACE

    with repository.reading(cutoff) as reading:
        decision = decide(reading.roots())
    return repository.guard(decision.active.keys(), decision.expired)


def test_a_tag_that_expires_stops_no_sweep(world: LakefsWorld) -> None:
    world.state.storage.put(POLICY_ADDRESS, json.dumps(POLICY).encode())
    world.state.tags["old"], _ = old_commit(world)
    swept = world.collector().run()
    assert (swept.state, swept.error, swept.counts["deleted"].objects) == ("swept", None, 1)


@randomized("guards of lakeFS sweeps")
def test_guards_of_random_histories(seed: int) -> None:
    """What changed refs read is found, and nothing else stops a sweep."""
    random = Random(seed)
    with open_lakefs_world() as world:
        world.state.storage.put(POLICY_ADDRESS, json.dumps(POLICY).encode())
        for _ in range(random.randrange(5, 30)):
            step(world, random)
            world.grow_old(timedelta(hours=random.randrange(1, 72)))
        world.grow_old(random.choice((DAY, 8 * DAY)))
        guard = guarded(world)
        before = _refs(world)
        for _ in range(random.randrange(8)):
            step(world, random)
        changed = [commit_id for *_, commit_id in _refs(world) - before]
        found = set(guard.needed())
        live = {
            entry.address
            for each in guard.kept
            for entry in world.state.commits[each].entries.values()
        }
        read = {
            entry.address
            for each in changed
            for entry in world.state.commits[each].entries.values()
            if _is_old(entry.address, guard)
        }
        assert read - live <= found
        assert found <= _behind(world, changed, guard.kept)


def _refs(world: LakefsWorld) -> set[tuple[str, str, str]]:
    branches = {("branch", name, each.head) for name, each in world.state.branches.items()}
    return branches | {("tag", name, commit_id) for name, commit_id in world.state.tags.items()}


def _behind(world: LakefsWorld, heads: list[str], kept: frozenset[str]) -> set[str]:
    """The addresses in commits that changed refs reach, without the commits below kept ones."""
    found, waiting = set[str](), [*heads]
    while waiting:
        commit_id = waiting.pop()
        if commit_id in kept:
            continue
        commit = world.state.commits[commit_id]
        found |= {entry.address for entry in commit.entries.values()}
        waiting += commit.parents
    return found


def _is_old(address: str, guard: LakefsGuard) -> bool:
    began = began_at(address.rpartition("/")[0], now=guard.cutoff + 365 * DAY)
    return began is not None and began < guard.cutoff
