"""The fence of a run on Ebbtide's own store, beside operations that make references."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ebbtide.errors import Gone
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.ids import new_id
from ebbtide.retention.decision import Roots
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.errors import raises
from tests.support.locks import waits_for_a_lock

Operation = Callable[[Repository], object]

OPERATIONS: dict[str, Operation] = {
    "branch": lambda lake: lake.branches.create("again", "side"),
    "commit": lambda lake: lake.commits.commit("side", "more"),
    "copy": lambda lake: lake.objects.copy("main", "b", "side", "a"),
    "merge": lambda lake: lake.commits.merge("side", "main"),
    "restore": lambda lake: lake.branches.restore("trashed"),
    "revert": lambda lake: lake.commits.revert("side", "side"),
    "tag": lambda lake: lake.tags.create("again", "side"),
}


@pytest.mark.twins
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_rests_on_a_commit_waits_for_the_fence(
    store: Store, repository: Repository, name: str
) -> None:
    """Behind it, it is told that the commit is closed."""
    repository.branches.create("side", "main")
    repository.objects.put("side", "a", b"a")
    commit = repository.commits.commit("side", "").commit_id
    repository.branches.create("trashed", "side")
    repository.branches.delete("trashed")
    if name == "commit":
        repository.objects.put("side", "b", b"b")
    form = EmbeddedRepository(repository.context, store_id=store.store_id)
    run_id = new_id()
    form.record_run(run_id, state="planned", run_path="memory:")
    with ThreadPoolExecutor(1) as pool, form.hold(run_id) as hold:
        begun: list[Future[object]] = []

        def choose(_roots: Roots) -> list[str]:
            begun.append(pool.submit(OPERATIONS[name], repository))
            assert waits_for_a_lock(store.metadata, begun[0])
            return [commit]

        form.fence(hold, run_id, choose)
        with raises("commit_expired", of=Gone):
            begun[0].result(timeout=20)
