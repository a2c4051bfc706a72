"""A directory as a storage: links, temporary files, races, crashes."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.model import EPOCH
from ebbtide.storage import LocalStorage, base, directories
from ebbtide.storage.directories import OPENED_MAX
from tests.support.errors import raises
from tests.support.randomized import randomized

pytestmark = pytest.mark.disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(str(root))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    (directory / "deep").mkdir(parents=True)
    (directory / "file").write_bytes(b"precious")
    (directory / "deep" / "file").write_bytes(b"precious")
    return directory


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def outcomes(storage: LocalStorage, *addresses: str) -> list[str]:
    return [each.outcome for each in storage.delete(addresses)]


def rows(storage: LocalStorage, prefix: str = "") -> dict[str, bool]:
    found: dict[str, bool] = {}
    for batch in storage.list(prefix):
        columns = (batch.column(name).to_pylist() for name in ("address", "regular"))
        found.update(zip(*columns, strict=True))
    return found


@pytest.mark.parametrize("address", ["x" * 5_000, f"data/{'y' * 300}/z"], ids=["file", "directory"])
def test_a_name_that_no_file_can_have(storage: LocalStorage, address: str) -> None:
    """Nothing is there, and nothing can be written there: said in a message that can be read."""
    assert storage.head(address) is None
    for read in (storage.get, storage.get_versioned, storage.stream):
        with pytest.raises(NotFound, check=lambda error: len(error.message) < 1_200):
            read(address)
    with raises("invalid_address", "too long for the file system", of=InvalidInput) as refused:
        storage.put(address, b"1")
    assert len(refused.value.message) < 1_200
    assert rows(storage) == {}


def test_links_are_listed_and_never_followed(
    storage: LocalStorage, root: Path, outside: Path
) -> None:
    storage.put("data/a/real", b"1")
    (root / "data" / "dir").symlink_to(outside)
    (root / "data" / "a" / "link").symlink_to(outside / "file")
    (root / "top").symlink_to(outside)
    links = dict.fromkeys(("data/a/link", "data/dir", "top"), False)
    assert rows(storage) == {"data/a/real": True} | links
    assert storage.list_prefixes("data/") == ["data/a/"]
    assert rows(storage, "top/") == rows(storage, "data/dir/deep/") == {}
    assert storage.list_prefixes("top/") == []
    for address in ("data/dir/file", "data/a/link", "top/deep/file", "data/dir"):
        assert storage.head(address) is None
        for read in (storage.get, storage.stream):
            with pytest.raises(NotFound):
                read(address)


@randomized("listings")
def test_a_listing_has_what_walking_finds(
    tmp_path: Path, outside: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories are read a few entries at a time, and have entries of all kinds."""
    monkeypatch.setattr("ebbtide.storage.directories._TRIED", 3)
    monkeypatch.setattr("ebbtide.storage.directories._AT_ONCE", 4)
    root = tmp_path / "root"
    storage = LocalStorage(str(root))
    generator = random.Random(seed)
    sized, shares = generator.random() < 0.5, generator.choice((1, 3))
    places = ["data/", "data/a/", "data/a/b/", "data/c/", ""]
    for number in range(60):
        address = f"{generator.choice(places)}{generator.choice('xyz')}{number}"
        (root / address).parent.mkdir(parents=True, exist_ok=True)
        match generator.randrange(4):
            case 0:
                (root / address).mkdir()
            case 1:
                (root / address).symlink_to(outside / generator.choice(["", "file", "none"]))
            case _:
                (root / address).write_bytes(b"x" * number)
    expected = {}
    for directory, inner, others in os.walk(root):
        links = [name for name in inner if Path(directory, name).is_symlink()]
        for path in (Path(directory, name) for name in [*others, *links]):
            is_file = not path.is_symlink()
            size = path.lstat().st_size if sized else None
            expected[str(path.relative_to(root))] = (is_file, size if is_file or sized else None)
    found = {}
    for number in range(shares):
        for batch in storage.list(share=(number, shares), sized=sized):
            for row in batch.to_pylist():
                assert row["address"] not in found
                found[row["address"]] = (row["regular"], row["size_bytes"])
    assert found == expected


def test_nothing_is_deleted_or_written_through_a_link(
    storage: LocalStorage, root: Path, outside: Path
) -> None:
    """A link itself can be replaced and deleted, but not what it points at."""
    storage.put("data/file", b"precious")
    _, version = storage.get_versioned("data/file")
    for name, target in {"dir": outside, "link": outside / "file", "same": Path("file")}.items():
        (root / "data" / name).symlink_to(target)
    (root / "top").symlink_to(outside)
    through = ["data/dir/file", "data/dir/deep/file", "data/dir/x", "top/file", "top/deep/file"]
    assert {*outcomes(storage, *through)} == {"failed"}
    for address in through:
        for write in (
            lambda address: storage.put(address, b"x"),
            lambda address: storage.replace(address, b"x", version=version),
        ):
            with raises("invalid_address", of=InvalidInput):
                write(address)
        with pytest.raises(NotFound):
            storage.get_versioned(address)
    for address in ("data/link", "data/same", "data/dir"):
        with pytest.raises(NotFound):
            storage.get_versioned(address)
        with raises("object_changed", of=Conflict):
            storage.replace(address, b"x", version=version)
    assert names(root / "data") == ["dir", "file", "link", "same"]
    storage.put("data/link", b"new")
    assert outcomes(storage, "data/same") == ["deleted"]
    assert {name for name, is_regular in rows(storage).items() if is_regular} == {
        "data/file", "data/link"
    }  # fmt: skip
    assert storage.get("data/file") == b"precious"
    for name in ("file", "deep/file"):
        assert (outside / name).read_bytes() == b"precious"
    assert names(outside) == ["deep", "file"]


def test_a_conflict_leaves_no_temporary_file(storage: LocalStorage, root: Path) -> None:
    storage.put("data/x", b"1")
    _, version = storage.get_versioned("data/x")
    storage.put("data/x", b"2")
    os.mkfifo(root / "data" / "pipe")
    for address in ("data/x", "data/pipe", "data/absent", "nowhere/at/all"):
        with pytest.raises(Conflict):
            storage.replace(address, b"3", version=version)
    assert names(root) == ["data"]
    assert names(root / "data") == ["pipe", "x"]
    with pytest.raises(InvalidInput):
        storage.replace("data/x#17", b"3", version=version)


def test_nobody_else_replaces_between_the_comparison_and_the_renaming(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("data/x", b"0")
    _, version = storage.get_versioned("data/x")
    real_rename = os.rename
    late: list[threading.Thread] = []
    ended: list[str] = []

    def replace() -> None:
        try:
            storage.replace("data/x", b"late", version=version)
        except Conflict as error:
            ended.append(error.kind)

    def rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if not late:
            late.append(threading.Thread(target=replace))
            late[0].start()
            while len(names(root / "data")) < 3 and late[0].is_alive():
                time.sleep(0.01)  # Until it has written its temporary file, too.
            late[0].join(0.1)
        real_rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", rename)
    storage.replace("data/x", b"1", version=version)
    late[0].join()
    assert ended == ["object_changed"]
    assert storage.get("data/x") == b"1"
    assert names(root / "data") == ["x"]


def test_the_lock_does_not_outlast_the_replacement(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where a forked process has got a copy of the descriptor."""
    storage.put("data/x", b"0")
    _, version = storage.get_versioned("data/x")
    real_flock = fcntl.flock
    copies: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        copies.append(os.dup(descriptor))
        real_flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        storage.replace("data/x", b"1", version=version)
        with pytest.raises(Conflict):
            storage.replace("data/x", b"2", version=version)
    assert copies
    copies.append(os.open(root / "data", os.O_RDONLY))
    fcntl.flock(copies[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in copies:
        os.close(descriptor)


def test_a_file_of_the_same_number_time_and_size_is_another_version(
    storage: LocalStorage, root: Path
) -> None:
    """As when another program replaces a file twice within a tick of the clock."""
    storage.put("x", b"old")
    _, version = storage.get_versioned("x")
    before = (root / "x").stat()
    (root / "x").write_bytes(b"new")
    os.utime(root / "x", ns=(0, before.st_mtime_ns))
    after = (root / "x").stat()
    for what in ("st_ino", "st_mtime_ns", "st_size"):
        assert getattr(after, what) == getattr(before, what)
    with pytest.raises(Conflict):
        storage.replace("x", b"mine", version=version)
    assert storage.get("x") == b"new"


def test_other_files_are_listed_as_not_regular(storage: LocalStorage, root: Path) -> None:
    root.mkdir()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        (root / os.fsdecode(b"not \xff utf8")).write_bytes(b"")
        assert rows(storage) == {"pipe": False, "socket": False, "not \\xff utf8": False}
        for address in ("pipe", "socket"):
            with pytest.raises(NotFound):
                storage.get(address)
    (root / "pipe").unlink()
    (root / "socket").unlink()
    storage.put("only like \\xff", b"plain")
    assert rows(storage) == {"not \\xff utf8": False, "only like \\xff": True}


def test_a_write_in_progress_is_only_a_temporary_file(storage: LocalStorage, root: Path) -> None:
    """A writer that is killed leaves only that, listed and deletable, and the old file."""
    seen: list[str] = []

    def pieces() -> Iterator[bytes]:
        yield b"1" * 10_000_000
        seen.extend(names(root / "data"))
        assert storage.get("data/x") == b"old"

    storage.put("data/x", b"old")
    storage.put("data/x", pieces())
    (temporary,) = {*seen} - {"x"}
    assert temporary.startswith("x#")
    assert names(root / "data") == ["x"]
    (root / "data" / temporary).write_bytes(b"half")
    assert rows(storage) == {"data/x": True, f"data/{temporary}": True}
    assert outcomes(storage, f"data/{temporary}") == ["deleted"]
    with pytest.raises(InvalidInput):
        storage.put(f"data/{temporary}", b"1")


@pytest.mark.parametrize("write", ["put", "replace"])
def test_everything_reaches_the_disk_before_a_write_returns(
    write: str, storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What need not be durable waits for no disk."""
    storage.put("data/a/x", b"0")
    _, version = storage.get_versioned("data/a/x")
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append(f"fsync {path.relative_to(root)}")
        real_fsync(descriptor)

    def rename(source: str, target: str, **options: int) -> None:
        events.append("rename")
        real_rename(source, target, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    if write == "put":
        storage.delete(["data/a/x"])
        events.clear()
        storage.put("data/a/x", b"1")
    else:
        storage.replace("data/a/x", b"1", version=version)
    assert events[0].startswith("fsync data/a/x#")
    assert events[1:] == ["rename", "fsync data/a", "fsync data", "fsync ."]
    events.clear()
    storage.put("data/b/x", b"1", durable=False)
    assert events == ["rename"]
    with pytest.raises(Conflict):
        storage.put("data/b/x", b"2", create_only=True, durable=False)
    assert (events, storage.get("data/b/x")) == (["rename"], b"1")


def test_emptied_directories_go_but_not_the_uppermost(storage: LocalStorage, root: Path) -> None:
    """Directories cannot be deleted, nor written to as files."""
    for address in ("data/a/b/c/x", "data/d/x", "top"):
        storage.put(address, b"1")
    storage.delete(["data/a/b/c/x", "top"])
    assert names(root / "data") == ["d"]
    (root / "data" / "empty").mkdir()
    assert outcomes(storage, "data/d", "data/empty") == ["failed"] * 2
    with raises("storage_error", of=Failed):
        storage.put("data/d", b"1")
    assert rows(storage) == {"data/d/x": True}
    (root / "data" / "empty").rmdir()
    storage.delete(["data/d/x"])
    assert names(root) == ["data"]
    assert outcomes(storage, "data/d/x") == ["missing"]


def test_two_empty_the_same_directories(storage: LocalStorage, root: Path) -> None:
    """Each is told of its own deletions. There are more directories than are open at a time."""
    directories = [f"data/{number:03d}" for number in range(2 * OPENED_MAX + 40)]
    for directory in directories:
        for name in "ab":
            storage.put(f"{directory}/{name}", b"", durable=False)
    start = threading.Barrier(2)

    def delete(name: str) -> set[str]:
        start.wait()
        return {*outcomes(storage, *(f"{directory}/{name}" for directory in directories))}

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(delete, "ab")) == [{"deleted"}] * 2
    assert not names(root / "data")


def test_deletions_reach_the_disk_before_they_are_told(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a directory that can't is failed, those of others are not."""
    for address in ("data/a/x", "data/a/y", "data/b/x"):
        storage.put(address, b"")
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "a":
            raise OSError("the disk is gone")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    found = storage.delete(["data/a/x", "data/b/x", "data/b/none", "data/a/y"])
    assert [each.outcome for each in found] == ["failed", "deleted", "missing", "failed"]
    assert "the disk is gone" in str(found[0].error)
    assert names(root / "data") == []


def test_a_directory_that_vanishes_before_the_file_is_made_is_made_again(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open
    removed: list[str] = []

    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and len(removed) < 3:
            (root / "data" / "slice").rmdir()
            removed.append(path)
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_)
    storage.put("data/slice/x", b"1")
    assert len(removed) == 3
    assert storage.get("data/slice/x") == b"1"


def test_files_that_come_and_go_do_not_disturb_a_listing(storage: LocalStorage) -> None:
    stable = {f"data/{n % 10}/stable{n}" for n in range(100)}
    for address in stable:
        storage.put(address, b"", durable=False)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            gone = [f"data/{kind}{n}/gone" for n in range(10) for kind in ("", "new")]
            for address in gone:
                storage.put(address, b"", durable=False)
            storage.delete(gone)

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            for _ in range(40):
                assert stable <= set(rows(storage))
        finally:
            stop.set()
        churning.result()


def test_a_directory_swapped_for_a_link_is_not_followed(
    storage: LocalStorage, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("data/slice/deep/file", b"1")
    real_open = os.open

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        slice_ = root / "data" / "slice"
        if path == "slice" and not slice_.is_symlink():
            slice_.rename(root / "moved")
            slice_.symlink_to(outside)
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert outcomes(storage, "data/slice/deep/file") == ["failed"]
    assert (outside / "deep" / "file").read_bytes() == b"precious"


def test_no_descriptor_is_left_open(storage: LocalStorage, root: Path) -> None:
    def opened() -> list[Path]:
        """What other tests left open may be closed at any time."""
        found = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(descriptor.readlink())
        return [place for place in found if place.is_relative_to(root)]

    root.mkdir()
    with (root / "seen").open("wb"):
        assert opened() == [root / "seen"]
    storage.put("data/a/x", b"1")
    _, version = storage.get_versioned("data/a/x")
    storage.replace("data/a/x", b"2", version=version)
    with pytest.raises(Conflict):
        storage.replace("data/a/x", b"3", version=version)
    storage.stream("data/a/x")
    next(storage.stream("data/a/x"))
    list(storage.list())
    storage.delete(["data/a/x", "data/a/y", "data/z/y"])
    for wrong in ("data/a", "data/a/x/y"):
        for read in (storage.get, storage.get_versioned):
            with pytest.raises(EbbtideError):
                read(wrong)
    assert opened() == []


def test_dates_of_files(storage: LocalStorage, root: Path) -> None:
    """They are told to the microsecond. A date at which no file was written counts as young: it is
    later than any other. A grace can be added to it."""
    storage.put("data/a", b"a")
    for date, is_believed in {
        "1970-01-01T00:00:00": True,
        "2001-02-03T04:05:06.789012": True,
        "2199-12-31T23:59:59.999999": True,
        "2200-01-01T00:00:00": False,
        "1969-12-31T23:59:59.999999": False,
    }.items():
        written = datetime.fromisoformat(date).replace(tzinfo=UTC)
        nanoseconds = (written - EPOCH) // timedelta(microseconds=1) * 1000 + 999 * is_believed
        os.utime(root / "data/a", ns=(nanoseconds, nanoseconds))
        expected = written if is_believed else base.UNDATED
        info = storage.head("data/a")
        assert info is not None and info.last_modified == expected
        for batch in (*storage.list(), storage.sizes(["data/a"])):
            assert batch.column("last_modified").to_pylist() == [expected]
    assert base.UNDATED + timedelta(days=300_000) > base.UNDATED


@pytest.mark.parametrize(("work", "wait"), [(5e-6, 50e-6), (50e-6, 50e-6), (5e-6, 500e-6)])
@pytest.mark.parametrize("count", [1, 500, 1_000])
def test_threads_ask_for_statuses_together_where_these_wait_for_a_disk(
    count: int, work: float, wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time where they take a few microseconds. Of a single file, the work around it counts
    for little."""
    now = [0.0, 0.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[1])
    turns, asked = directories._Turns(), []

    def ask(most: int) -> int:
        asked.append((most, directories._ALONE.locked()))
        now[:] = now[0] + max(count, 500) * work, now[1] + max(count, 500) * wait
        return count

    is_quick = work < 10e-6 and wait < 100e-6
    assert [turns.take(ask), turns.take(ask)] == [count, count]
    assert asked == [(500, True), (2_000, is_quick)]
    assert not directories._ALONE.locked()


def test_names_that_no_file_can_have(storage: LocalStorage) -> None:
    """A damaged record may have one. The files beside it are found."""
    storage.put("data/a", b"1")
    long = "n" * 300
    asked = ["data/a\0b", f"data/{long}", "data/a", "da\0ta/a", f"{long}/a", "data/none"]
    found = storage.sizes(asked)
    assert found.column("regular").to_pylist() == [each == "data/a" for each in asked]
    assert found.column("size_bytes").drop_null().to_pylist() == [1]
