"""Real threads: writers and a committer on one branch, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from itertools import count
from threading import Event, Semaphore

import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict
from ebbtide.store.database.schema import pending, staged
from ebbtide.store.repository import Repository
from ebbtide.store.staging.queries import Change, write_staged
from tests.support.locks import waits_for_a_lock

pytestmark = pytest.mark.twins

WRITERS = 4
OBJECTS = 25
OBJECTS_MAX = 5_000


def attempt_commit(repository: Repository) -> str:
    try:
        repository.commits.commit("main", "")
    except Conflict as error:
        assert error.kind in ("nothing_to_commit", "branch_moved")
        return error.kind
    return "done"


def test_no_write_is_lost_between_commits(repository: Repository) -> None:
    """Writers go on until there were commits beside them, for on a busy machine they may be done
    before the first."""
    stop, committed = Event(), Semaphore(0)
    written: list[range] = [range(0)] * WRITERS

    def write(writer: int) -> None:
        for number in count():
            if number >= OBJECTS and committed.acquire(blocking=False):
                written[writer] = range(number)
                return
            assert number < OBJECTS_MAX, "nothing is committed beside the writers"
            repository.objects.put("main", f"{writer}/{number:02}", b"%d" % number)
            repository.objects.put("main", "shared", b"%d" % writer)

    def commit_on() -> list[str]:
        outcomes = []
        while not stop.is_set():
            outcomes.append(attempt_commit(repository))
            if outcomes[-1] == "done":
                committed.release()
        return outcomes

    with ThreadPoolExecutor(WRITERS + 2) as pool:
        committers = [pool.submit(commit_on) for _ in range(2)]
        writers = [pool.submit(write, writer) for writer in range(WRITERS)]
        wait(writers)
        stop.set()
        for future in writers:
            future.result()
        outcomes = [outcome for future in committers for outcome in future.result()]
    attempt_commit(repository)
    assert outcomes.count("done") >= WRITERS
    found = {entry.path: entry.address for entry in repository.objects.walk("main@")}
    expected = {
        f"{writer}/{number:02}" for writer, numbers in enumerate(written) for number in numbers
    }
    assert set(found) == expected | {"shared"}
    for path in expected:
        assert repository.objects.get("main", path) == b"%d" % int(path[2:])
    with repository.context.metadata.snapshot() as tx:
        for table in (staged, pending):
            assert tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 0


def test_staging_the_same_paths_in_another_order_makes_no_deadlock(
    repository: Repository,
) -> None:
    context = repository.context
    changes: dict[str, Change] = {f"{number:03}": None for number in range(300)}
    backwards = dict(reversed(changes.items()))

    def stage(mine: dict[str, Change]) -> None:
        for _ in range(15):
            with context.metadata.transaction() as tx:
                write_staged(tx, context.repository_id, "token", mine, lease_ttl=timedelta(hours=1))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(stage, mine) for mine in (changes, backwards)]:
            future.result()


MAKERS: dict[str, Callable[[Repository], object]] = {
    "create a branch": lambda lake: lake.branches.create("dev", "main"),
    "create a tag": lambda lake: lake.tags.create("dev", "main"),
    "restore a branch": lambda lake: lake.branches.restore("old"),
    "restore a tag": lambda lake: lake.tags.restore("v0"),
    "give a commit up": lambda lake: lake.give_up(lake.commits.resolve("main~1"), ""),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_whoever_takes_a_name_waits_for_all_who_change_refs(
    repository: Repository, maker: str
) -> None:
    """Names are unique only by this: nothing in the tables says so."""
    repository.commits.commit("main", "", allow_empty=True)
    repository.branches.create("old", "main")
    repository.tags.create("v0", "main")
    repository.branches.delete("old")
    repository.tags.delete("v0")
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            tx.lock_repository(context.repository_id, "share")
            made = pool.submit(MAKERS[maker], repository)
            assert waits_for_a_lock(context.metadata, made)
        made.result(timeout=20)


def test_one_of_two_makes_a_branch(repository: Repository) -> None:
    def create(_: int) -> str:
        try:
            return repository.branches.create("dev", "main").branch_id
        except Conflict as error:
            return error.kind

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(create, range(4)))
    assert outcomes.count("branch_exists") == 3
    assert [branch.name for branch in repository.branches.list()] == ["dev", "main"]
