"""Random operations of many threads at once on PostgreSQL, with reclaimers beside them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.randomized import randomized
from tests.support.reachable import committed, staged_live, stored

THREADS: Final = 6
RECLAIMERS: Final = 2
ROUND_SECONDS: Final = 1.0
LATE_SECONDS_MAX: Final = 60
LEASE: Final = timedelta(seconds=0.2)
PATHS: Final = (*"aaaaabbbbbccccc", *"defghijk")
"""Some are in use all the time, and entries of the others outlast a lease."""
EXPECTED: Final = frozenset(
    {
        "object_not_found",
        "branch_not_found",
        "ref_not_found",
        "branch_exists",
        "branch_moved",
        "nothing_to_commit",
        "branch_dirty",
        "nothing_to_merge",
        "merge_conflict",
        "invalid_argument",
    }
)
"""What an operation may be told when another was faster."""


@pytest.fixture
def loaded(database_url: str, tmp_path: Path) -> Iterator[Store]:
    settings = Settings(
        database_url=database_url,
        lease_ttl=LEASE,
        trash_time=timedelta(0),
        range_entries_target=4,
    )
    with Store.init(tmp_path / "store", settings=settings) as store:
        yield store


def operation(lake: Repository, random: Random) -> tuple[str, Callable[[], object]]:
    branch = random.choice(["main", "main", "dev"])
    path, other = random.choice(PATHS), random.choice(PATHS)
    objects, commits = lake.objects, lake.commits

    def fence() -> None:
        context = lake.context
        with context.metadata.transaction() as tx:
            tx.lock_repository(context.repository_id, "exclusive")
            drop_ended(tx, context.repository_id, lease_ttl=LEASE, trash_time=timedelta(0))

    operations: dict[str, tuple[int, Callable[[], object]]] = {
        "upload": (6, lambda: objects.put(branch, path, random.randbytes(8))),
        "delete": (2, lambda: objects.delete(branch, path)),
        "copy": (4, lambda: objects.copy(branch, path, branch, other)),
        "copy across": (1, lambda: objects.copy("main", path, "dev", other)),
        "move": (4, lambda: objects.move(branch, path, other)),
        "commit": (2, lambda: commits.commit(branch, "")),
        "reset": (1, lambda: commits.reset(branch)),
        "reset path": (1, lambda: commits.reset_path(branch, path)),
        "reset prefix": (1, lambda: commits.reset_prefix(branch, "")),
        "create": (1, lambda: lake.branches.create("dev", "main")),
        "trash": (1, lambda: lake.branches.delete("dev")),
        "merge": (1, lambda: commits.merge("dev", "main")),
        "fence": (1, fence),
    }
    name = random.choices(list(operations), [weight for weight, _ in operations.values()])[0]
    return name, operations[name][1]


def work(lake: Repository, random: Random, ends_at: float) -> Counter[str]:
    """Operations until the time is over; how often each came to which end."""
    done: Counter[str] = Counter()
    while time.monotonic() < ends_at:
        name, act = operation(lake, random)
        try:
            act()
            done[name] += 1
        except EbbtideError as error:
            if error.kind not in EXPECTED:
                raise
            done[f"{name}: {error.kind}"] += 1
    return done


def keep_reclaiming(store: Store, ends_at: float) -> Counter[str]:
    reclaimer, done = Reclaimer(store), Counter[str]()
    while time.monotonic() < ends_at:
        done["reclaimed"] += reclaimer.once().deleted_count
    return done


def has_backlog(store: Store) -> bool:
    backlog, _ = Reclaimer(store).backlog()
    return bool(backlog.address_count or backlog.token_count)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
@randomized("operations beside reclaimers")
def test_random_operations_of_many_threads(loaded: Store, seed: int, seconds: float) -> None:
    lake = loaded.create_repository(f"lake-{seed}", storage_url=f"memory:{new_id()}")
    total: Counter[str] = Counter()
    seeds = Random(seed)
    over = time.monotonic() + seconds
    with ThreadPoolExecutor(THREADS + RECLAIMERS) as pool:
        while (now := time.monotonic()) < over or not total["reclaimed"]:
            assert now < over + LATE_SECONDS_MAX, "nothing is reclaimed beside the operations"
            ends_at = now + min(ROUND_SECONDS, seconds)
            running = [
                pool.submit(work, lake, Random(seeds.random()), ends_at) for _ in range(THREADS)
            ]
            running += [pool.submit(keep_reclaiming, loaded, ends_at) for _ in range(RECLAIMERS)]
            for each in running:
                total += each.result()
            assert (committed(lake) | staged_live(lake)) <= stored(lake), "nothing is lost"
    over = time.monotonic()
    # A branch that was trashed last is in no backlog before the next pass looks for such branches.
    Reclaimer(loaded).once()
    while has_backlog(loaded):
        assert time.monotonic() < over + LATE_SECONDS_MAX, "something is left"
        # Leases end by the database's own clock, which is the real one.
        time.sleep(LEASE.total_seconds() / 10)
        Reclaimer(loaded).once()
    assert committed(lake) | staged_live(lake) == stored(lake), "nothing is left"
