"""What every storage does."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

from ebbtide.arrow import instants
from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.storage import LISTING_SCHEMA, DeleteOutcome, Storage, open_storage
from tests.support.errors import raises

LARGE = bytes(range(256)) * (80 * 1024 + 1)  # 20 MiB and a bit: more than a part, and odd
NAMES = ["x", "é ü", "日本語", "a b+c", "per%20cent", "q?&=;", "😀", "x" * 200, "-", "[1]", "a#b"]
RANGES: Final[Sequence[tuple[int, int | None]]] = [
    (0, None), (0, 0), (7, 3), (0, 1), (3, 9_000_000), (8_388_608, None), (0, 10**12),
    (len(LARGE), None), (len(LARGE) + 7, 10**12),
]  # fmt: skip
BAD_ADDRESSES = ["", "/etc/x", "../x", "a/../../x", "a/..", ".", "a//b", "a/", "a/./b", "a\0b"]


@pytest.fixture(params=["local", "memory", "s3", "azure"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "root"))
    if request.param == "memory":
        return open_storage(f"memory:{new_id()}")
    return open_storage(f"{request.getfixturevalue(f'{request.param}_url')}/{new_id()}")


@pytest.fixture
def replacing(storage: Storage) -> Storage:
    """A storage that can replace. The gateway of Ceph 16 compares a quoted version with a bare one,
    and refuses all of them: nothing is lost there, and nothing replaced."""
    storage.put("probe", b"1")
    _, version = storage.get_versioned("probe")
    try:
        storage.replace("probe", b"2", version=version)
    except Failed as error:
        assert storage.url.startswith("s3:")
        assert error.kind == "storage_unconditional"
        pytest.skip("this server takes no object for the version that it is")
    storage.delete(["probe"])
    return storage


def listed(storage: Storage, prefix: str = "", *, recursive: bool = True) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for batch in storage.list(prefix, recursive=recursive):
        assert batch.schema.equals(LISTING_SCHEMA)
        batch.validate(full=True)
        rows = batch.to_pylist()
        assert not sizes.keys() & {row["address"] for row in rows}
        sizes |= {row["address"]: row["size_bytes"] for row in rows}
    return sizes


def test_a_listing_of_names_alone_has_all_names(storage: Storage) -> None:
    """And sizes and dates are told of the names that are asked for."""
    sizes = {"a": 1, "b/a": 2, "b/c/d": 3, "b/e": 0}
    for address, size in sizes.items():
        storage.put(address, b"x" * size)
    left = dict(sizes)
    for batch in storage.list(sized=False):
        assert batch.schema.equals(LISTING_SCHEMA)
        batch.validate(full=True)
        for row in batch.to_pylist():
            size = left.pop(row["address"])
            there = storage.head(row["address"])
            assert there is not None
            assert row["regular"]
            if row["last_modified"] is None:
                assert row["size_bytes"] is None
            else:  # told with the name, perhaps more precisely
                assert row["size_bytes"] == size
                assert row["last_modified"] - there.last_modified < timedelta(seconds=1)
    assert not left
    asked = ["b/c/d", "none", "a", "b", "b/none", "a/none", "none/none", "b/e", "a"]
    found = storage.sizes(asked)
    assert found.schema.equals(LISTING_SCHEMA)
    for address, row in zip(asked, found.to_pylist(), strict=True):
        info = storage.head(address)
        assert (info is not None) == row["regular"] == (address in sizes)
        told = (None, None) if info is None else (info.size_bytes, info.last_modified)
        assert (row["address"], row["size_bytes"], row["last_modified"]) == (address, *told)
    assert not storage.sizes([]).num_rows


def test_names_come_back_from_a_listing_and_can_be_deleted(storage: Storage) -> None:
    """A signed URL takes the bytes, too, on S3: Azure wants a header besides."""
    for name in NAMES:
        address = f"data/{name}/{name}"
        storage.put(address, b"12")
        url = storage.sign_put(address, lasts=timedelta(minutes=5))
        assert (url is not None) == storage.url.startswith("s3:")
        if url is not None:
            upload(url, b"34")
        data = b"12" if url is None else b"34"
        assert listed(storage) == {address: 2}
        assert storage.list_prefixes("data/") == [f"data/{name}/"]
        assert listed(storage, f"data/{name}/") == {address: 2}
        assert storage.get(address) == data
        assert storage.delete([address])[0].outcome == "deleted"
        assert storage.head(address) is None


def upload(url: str, data: bytes) -> None:
    request = urllib.request.Request(url, data=data, method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def trickle(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 1_000_003):
        yield data[start : start + 1_000_003]
        yield b""


def test_put_takes_bytes_files_iterables_and_streams(storage: Storage) -> None:
    """A stream of the storage reads while it writes. A failed put leaves the old object."""
    for data in (b"", b"some", LARGE):
        storage.put("a/b/c", data)
        assert storage.get("a/b/c") == data
        storage.put("file", io.BytesIO(data))
        assert storage.get("file") == data
        storage.put("pieces", trickle(data))
        assert storage.get("pieces") == data
    for source in (storage, open_storage(storage.url)):
        storage.put("copy", source.stream("a/b/c"))
        assert storage.get("copy") == LARGE
    with pytest.raises(NotFound):
        storage.put("copy", (piece for name in ("file", "no") for piece in storage.stream(name)))
    assert storage.get("copy") == LARGE
    with pytest.raises(NotFound):
        storage.put("absent", (piece for name in ("file", "no") for piece in storage.stream(name)))
    assert listed(storage) == dict.fromkeys(("a/b/c", "copy", "file", "pieces"), len(LARGE))


def test_create_only_never_overwrites(storage: Storage) -> None:
    storage.put("x", b"1", create_only=True)
    for data in (b"2", [b"2", b"3"]):
        with raises("object_exists", of=Conflict):
            storage.put("x", data, create_only=True)
    assert storage.get("x") == b"1"
    assert listed(storage) == {"x": 1}
    storage.put("y", iter([b"2", b"3"]), create_only=True)
    assert storage.get("y") == b"23"


def test_an_object_is_replaced_by_who_read_its_last_version(replacing: Storage) -> None:
    storage = replacing
    storage.put("a/x", b"0")
    data, version = storage.get_versioned("a/x")
    assert (data, version) == storage.get_versioned("a/x") == (b"0", version)
    versions = {version}
    for text in (b"1", b"22", b"", LARGE, b"1"):
        following = storage.replace("a/x", text, version=version)
        assert following != version
        assert storage.get_versioned("a/x") == (text, following)
        with raises("object_changed", of=Conflict) as caught:
            storage.replace("a/x", b"late", version=version)
        assert caught.value.details == {"address": "a/x"}
        assert storage.get("a/x") == text
        versions.add(version := following)
    if not storage.url.startswith("s3:"):
        # On S3, a version is named after its bytes.
        assert len(versions) == 6
    assert set(listed(storage)) == {"a/x"}


def test_an_object_that_is_gone_or_was_changed_is_not_replaced(storage: Storage) -> None:
    storage.put("a/x", b"old")
    _, version = storage.get_versioned("a/x")
    storage.put("a/x", b"new")
    with raises("object_changed", "read it again", of=Conflict):
        storage.replace("a/x", b"mine", version=version)
    assert storage.get("a/x") == b"new"
    storage.delete(["a/x"])
    for left in ([], ["a/y"], ["a"]):
        storage.put("a/b/x", b"old")
        _, version = storage.get_versioned("a/b/x")
        storage.delete(["a/b/x"])
        if left == ["a"] and storage.url.startswith("file:"):
            Path(urlsplit(storage.url).path, "a").rmdir()
        for address in left:
            storage.put(address, b"")
        for address in ("a/b/x", "never/was"):
            with raises("object_changed", of=Conflict):
                storage.replace(address, b"mine", version=version)
        assert set(listed(storage)) == set(left)
        assert set(storage.list_prefixes()) <= {"a/"}
        assert storage.list_prefixes("a/") == []
        storage.delete(left)


def count(storage: Storage, times: int, together: threading.Barrier) -> None:
    together.wait(60)
    for _ in range(times):
        while True:
            data, version = storage.get_versioned("a/counter")
            try:
                storage.replace("a/counter", b"%d" % (int(data) + 1), version=version)
                break
            except Conflict as error:
                assert error.kind == "object_changed"


def test_no_replacement_is_lost(replacing: Storage) -> None:
    """Among processes in a directory, else among threads: other processes ask the same server."""
    storage = replacing
    # Of one length throughout, so that no version differs in its size alone.
    storage.put("a/counter", b"1000")
    counters: list[threading.Thread | BaseProcess]
    if storage.url.startswith("file:"):
        spawning = multiprocessing.get_context("spawn")
        together = spawning.Barrier(2)
        counters = [spawning.Process(target=count, args=(storage, 50, together)) for _ in range(2)]
    else:
        meeting = threading.Barrier(2)
        counters = [threading.Thread(target=count, args=(storage, 50, meeting)) for _ in range(2)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join()
    assert storage.get("a/counter") == b"1100"
    assert set(listed(storage)) == {"a/counter"}


def test_streams_of_ranges(storage: Storage, subtests: pytest.Subtests) -> None:
    """With an ETag, no two pieces are of two objects; a directory has no ETags."""
    storage.put("x", LARGE)
    for start, end in RANGES:
        with subtests.test(start=start, end=end):
            pieces = list(storage.stream("x", start=start, end=end))
            assert b"".join(pieces) == LARGE[start:end]
            assert all(0 < len(piece) <= 8 * 1024 * 1024 for piece in pieces)
    info = storage.head("x")
    assert info is not None
    changed = raises("object_changed", of=Conflict)
    if storage.url.startswith("file:"):
        assert info.etag is None
        with changed:
            storage.stream("x", etag="any")
        return
    assert b"".join(storage.stream("x", etag=info.etag)) == LARGE
    versioned = storage.stream("x", etag=info.etag)
    first = next(versioned)
    storage.put("x", bytes(len(LARGE)))
    with changed:
        b"".join((first, *versioned))
    storage.put("x", b"")
    for start, end in ((0, None), (2, 1)):
        with changed:
            storage.stream("x", start=start, end=end, etag=info.etag)
    empty = storage.head("x")
    assert empty is not None and empty.etag != info.etag
    assert list(storage.stream("x", etag=empty.etag)) == list(storage.stream("x")) == []


def test_what_is_not_there(storage: Storage) -> None:
    storage.put("a/b", b"1")
    reads = (
        storage.get,
        storage.get_versioned,
        storage.stream,
        lambda address: storage.stream(address, start=2, end=1),
    )
    for address in ("x", "a", "a/b/c", "a/x", "x/y"):
        assert storage.head(address) is None
        for read in reads:
            with raises("object_not_found", of=NotFound):
                read(address)
    assert listed(storage, "x/") == listed(storage, "a/b/") == {}
    assert storage.list_prefixes("x/") == []


def test_listing_by_prefix_and_level(storage: Storage) -> None:
    assert listed(storage) == {}
    assert storage.list_prefixes() == []
    sizes = {"top": 1, "a/x": 2, "a/b/y": 3, "a/b/z": 4, "ab/x": 5, "b/c/d/e": 6}
    for address, size in sizes.items():
        storage.put(address, b"x" * size)
    assert listed(storage) == sizes
    assert listed(storage, "a/") == {k: v for k, v in sizes.items() if k.startswith("a/")}
    assert listed(storage, recursive=False) == {"top": 1}
    assert listed(storage, "a/", recursive=False) == {"a/x": 2}
    assert listed(storage, "b/", recursive=False) == {}
    assert storage.list_prefixes() == ["a/", "ab/", "b/"]
    assert storage.list_prefixes("a/") == ["a/b/"]
    assert storage.list_prefixes("b/c/d/") == []


def test_shares_of_a_listing_have_each_address_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of a size."""
    monkeypatch.setattr("ebbtide.storage.base.LISTING_ROWS_MAX", 10)
    sizes = {f"{folder}{n}": n for n in range(30) for folder in ("", "a/", "a/b/")}
    for address, size in sizes.items():
        storage.put(address, b"x" * size)
    for prefix, count in (("", 1), ("a/", 2), ("", 5)):
        found: list[str] = []
        for place in range(count):
            for batch in storage.list(prefix, share=(place, count)):
                assert batch.num_rows <= 10
                found += [str(address) for address in batch.column("address").to_pylist()]
        assert sorted(found) == sorted(each for each in sizes if each.startswith(prefix))


def test_addresses_and_prefixes_that_are_none(storage: Storage) -> None:
    storage.put("a/b", b"1")
    for address in BAD_ADDRESSES:
        for call in (
            lambda a: storage.put(a, b"x"),
            lambda a: storage.sign_put(a, lasts=timedelta(minutes=5)),
            storage.get,
            storage.get_versioned,
            storage.stream,
            storage.head,
            lambda a: storage.replace(a, b"x", version="{}"),
        ):
            with raises("invalid_address", of=InvalidInput):
                call(address)
        (outcome,) = storage.delete([address])
        assert outcome.outcome == "failed" and outcome.error
    assert listed(storage) == {"a/b": 1}
    for prefix in ("a", "/", "../", "a/../", "a//"):
        for ask in (storage.list, storage.list_prefixes):
            with pytest.raises(InvalidInput):
                ask(prefix)


def test_each_address_has_its_outcome_in_order(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In more than one call, too: small ones on Azure, which needs a request for each key."""
    count = 2_100
    if storage.url.startswith("az:"):
        count = 42
        monkeypatch.setattr("ebbtide.storage.remote._DELETE_KEYS_MAX", 20)
    there = [f"data/{n % 7}/{n}" for n in range(25)]
    for address in [*there, "data/1/keep"]:
        storage.put(address, b"1")
    many = [f"many/{n}" for n in range(count)]
    asked = [*there[:10], "data/1/absent", "../bad", "other/absent", *many, *there[10:]]
    outcomes = storage.delete(asked)
    assert [each.address for each in outcomes] == asked
    by_address = {each.address: each for each in outcomes}
    assert all(by_address[address] == DeleteOutcome(address, "deleted") for address in there)
    # S3 acknowledges the delete of what is not there, and says nothing else.
    absent = "missing" if storage.url.startswith(("file:", "az:")) else "deleted"
    for address in ("data/1/absent", "other/absent", *many):
        assert by_address[address].outcome == absent
    assert by_address["../bad"].outcome == "failed"
    assert listed(storage) == {"data/1/keep": 1}
    assert storage.delete([]) == []


def test_objects_move_and_say_what_became_of_them(storage: Storage) -> None:
    names = [f"data/{number % 3}/{number}" for number in range(40)]
    for name in names:
        storage.put(name, name.encode())
    assert {each.outcome for each in storage.move([(n, f"kept/{n}") for n in names])} == {"moved"}
    assert {name: storage.get(f"kept/{name}").decode() for name in names} == {n: n for n in names}
    storage.delete([f"kept/{name}" for name in names])
    storage.put("data/a/1", b"one")
    moves = [("data/a/1", "kept/data/a/1"), ("data/a/none", "kept/none"), ("../x", "kept/x")]
    found = storage.move(moves)
    assert [each.address for each in found] == [source for source, _ in moves]
    assert [each.outcome for each in found] == ["moved", "missing", "failed"]
    assert storage.get("kept/data/a/1") == b"one"
    assert [each.outcome for each in storage.move(moves[:1])] == ["moved"], "it was before"
    assert storage.move([("kept/data/a/1", "data/a/1")])[0].outcome == "moved"
    assert storage.move([("data/a/1", "../out")])[0].outcome == "failed"
    assert listed(storage) == {"data/a/1": 3}
    assert storage.move([]) == []


def test_signing_for_s3_asks_nobody() -> None:
    """The URL names the object below the storage's own prefix, and holds no secret."""
    options = {"endpoint": "http://127.0.0.1:1", "allow_http": "true", "region": "eu-north-1"}
    options |= {"access_key_id": "the-key", "secret_access_key": "the-secret"}
    for root, prefix, days, seconds in (
        ("", "", 1, 86_400),
        ("/a b/lake", "/a%20b/lake", 30, 604_800),  # S3 refuses more than seven days
    ):
        storage, lasts = open_storage(f"s3://bucket{root}", options), timedelta(days=days)
        url = storage.sign_put("data/slice/é+1", lasts=lasts)
        other = storage.sign_put("data/slice/other", lasts=lasts)
        assert url is not None and other is not None
        parts = urlsplit(url)
        assert (parts.scheme, parts.netloc) == ("http", "127.0.0.1:1")
        assert parts.path == f"/bucket{prefix}/data/slice/%C3%A9%2B1"
        query = parse_qs(parts.query)
        assert query["X-Amz-Expires"] == [str(seconds)]
        assert query["X-Amz-Credential"][0].startswith("the-key/")
        assert "the-secret" not in url
        assert parse_qs(urlsplit(other).query)["X-Amz-Signature"] != query["X-Amz-Signature"]


def test_it_is_a_value_that_travels(storage: Storage) -> None:
    """A listing of it and a head tell the same date."""
    storage.put("x", b"1")
    found = storage.head("x")
    assert found is not None
    assert (found.address, found.size_bytes) == ("x", 1)
    assert found.last_modified.utcoffset() == timedelta(0)
    assert abs(found.last_modified - datetime.now(UTC)) < timedelta(minutes=5)
    (listed_at,) = instants(next(storage.list()).column("last_modified"))
    # HTTP tells dates in whole seconds; a listing need not.
    assert found.last_modified in (listed_at, listed_at.replace(microsecond=0))
    copy = pickle.loads(pickle.dumps(storage))
    assert isinstance(copy, Storage)
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert copy.get("x") == b"1"
    assert copy != open_storage("memory:another")
    assert open_storage(storage.url) == storage
    assert storage.shared_between_processes == (not storage.url.startswith("memory:"))
