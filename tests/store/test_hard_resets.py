"""Hard resets: where the branch is, what is staged then, and which commits stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.store.database.schema import commits
from ebbtide.store.repository import Repository
from tests.support.collections import raises
from tests.support.lakes import reflog_of, save, tombstone
from tests.support.locks import waits_for_a_lock

SECONDS_MAX = 20


def test_the_branch_is_on_the_commit_of_the_ref(repository: Repository) -> None:
    first = save(repository, "a")
    second = save(repository, "b")
    before = reflog_of(repository)
    assert repository.commits.reset_to("main", "main").commit_id == second
    assert reflog_of(repository) == before
    moved = repository.commits.reset_to("main", "main~1")
    assert moved.commit_id == repository.commits.resolve("main") == first
    assert reflog_of(repository) == [*before, ("branch", "main", second)]


def test_what_is_refused(repository: Repository) -> None:
    first, second = save(repository, "a"), save(repository, "b")
    with raises("branch_not_found"):
        repository.commits.reset_to("dev", first)
    with raises("ref_not_found"):
        repository.commits.reset_to("main", "nothing")
    tombstone(repository, first)
    with pytest.raises(Gone) as closed:
        repository.commits.reset_to("main", first)
    assert closed.value.details == {"commit_id": first, "run_id": "run7"}
    repository.protection.set(["main"])
    with raises("write_protected"):
        repository.commits.reset_to("main", "main")
    assert repository.commits.resolve("main") == second


@pytest.mark.twins
@pytest.mark.parametrize("closes", [True, False])
def test_it_waits_for_a_fence(repository: Repository, closes: bool) -> None:
    """A fence that closes the target is finished: the reset is refused. A fence that does not close
    it is followed by the reset, and the target is a head from then on."""
    first, second = save(repository, "a"), save(repository, "b")
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            tx.lock_repository(context.repository_id, "exclusive")
            begun = pool.submit(repository.commits.reset_to, "main", first)
            assert waits_for_a_lock(context.metadata, begun)
            if closes:
                tx.execute(
                    sa.update(commits)
                    .where(commits.c.commit_id == first)
                    .values(tombstoned_by="run7")
                )
        if closes:
            with pytest.raises(Gone):
                begun.result(timeout=SECONDS_MAX)
        else:
            begun.result(timeout=SECONDS_MAX)
    assert repository.commits.resolve("main") == (second if closes else first)
