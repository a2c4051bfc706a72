"""The collector on a real S3 server that is busy, or slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.arrow import texts
from ebbtide.ids import new_id
from ebbtide.storage import clients, open_storage
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.proxy import Proxy, proxied
from tests.support.stray import STRAY, put_key
from tests.support.world import AT_ONCE, collector_of

KEPT: Final = 20


def filled(store: Store, url: str, useless: int) -> Repository:
    """A repository of some objects of no use, 20 in use, and a few commits."""
    lake = store.create_repository("lake", storage_url=f"{url}/{new_id()}")
    lake.objects.put_many("main", (NewObject(f"kept/{n}", b"kept") for n in range(KEPT)))
    lake.commits.commit("main", "kept")
    lake.objects.put_many("main", (NewObject(f"useless/{n}", b"useless") for n in range(useless)))
    lake.commits.reset("main")
    return lake


@pytest.fixture
def proxy(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, which all that is opened from now on goes through."""
    del s3_url
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, found.endpoint)
        # Clients are kept, and know the endpoint that there was.
        clients.connect.cache_clear()
        yield found
        clients.connect.cache_clear()


def test_stray_keys_are_reported_and_kept(s3_url: str, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        lake = filled(store, s3_url, 30)
        url = lake.info.storage_url
        names = [f"{place}{key}" for place in ("", "data/", "_ebbtide/") for key in STRAY]
        # Keys that are an object's but for a slash: of one that goes, of one that stays, of none.
        names += [f"{one_of(lake, b'useless')}/", f"{one_of(lake, b'kept')}/"]
        names += [f"data/{new_id()}/{new_id()}/", f"_ebbtide/trees/{new_id()}.parquet/"]
        for name in names:
            put_key(url, name)
        clock.now = datetime.now(UTC) + timedelta(seconds=2)
        report = collector_of(store, lake).run()
        assert report.state == "swept", report.error
        assert report.kinds["foreign"].objects == len(names)
        assert report.counts["deleted"].objects == 30
        left = {name for batch in open_storage(url).list() for name in texts(batch["address"])}
        assert left >= set(names)
        assert collector_of(store, lake).run().counts["candidate"].objects == 0
        check(lake)


def one_of(lake: Repository, data: bytes) -> str:
    """The address of an object with that content."""
    return next(
        address
        for batch in lake.storage.list("data/")
        for address in texts(batch["address"])
        if lake.storage.get(address) == data
    )


def check(lake: Repository) -> None:
    """What is in use reads back, and nothing else is there."""
    assert {lake.objects.get("main", f"kept/{n}") for n in range(KEPT)} == {b"kept"}
    regular = [
        each for batch in lake.storage.list("data/") for each in batch["regular"].to_pylist()
    ]
    assert regular.count(True) == KEPT


def test_a_server_that_is_slow_and_refuses_a_twentieth(
    s3_url: str, tmp_path: Path, proxy: Proxy
) -> None:
    """More objects than one request deletes."""
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        lake = filled(store, s3_url, 1_100)
        clock.now = datetime.now(UTC) + timedelta(seconds=2)
        proxy.busy_share, proxy.delay_seconds = 0.05, 0.05
        report = collector_of(store, lake).run()
        assert report.state == "swept", report.error
        counts = {name: report.counts[name].objects for name in ("deleted", "missing", "failed")}
        assert counts == {"deleted": 1_100, "missing": 0, "failed": 0}
        proxy.delay_seconds = 0.0
        check(lake)


def test_most_deletes_are_refused(s3_url: str, proxy: Proxy) -> None:
    proxy.busy_share = 0.6
    storage = open_storage(f"{s3_url}/{new_id()}")
    addresses = [f"data/{new_id()}/{new_id()}" for _ in range(3_000)]
    outcomes = storage.delete(addresses)
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert proxy.refused > 0
