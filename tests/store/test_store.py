"""Stores and repositories: made, opened, refused; names, slices, and the run's lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound, Refused
from ebbtide.ids import instant_of, new_id
from ebbtide.model import EPOCH
from ebbtide.settings import Settings
from ebbtide.storage import Content, LocalStorage
from ebbtide.store.content.layout import classify
from ebbtide.store.context import CurrentSlice
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import gc_leases
from ebbtide.store.embedded import Store
from ebbtide.store.names import (
    check_metadata,
    check_path,
    check_ref_name,
    check_repository_name,
    check_text,
)
from ebbtide.store.repositories.leases import Lease, beat, release_lease, take_lease
from ebbtide.store.repositories.owner import OWNER_ADDRESS
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises


def test_init_open_and_init_again(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "store"
    with pytest.raises(NotFound, match="ebbtide init") as missing:
        Store.open(directory)
    assert missing.value.kind == "store_not_found"
    assert not directory.exists(), "looking makes nothing"
    with Store.init(directory) as store:
        store_id = store.store_id
    with Store.open(None, settings=Settings(store=directory)) as store:
        assert store.store_id == store_id
    with raises("store_exists"):
        Store.init(directory)
    with pytest.raises(InvalidInput, match="EBBTIDE_STORE"):
        Store.open(None, settings=Settings())
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="no store can be made"):
        Store.init(tmp_path / "file" / "store")


def test_a_new_repository(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    lake = store.create_repository("lake", default_branch="trunk")
    assert lake.info.storage_url == (tmp_path / "store" / "storage" / "lake").as_uri()
    assert lake.info.created_at == clock.now
    (branch,) = lake.branches.list()
    assert branch.name == "trunk"
    commit = lake.commits.get("trunk")
    assert (commit.commit_id, commit.parent_ids) == (branch.commit_id, ())
    assert commit.created_at == EPOCH
    assert commit.written_at == clock.now
    assert commit.message == "Repository created"
    assert list(lake.objects.walk("trunk")) == []
    assert lake.storage.head(OWNER_ADDRESS) is not None
    assert [each.info for each in store.catalog.list()] == [lake.info]
    assert store.repository("lake") is store.repository("lake")


def test_names_and_roots_are_taken_once(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "data"
    store.create_repository("lake", storage_url=str(root))
    for name, url, kind in [
        ("lake", str(tmp_path / "other"), "repository_exists"),
        ("pond", str(root), "nested_root"),
        ("pond", str(root / "inside"), "nested_root"),
        ("pond", str(tmp_path), "nested_root"),
        ("pond", f"{root}/../data/./x", "nested_root"),
    ]:
        with raises(kind):
            store.create_repository(name, storage_url=url)
    with raises("repository_not_found"):
        store.repository("pond")
    store.create_repository("pond", storage_url=str(tmp_path / "data2"))


def test_roots_in_use_by_others_are_refused(store: Store, tmp_path: Path) -> None:
    """By another store, by a repository of another format, or by anybody's files."""
    with Store.init(tmp_path / "other") as other:
        other.create_repository("lake", storage_url=str(tmp_path / "data"))
    for name in ("lakefs/_lakefs/dummy", "ice/snapshots/1CECHNKREP0F1RSTCMT0", "full/sub/file"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("mine")
    for root, kind, says in (
        ("data", "root_not_empty", ""),
        ("data/in/side", "nested_root", ""),
        ("lakefs/data/inner", "nested_root", "lies inside the lakefs repository at"),
        ("ice/data/inner", "nested_root", "lies inside the icechunk repository at"),
        ("full", "root_not_empty", "sub/file"),
    ):
        with raises(kind) as caught:
            store.create_repository("lake", storage_url=str(tmp_path / root))
        assert says.lower() in caught.value.message.lower()
    assert store.catalog.list() == []
    assert not (tmp_path / "ice" / "data").exists()
    assert (tmp_path / "full" / "sub" / "file").read_text() == "mine"


def test_a_claim_that_fails_leaves_no_repository(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_self: object) -> None:
        raise Conflict("root_not_empty", "somebody was faster")

    url = f"memory:{new_id()}"
    with monkeypatch.context() as patch:
        patch.setattr("ebbtide.store.repositories.owner.Ownership.claim", taken)
        with pytest.raises(Conflict, match="faster"):
            store.create_repository("lake", storage_url=url)
    assert store.catalog.list() == []
    lake = store.create_repository("lake", storage_url=url)
    assert lake.branches.get("main").commit_id


def test_stores_without_a_directory(database_url: str, clock: ManualClock) -> None:
    """They need a storage. Roots in memory have names of their own."""
    base = f"memory:{new_id()}"
    settings = Settings(database_url=database_url)
    with (
        Store.init(None, settings=settings, clock=clock) as store,
        pytest.raises(InvalidInput, match="EBBTIDE_STORAGE_URL"),
    ):
        store.create_repository("lake")
    settings = Settings(database_url=database_url, storage_url=base)
    with Store.open(None, settings=settings, clock=clock) as store:
        for name in ("lake", "pond"):
            assert store.create_repository(name).info.storage_url == f"{base}.{name}"


def test_what_a_creation_that_broke_off_left_is_no_obstacle(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage goes away before OWNER is there, or its answer is lost: it is made again."""
    tree = tmp_path / "root" / "_ebbtide" / "trees" / f"{'0' * 32}.parquet"
    tree.parent.mkdir(parents=True)
    tree.write_bytes(b"half")
    put = LocalStorage.put

    def lost(storage: LocalStorage, address: str, data: Content, **more: Any) -> None:
        put(storage, address, data, **more)
        if address == OWNER_ADDRESS:
            raise Failed("storage_error", "the answer got lost")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "put", lost)
        with pytest.raises(Failed):
            store.create_repository("lake", storage_url=str(tmp_path / "root"))
    made = store.create_repository("lake", storage_url=str(tmp_path / "root"))
    made.objects.put("main", "a", b"1")
    assert made.commits.commit("main", "first").message == "first"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tree").symlink_to(tree)
    with pytest.raises(Conflict, match="is not empty"):
        store.create_repository("sea", storage_url=str(tmp_path / "other"))


Check = Callable[[str], None]

GOOD: Final[dict[Check, tuple[str, ...]]] = {
    check_repository_name: ("abc", "a-1", "0" * 63),
    check_ref_name: (
        *("main", "v1.0", "feature/x-1", "_", "a" * 255, "deadbeef", "A.lock.x", "f" * 31),
    ),
    check_path: (
        *("a", "a/b", "a//b", "a/", ".a", "..a", "a b", "ä/日本", "é" * 512, "\U0010ffff"),
        *("/a", "/", "//", ".", "..", "a/./b", "a/../b", "a/..", "a\nb", "a\tb", "a\x7f", "a\x85"),
    ),
}
BAD: Final[dict[tuple[Check, str, str], tuple[str, ...]]] = {
    (check_repository_name, "invalid_name", "3 to 63"): (
        *("", "ab", "-abc", "Abc", "a_b", "a.b", "a" * 64, "abc\n", "ä-b"),
    ),
    (check_ref_name, "invalid_name", "at most 255"): (
        *("", ".a", "-a", "/a", "a..b", "a//b", "a/", "a.", "a.lock", "a" * 256, "a b", "a~1"),
        *("a^", "a@", "ä", "a\n", "x" * 10**6),
    ),
    (check_ref_name, "invalid_name", "looks like the id"): ("0123456789abcdef" * 2,),
    (check_path, "invalid_path", "1 to 1024 bytes"): (
        *("", "a\0", "\ud800", "x" * 1025, "x" * 10**6),
    ),
}


def test_names() -> None:
    for good, names in GOOD.items():
        for name in names:
            good(name)
    for (check, kind, says), names in BAD.items():
        for name in names:
            _refused(check, name, kind, says)


def test_metadata_and_texts() -> None:
    check_metadata({"key": "value"})
    _refused(check_metadata, {"key": 1}, "invalid_argument", "text to text")
    _refused(check_metadata, {"key": "x" * 20_000}, "invalid_argument", "at most 16384")
    text = partial(check_text, "it", bytes_max=9)
    _refused(text, "a\0", "invalid_argument", "zero byte")
    _refused(text, "\ud800", "invalid_argument", "Unicode")


def _refused(check: Callable[..., None], value: object, kind: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(value)
    assert caught.value.kind == kind, value
    assert says in caught.value.message
    assert len(caught.value.message) < 400


NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def make(objects_max: int = 1000) -> CurrentSlice:
    return CurrentSlice(Settings(slice_objects_max=objects_max, slice_age_max=HOUR))


def slice_of(address: str) -> str:
    return address.split("/")[1]


def test_addresses_are_of_objects_and_of_one_slice() -> None:
    addresses = make().new_addresses(20, now=NOW)
    assert set(classify(pa.array(addresses)).to_pylist()) == {"object"}
    assert len(set(addresses)) == 20
    assert len({slice_of(each) for each in addresses}) == 1
    assert instant_of(slice_of(addresses[0])) == NOW
    assert make().new_addresses(0, now=NOW) == []
    other = make().new_addresses(1, now=NOW)[0]
    assert slice_of(other) != slice_of(addresses[0]), "of another process, in one microsecond"


def test_a_slice_closes_when_it_is_full() -> None:
    """Within one call, too. What is counted begins anew in each slice."""
    slices = make(objects_max=3)
    found = [slice_of(each) for count in (1, 1, 5) for each in slices.new_addresses(count, now=NOW)]
    assert [*Counter(found).values()] == [3, 3, 1]
    later = [slice_of(each) for each in slices.new_addresses(3, now=NOW + HOUR)]
    assert len(set(later)) == 1


def test_a_slice_closes_at_its_age_or_when_it_is_of_the_future() -> None:
    """The clock was ahead when it was opened. Threads may read the time in another order."""
    slices = make()
    last = HOUR - timedelta(microseconds=1)
    first, just_before, exactly, still, back = (
        slice_of(slices.new_addresses(1, now=NOW + moment)[0])
        for moment in (timedelta(0), last, HOUR, timedelta(microseconds=1), timedelta(0))
    )
    assert first == just_before
    assert exactly < first, "the newest sorts first"
    assert instant_of(exactly) == NOW + HOUR
    assert still == exactly
    assert instant_of(back) == NOW


def test_threads_share_slices_and_no_address() -> None:
    slices = make(objects_max=50)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda n: slices.new_addresses(n % 7, now=NOW), range(400)))
    addresses = [address for batch in batches for address in batch]
    assert len(set(addresses)) == len(addresses) == sum(n % 7 for n in range(400))
    counts = Counter(map(slice_of, addresses))
    assert sorted(counts.values(), reverse=True)[:-1] == [50] * (len(addresses) // 50)


TTL = timedelta(seconds=30)


def take(repository: Repository, run_id: str) -> Lease:
    return take_lease(
        repository.context.metadata,
        repository_id=repository.info.repository_id,
        run_id=run_id,
        lease_ttl=TTL,
    )


def test_who_lost_it_is_told_to_whom(repository: Repository, clock: ManualClock) -> None:
    metadata = repository.context.metadata
    lost = take(repository, "first")
    clock.advance(TTL)
    taken = take(repository, "second")
    with pytest.raises(Refused, match="run first lost the repository to run second: it deletes no"):
        beat(metadata, lost)
    release_lease(metadata, taken)
    with pytest.raises(Refused, match="to another run, which has ended: it deletes nothing more"):
        beat(metadata, lost)


def test_a_heartbeat_of_the_future_holds_nothing(
    repository: Repository, clock: ManualClock
) -> None:
    """A clock was ahead. A live run would have sent another heartbeat since."""
    clock.advance(TTL)
    lost = take(repository, "first")
    clock.advance(timedelta(microseconds=1) - TTL)
    with pytest.raises(Refused, match="last heard of"):
        take(repository, "second")
    clock.advance(timedelta(microseconds=-1))
    assert take(repository, "second").run_epoch == lost.run_epoch + 1


@dataclass(frozen=True, slots=True)
class Outrun(Lease):
    """A lease that another run takes just after it was looked at."""

    repository: Repository
    clock: ManualClock

    def check(self, tx: Transaction) -> None:
        Lease.check(self, tx)
        self.clock.advance(TTL)
        take(self.repository, "second")
        self.clock.advance(-TTL)


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_a_late_heartbeat_is_not_that_of_the_next_run(
    repository: Repository, clock: ManualClock
) -> None:
    first = take(repository, "first")
    began = clock.now
    beat(
        repository.context.metadata,
        Outrun(first.repository_id, first.run_id, first.run_epoch, repository, clock),
    )
    with repository.context.metadata.snapshot() as tx:
        row = tx.execute(sa.select(gc_leases)).one()
    assert (row.run_id, row.heartbeat_at) == ("second", began + TTL)
