"""The collector on a real S3 server that is busy, or slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.arrow import texts
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage import clients, open_storage
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.proxy import Proxy, proxied
from tests.support.stray import STRAY, put_key

SETTINGS: Final = Settings(lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0)


@pytest.fixture
def filled(s3_url: str, tmp_path: Path) -> Path:
    """A store with a repository of 1,100 objects of no use, 20 in use, and a few commits."""
    with Store.init(tmp_path / "store", settings=SETTINGS) as store:
        made = store.create_repository("lake", storage_url=f"{s3_url}/{new_id()}")
        made.objects.put_many("main", (NewObject(f"kept/{n}", b"kept") for n in range(20)))
        made.commits.commit("main", "kept")
        made.objects.put_many("main", (NewObject(f"useless/{n}", b"useless") for n in range(1_100)))
        made.commits.reset("main")
    return tmp_path / "store"


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


def test_stray_keys_are_reported_and_kept(filled: Path) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=2))
    with Store.open(filled, settings=SETTINGS, clock=clock) as store:
        lake = store.repository("lake")
        url = lake.info.storage_url
        names = [f"{place}{key}" for place in ("", "data/", "_ebbtide/") for key in STRAY]
        # Keys that are an object's but for a slash: of one that goes, of one that stays, of none.
        names += [f"{one_of(lake, b'useless')}/", f"{one_of(lake, b'kept')}/"]
        names += [f"data/{new_id()}/{new_id()}/", f"_ebbtide/trees/{new_id()}.parquet/"]
        for name in names:
            put_key(url, name)
        repository = EmbeddedRepository(lake.context, store_id=store.store_id)
        options = RunOptions.of(store.settings, grace=timedelta(0), unsafe=True, mode="clean")
        report = Collector(repository, engine=INLINE, options=options).run()
        assert report.state == "swept", report.error
        assert report.kinds["foreign"].objects == len(names)
        assert report.counts["deleted"].objects == 1_100
        left = {name for batch in open_storage(url).list() for name in texts(batch["address"])}
        assert left >= set(names)
        again = Collector(repository, engine=INLINE, options=options).run()
        assert again.counts["candidate"].objects == 0
        check(lake)


def one_of(lake: Repository, data: bytes) -> str:
    """The address of an object with that content."""
    return next(
        address
        for batch in lake.storage.list("data/")
        for address in texts(batch["address"])
        if lake.storage.get(address) == data
    )


@pytest.fixture
def lake(filled: Path, proxy: Proxy) -> Iterator[tuple[Store, Repository]]:
    """That repository, behind the proxy, at an instant when all of its objects are old."""
    del proxy
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=2))
    with Store.open(filled, settings=SETTINGS, clock=clock) as store:
        yield store, store.repository("lake")


def collect(store: Store, lake: Repository) -> dict[str, int]:
    """A clean run with next to no grace; what became of how many."""
    options = RunOptions.of(store.settings, grace=timedelta(0), unsafe=True, mode="clean")
    repository = EmbeddedRepository(lake.context, store_id=store.store_id)
    report = Collector(repository, engine=INLINE, options=options).run()
    assert report.state == "swept", report.error
    return {name: count.objects for name, count in report.counts.items()}


def check(lake: Repository) -> None:
    """What is in use reads back, and nothing else is there."""
    assert {lake.objects.get("main", f"kept/{n}") for n in range(20)} == {b"kept"}
    regular = [
        each for batch in lake.storage.list("data/") for each in batch["regular"].to_pylist()
    ]
    assert regular.count(True) == 20


def test_a_twentieth_of_all_requests_is_refused(
    lake: tuple[Store, Repository], proxy: Proxy
) -> None:
    proxy.busy_share = 0.05
    counts = collect(*lake)
    assert (counts["deleted"], counts["missing"], counts["failed"]) == (1_100, 0, 0)
    check(lake[1])


def test_most_deletes_are_refused(s3_url: str, proxy: Proxy) -> None:
    proxy.busy_share = 0.6
    storage = open_storage(f"{s3_url}/{new_id()}")
    addresses = [f"data/{new_id()}/{new_id()}" for _ in range(3_000)]
    outcomes = storage.delete(addresses)
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert proxy.refused > 0


def test_every_call_takes_long(lake: tuple[Store, Repository], proxy: Proxy) -> None:
    proxy.delay_seconds = 0.05
    counts = collect(*lake)
    proxy.delay_seconds = 0.0
    assert (counts["deleted"], counts["failed"]) == (1_100, 0)
    check(lake[1])
