"""Holds, and purges that name the commit which is held."""

from __future__ import annotations

from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.purging import in_the_way, purge, save


def test_a_commit_that_is_held_is_not_purged_by_its_name(
    store: Store, repository: Repository
) -> None:
    repository.branches.create("side", "main")
    commit_id = save(repository, "a", branch="side")
    repository.retention.hold("side", "a court")

    refused = purge(store, commits=("side",))

    assert refused.row.error is not None
    assert refused.row.error["kind"] == "purge_held"
    assert in_the_way(refused) == {("hold", commit_id, ("a court",))}
    assert repository.objects.get("side", "a") == b"a"
