"""The file system on a store and through a server: the same tests for both."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound
from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.filesystem.lake import Place
from ebbtide.store.embedded import Store
from tests.support.errors import raises
from tests.support.server import Server

MAIN = "lake/main"
A = f"{MAIN}/a"


def test_listing(fs: EbbtideFileSystem) -> None:
    """Repositories, refs, paths; a file has its size, checksum and date."""
    fs.pipe({f"{MAIN}/x/1": b"one", f"{MAIN}/x/y/2": b"two", f"{MAIN}/z": b""})
    assert sorted(fs.ls("", detail=False)) == ["lake", "pond"]
    assert fs.ls("ebbtide://lake", detail=False) == [MAIN]
    assert sorted(fs.ls(MAIN, detail=False)) == [f"{MAIN}/x", f"{MAIN}/z"]
    assert fs.ls(f"{MAIN}/z", detail=False) == [f"{MAIN}/z"]
    kinds = {each["name"]: each["type"] for each in fs.ls(f"{MAIN}/x")}
    assert kinds == {f"{MAIN}/x/1": "file", f"{MAIN}/x/y": "directory"}
    info = fs.info(f"{MAIN}/x/1")
    assert (info["size"], info["mtime"]) == (3, fs.modified(f"{MAIN}/x/1"))
    assert len(info["checksum"]) == 64
    assert fs.ukey(f"{MAIN}/x/1") == info["checksum"]
    assert all(fs.isdir(each) for each in ("", "lake", MAIN, f"{MAIN}/x"))
    assert fs.find("lake") == [f"{MAIN}/x/1", f"{MAIN}/x/y/2", f"{MAIN}/z"] == fs.find(MAIN)
    assert fs.find(f"{MAIN}/x", maxdepth=1) == [f"{MAIN}/x/1"]
    assert fs.glob(f"{MAIN}/**/2") == [f"{MAIN}/x/y/2"]
    assert fs.find(f"{MAIN}/x", withdirs=True) == [
        f"{MAIN}/x", f"{MAIN}/x/1", f"{MAIN}/x/y", f"{MAIN}/x/y/2"
    ]  # fmt: skip


def test_missing(fs: EbbtideFileSystem) -> None:
    """Named as every program expects; the cause says more."""
    for missing in ("none", "lake/none", f"{MAIN}/none", "none/main/a"):
        assert not fs.exists(missing)
        for call in (fs.info, fs.ls, fs.created):
            with pytest.raises(FileNotFoundError) as found:
                call(missing)
            assert isinstance(found.value.__cause__, EbbtideError)
            assert found.value.filename == missing
        assert fs.find(missing) == []
        if missing.count("/") == 2:
            with pytest.raises(FileNotFoundError):
                fs.open(missing)


def test_ranges(fs: EbbtideFileSystem) -> None:
    fs.pipe_file(A, bytes(range(100)))
    assert fs.cat_file(A) == bytes(range(100))
    assert fs.cat_file(A, 10, 12) == b"\x0a\x0b"
    assert fs.cat_file(A, -2) == b"\x62\x63"
    assert fs.cat_file(A, 90, 1000) == bytes(range(90, 100))
    assert fs.cat_file(A, 100) == b"" == fs.cat_file(A, 5, 5)
    assert fs.cat_ranges([A, A], [0, 50], [1, 51]) == [b"\x00", b"\x32"]
    with fs.open(A, block_size=16) as file:
        file.seek(95)
        assert (file.read(), file.size) == (bytes(range(95, 100)), 100)


def test_writing(fs: EbbtideFileSystem) -> None:
    """A large file, text, an empty file; nothing if the block fails."""
    large = os.urandom(9 * 2**20)
    with fs.open(A, "wb", block_size=2**20) as file:
        file.write(large)
    assert fs.cat_file(A) == large
    with fs.open(f"{MAIN}/t", "w") as text:
        text.write("täxt")
    assert fs.read_text(f"{MAIN}/t") == "täxt"
    fs.touch(f"{MAIN}/empty")
    assert fs.size(f"{MAIN}/empty") == 0
    with pytest.raises(RuntimeError, match="midway"), fs.open(A, "wb") as file:
        file.write(b"half")
        raise RuntimeError("midway")
    assert fs.size(A) == len(large)
    with pytest.raises(NotImplementedError):
        fs.open(A, "ab")
    with pytest.raises(ValueError, match="REPO/BRANCH/PATH"):
        fs.open(MAIN, "wb")


def test_only_new(fs: EbbtideFileSystem) -> None:
    """Checked at first, and when the file is staged."""
    with fs.open(A, "xb") as file:
        file.write(b"1")
    with pytest.raises(FileExistsError):
        fs.open(A, "xb")
    with pytest.raises(FileExistsError):
        fs.pipe_file(A, b"2", mode="create")
    late = fs.open(f"{MAIN}/b", "xb")
    late.write(b"late")
    fs.pipe_file(f"{MAIN}/b", b"early")
    with pytest.raises(FileExistsError) as found:
        late.close()
    assert isinstance(found.value.__cause__, Conflict)
    assert fs.cat_file(f"{MAIN}/b") == b"early"


def test_copies_and_moves(fs: EbbtideFileSystem) -> None:
    """Within a branch, from a commit, and to another repository."""
    fs.pipe_file(A, b"1")
    commit = fs.commit(MAIN, "one")
    fs.pipe_file(A, b"2")
    fs.cp_file(f"lake/{commit}/a", f"{MAIN}/old")
    fs.cp_file(A, "pond/main/far")
    assert (fs.cat_file(f"{MAIN}/old"), fs.cat_file("pond/main/far")) == (b"1", b"2")
    fs.mv(A, f"{MAIN}/b")
    assert not fs.exists(A)
    fs.mv(f"{MAIN}/b", f"{MAIN}/b")
    fs.mv(f"{MAIN}/b", "pond/main/b")
    assert fs.cat_file("pond/main/b") == b"2"
    assert fs.find(MAIN) == [f"{MAIN}/old"]
    with pytest.raises(FileNotFoundError):
        fs.cp_file(f"{MAIN}/none", A)
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{MAIN}/none", A)


def test_deletes(fs: EbbtideFileSystem) -> None:
    fs.pipe({f"{MAIN}/x/{name}": b"" for name in "abc"} | {A: b""})
    fs.rm(f"{MAIN}/x/a")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{MAIN}/x/a")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{MAIN}/x")
    with pytest.raises(OSError, match="has files"):
        fs.rmdir(f"{MAIN}/x")
    fs.rm(f"{MAIN}/x", recursive=True)
    assert fs.find(MAIN) == [A]
    with pytest.raises(ValueError, match="no branch"):
        fs.rm("lake", recursive=True)
    fs.rm(MAIN, recursive=True)
    assert fs.find(MAIN) == []
    fs.mkdir(f"{MAIN}/d")
    fs.makedirs(f"{MAIN}/d/e", exist_ok=True)
    fs.rmdir(f"{MAIN}/d")
    assert fs.ls("lake", detail=False) == [MAIN]


def test_commits(fs: EbbtideFileSystem) -> None:
    """A commit keeps its bytes while the branch goes on; the branch without `@` shows changes."""
    fs.pipe_file(A, b"1")
    first = fs.commit(MAIN, "one", metadata={"by": "test"})
    fs.pipe_file(A, b"2")
    assert fs.cat_file(f"lake/{first}/a") == b"1"
    assert fs.cat_file(A) == b"2"
    assert fs.cat_file(f"{MAIN}@/a") == b"1"
    fs.commit(f"ebbtide://{MAIN}", "two")
    with raises("nothing_to_commit", of=Conflict):
        fs.commit(MAIN, "three")
    with pytest.raises(FileNotFoundError):
        fs.pipe_file(f"lake/{first}/a", b"3")


def test_transactions(fs: EbbtideFileSystem) -> None:
    """Nothing is seen before the end; with a message, each branch is committed."""
    with fs.transaction:
        fs.pipe_file(A, b"1")
        assert not fs.exists(A)
    assert fs.cat_file(A) == b"1"
    with pytest.raises(RuntimeError, match="midway"), fs.transaction as change:
        change.message = "never"
        fs.pipe_file(A, b"2")
        raise RuntimeError("midway")
    assert fs.cat_file(A) == b"1"
    with fs.transaction as change:
        change.message = "both"
        fs.pipe_file(A, b"3")
        fs.pipe_file("pond/main/a", b"3")
    assert change.commits.keys() == {MAIN, "pond/main"}
    for branch, commit in change.commits.items():
        assert fs.cat_file(f"{branch.split('/')[0]}/{commit}/a") == b"3"
    fs.commit_message = "always"
    with fs.transaction as change:
        fs.pipe_file(A, b"4")
    assert fs.cat_file(f"lake/{change.commits[MAIN]}/a") == b"4"


def test_other_processes(fs: EbbtideFileSystem) -> None:
    """A file system that is pickled opens its own store; a closed one opens it again."""
    fs.pipe_file(A, b"1")
    other = pickle.loads(pickle.dumps(fs))
    fs.close()
    assert other.cat_file(A) == b"1" == fs.cat_file(A)
    other.close()


def test_a_reader_sees_one_object(fs: EbbtideFileSystem) -> None:
    """A write while a file is read never mixes old and new bytes."""
    fs.pipe_file(A, b"old" * 1000)
    with fs.open(A, block_size=10, cache_type="none") as file:
        assert file.read(3) == b"old"
        fs.pipe_file(A, b"new" * 1000)
        try:
            assert file.read(3) == b"old"
        except Conflict as error:
            assert error.kind == "branch_moved"


def test_slashes_in_refs(tmp_path: Path) -> None:
    assert Place.of("lake/a%2Fb/c/d") == Place("lake", "a/b", "c/d")
    assert str(Place("lake", "a/b", "c/d")) == "lake/a%2Fb/c/d"
    with Store.init(tmp_path) as store:
        store.create_repository("lake").branches.create("a/b", "main")
        fs = EbbtideFileSystem(str(tmp_path), skip_instance_cache=True)
        fs.pipe_file("lake/a%2Fb/c", b"1")
        assert sorted(fs.ls("lake", detail=False)) == ["lake/a%2Fb", MAIN]
        assert fs.find("lake/a%2Fb") == ["lake/a%2Fb/c"]
        assert store.repository("lake").objects.get("a/b", "c") == b"1"
        fs.close()


def test_refused_places(tmp_path: Path) -> None:
    with raises("store_not_found", of=NotFound):
        EbbtideFileSystem(str(tmp_path / "none"), skip_instance_cache=True)
    with pytest.raises(InvalidInput):
        EbbtideFileSystem(endpoint="ftp://host", skip_instance_cache=True)


def test_protected_branches(tmp_path: Path) -> None:
    with Store.init(tmp_path) as store:
        store.create_repository("lake").protection.add("main")
        fs = EbbtideFileSystem(str(tmp_path), skip_instance_cache=True)
        with pytest.raises(PermissionError):
            fs.pipe_file(A, b"1")
        fs.close()


def test_rights(fs_server: Server) -> None:
    """A reader's key cannot write; a wrong secret cannot read."""
    reader = fs_server.keys["reader"]
    asked: dict[str, Any] = {
        "endpoint": fs_server.url,
        "key": reader.access_key_id,
        "skip_instance_cache": True,
    }
    fs = EbbtideFileSystem(secret=reader.secret, **asked)
    assert fs.find(MAIN) == []
    with pytest.raises(PermissionError) as refused:
        fs.pipe_file(A, b"1")
    assert "role" in str(refused.value)
    fs.close()
    wrong = EbbtideFileSystem(secret="wrong", **asked)
    with pytest.raises(PermissionError):
        wrong.ls("")
    wrong.close()
