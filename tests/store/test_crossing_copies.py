"""Copies between two repositories in opposite directions, while fences wait for both."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from ebbtide.ids import new_id
from ebbtide.store.database.engine import Transaction
from ebbtide.store.embedded import Store
from ebbtide.store.objects.objects import Readable
from ebbtide.store.repository import Repository
from tests.support.locks import SECONDS_MAX, waits_for_a_lock


def copy(source: Repository, target: Repository) -> object:
    return target.objects.put_copy(
        "main", "copy", source.objects.open("main", "a"), content_type=None, metadata={}
    )


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_no_deadlock(store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy has its own repository shared, and asks for the other one, for which a fence waits.
    PostgreSQL gives a shared lock beside shared ones, whoever waits: so nobody waits in a circle.
    On SQLite each transaction that writes runs alone."""
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    for lake in (repository, other):
        lake.objects.put("main", "a", lake.info.name.encode())
    original = Readable.require_kept
    met, may_go_on = Barrier(3), Event()

    def require_kept(self: Readable, tx: Transaction) -> None:
        met.wait(SECONDS_MAX)
        assert may_go_on.wait(SECONDS_MAX)
        original(self, tx)

    def fence(lake: Repository) -> None:
        with store.metadata.transaction() as tx:
            tx.lock_repository(lake.info.repository_id, "exclusive")

    monkeypatch.setattr(Readable, "require_kept", require_kept)
    with ThreadPoolExecutor(4) as pool:
        begun: list[Future[object]] = [
            pool.submit(copy, repository, other),
            pool.submit(copy, other, repository),
        ]
        met.wait(SECONDS_MAX)
        for count, lake in enumerate((repository, other), 1):
            begun.append(pool.submit(fence, lake))
            assert waits_for_a_lock(store.metadata, begun[-1], count=count)
        may_go_on.set()
        for each in begun:
            each.result(SECONDS_MAX)
    assert repository.objects.get("main", "copy") == b"other"
    assert other.objects.get("main", "copy") == b"lake"
