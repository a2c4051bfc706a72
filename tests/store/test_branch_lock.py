"""Operations that change what a branch holds, beside a transaction that has the branch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from ebbtide.errors import Conflict
from ebbtide.store.content.layout import TREES_PREFIX
from ebbtide.store.refs.queries import require_branch, update_branch
from ebbtide.store.repository import Repository
from tests.support.faulty import FaultyStorage, OncePut, with_storage
from tests.support.locks import waits_for_a_lock

OPERATIONS: dict[str, Callable[[Repository], object]] = {
    "commit": lambda lake: lake.commits.commit("main", "more"),
    "delete": lambda lake: lake.objects.delete("main", "a"),
    "move": lambda lake: lake.objects.move("main", "b", "a"),
    "put": lambda lake: lake.objects.put("main", "c", b"c"),
    "reset": lambda lake: lake.commits.reset("main"),
}

SECONDS_MAX = 20

pytestmark = pytest.mark.twins


@pytest.mark.parametrize("name", OPERATIONS)
def test_it_waits_for_the_branch(repository: Repository, name: str) -> None:
    repository.objects.put("main", "a", b"a")
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            require_branch(tx, context.repository_id, "main", lock="exclusive")
            begun = pool.submit(OPERATIONS[name], repository)
            assert waits_for_a_lock(context.metadata, begun)
        begun.result(timeout=SECONDS_MAX)


def test_a_commit_looks_at_the_branch_again_once_it_has_it(repository: Repository) -> None:
    """Its tree is written, and another transaction moves the branch before it is published."""
    other = repository.commits.commit("main", "other", allow_empty=True)
    repository.commits.commit("main", "head", allow_empty=True)
    repository.objects.put("main", "a", b"a")
    context = repository.context
    is_written, is_locked = Event(), Event()

    def wait() -> None:
        is_written.set()
        assert is_locked.wait(SECONDS_MAX)

    hook = OncePut(TREES_PREFIX, wait)
    slow = with_storage(repository, FaultyStorage(repository.storage, before=hook))
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(slow.commits.commit, "main", "more")
        assert is_written.wait(SECONDS_MAX)
        with context.metadata.transaction() as tx:
            branch = require_branch(tx, context.repository_id, "main", lock="exclusive")
            update_branch(tx, context.repository_id, branch.branch_id, commit_id=other.commit_id)
            is_locked.set()
            assert waits_for_a_lock(context.metadata, begun)
        with pytest.raises(Conflict) as moved:
            begun.result(timeout=SECONDS_MAX)
    assert moved.value.kind == "branch_moved"
