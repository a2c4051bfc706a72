"""Stores and repositories: made, opened, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.model import EPOCH
from ebbtide.settings import Settings
from ebbtide.storage import Content, LocalStorage
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.owner import OWNER_ADDRESS
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
    """The storage goes away before OWNER is there, or its answer gets lost: the same root is asked
    for again."""
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
