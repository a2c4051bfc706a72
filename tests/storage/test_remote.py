"""What a remote storage's deletes answer when the storage does not do all that it is asked."""

from __future__ import annotations

import random
import threading
import time
from functools import lru_cache
from types import SimpleNamespace

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore

from ebbtide.errors import Conflict, Failed, InvalidInput, Refused
from ebbtide.ids import new_id
from ebbtide.storage import RemoteStorage, deleting, open_storage, remote
from ebbtide.storage.pace import Pace
from tests.support.answers import answering, broken, failed, xml


class FaultyDelete:
    """Bulk deletes that fail as a whole where one key does, as obstore's do."""

    def __init__(self, failing: dict[str, Exception]) -> None:
        self.failing = failing
        self.calls: list[list[str]] = []
        self._real = obstore.delete

    def __call__(self, client: MemoryStore, paths: list[str]) -> None:
        self.calls.append(paths)
        for path in paths:
            if path in self.failing:
                raise self.failing[path]
            self._real(client, [path])


@pytest.fixture
def storage() -> RemoteStorage:
    storage = open_storage(f"memory:{new_id()}")
    assert isinstance(storage, RemoteStorage)
    for number in range(1_500):
        storage.put(f"data/{number}", b"")
    return storage


def test_one_key_that_fails_fails_alone(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyDelete({"data/700": BaseError("denied\n\nDebug source:\n…")})
    monkeypatch.setattr(obstore, "delete", faulty)
    addresses = [f"data/{number}" for number in range(1_500)]
    outcomes = {each.address: each for each in storage.delete(addresses)}
    assert list(outcomes) == addresses
    assert (outcomes["data/700"].outcome, outcomes["data/700"].error) == ("failed", "denied")
    others = [o.outcome for a, o in outcomes.items() if a not in faulty.failing]
    assert set(others) == {"deleted"}
    assert max(map(len, faulty.calls)) == 1_000
    assert len(faulty.calls) < 50
    left = {a for batch in storage.list() for a in batch.column("address").to_pylist()}
    assert left == set(faulty.failing)


class BusyDelete(FaultyDelete):
    """A storage that is too busy for some calls."""

    def __init__(self, busy_calls: int, error: Exception) -> None:
        super().__init__({})
        self.busy_calls = busy_calls
        self.error = error

    def __call__(self, client: MemoryStore, paths: list[str]) -> None:
        if self.busy_calls > 0:
            self.busy_calls -= 1
            self.calls.append(paths)
            raise self.error
        super().__call__(client, paths)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept in place of sleeping, which moves the clock all the same."""
    found: list[float] = []
    start = time.monotonic()

    def clock() -> float:
        return start + sum(found)

    shared = lru_cache(
        lambda url, options: deleting.Deletes(url, options, Pace(clock, found.append))
    )
    monkeypatch.setattr(remote, "deletes_of", shared)
    # Not in the module itself, which threads that other tests left behind use too.
    monkeypatch.setattr(deleting, "time", SimpleNamespace(sleep=found.append, monotonic=clock))
    return found


@pytest.mark.parametrize("error", [failed(200, "SlowDown"), failed(503, ""), failed(429, "")])
def test_a_busy_storage_is_asked_more_slowly_for_the_same(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float], error: Exception
) -> None:
    busy = BusyDelete(5, error)
    monkeypatch.setattr(obstore, "delete", busy)
    outcomes = storage.delete([f"data/{number}" for number in range(1_000)])
    assert {each.outcome for each in outcomes} == {"deleted"}
    # Not in smaller pieces, of which there would be more.
    assert list(map(len, busy.calls)) == [1_000] * 6
    # All but the first wait, longer and longer.
    assert waits == sorted(waits)
    assert len(waits) >= 4


def test_patience_with_a_busy_storage_ends(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(obstore, "delete", BusyDelete(10**6, failed(503, "SlowDown")))
    outcomes = storage.delete([f"data/{number}" for number in range(1_000)])
    assert {each.outcome for each in outcomes} == {"failed"}
    assert all((each.error or "").startswith("throttled: ") for each in outcomes)
    assert 600 < sum(waits) < 700


def test_a_call_that_broke_is_made_again(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    busy = BusyDelete(3, broken())
    monkeypatch.setattr(obstore, "delete", busy)
    outcomes = storage.delete([f"data/{number}" for number in range(10)])
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert len(busy.calls) == 4
    assert waits == sorted(waits)


@pytest.mark.parametrize("count", [7, 1_000])
@pytest.mark.parametrize("error", [failed(500, "InternalError"), failed(400, "InvalidRequest")])
def test_where_every_key_fails_the_storage_is_not_asked_for_each(
    storage: RemoteStorage,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
    error: Exception,
    count: int,
) -> None:
    always = BusyDelete(10**6, error)
    monkeypatch.setattr(obstore, "delete", always)
    outcomes = storage.delete([f"data/{number}" for number in range(count)])
    assert {(each.outcome, each.error) for each in outcomes} == {
        ("failed", str(error).partition("\n\n")[0])
    }
    assert len(always.calls) < 10
    assert sum(waits) < 10


def test_a_storage_that_breaks_on_the_way_is_not_asked_for_each(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    """Of one key that fails it is said which, and then nothing works any more."""
    faulty = FaultyDelete({"data/0": BaseError("denied")})

    def delete(client: MemoryStore, paths: list[str]) -> None:
        if len(faulty.calls) > 11:
            faulty.failing |= {path: failed(500, "InternalError") for path in paths}
        faulty(client, paths)

    monkeypatch.setattr(obstore, "delete", delete)
    outcomes = storage.delete([f"data/{number}" for number in range(1_000)])
    assert {each.outcome for each in outcomes} == {"deleted", "failed"}
    assert len(faulty.calls) < 200
    assert sum(waits) < 100


SWEEPS_MAX = 2_000
"""Where nearly all keys fail, a sweep finds one of the others every tenth time or so."""


def test_each_key_has_its_own_outcome_whichever_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that fail beside each other hide no others for good: what is left is tried again, as by
    another sweep, until those alone are left that fail."""
    storage = open_storage(f"memory:{new_id()}")
    names = [f"data/{number}" for number in range(300)]
    for name in names:
        storage.put(name, b"")
    first, length = random.randrange(300), random.randrange(150)
    failing: dict[str, Exception] = dict.fromkeys(names[first : first + length], BaseError("held"))
    faulty = FaultyDelete(failing)
    monkeypatch.setattr(obstore, "delete", faulty)
    left = names
    for _ in range(SWEEPS_MAX):
        left = [each.address for each in storage.delete(left) if each.outcome == "failed"]
        assert {*left} >= failing.keys()
        if len(left) == len(failing):
            break
    assert {*left} == failing.keys()


def test_calls_do_not_wait_for_each_other(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=30)

    def delete(_client: MemoryStore, _paths: list[str]) -> None:
        together.wait()

    monkeypatch.setattr(obstore, "delete", delete)
    outcomes = storage.delete([f"data/{number}" for number in range(1_500)])
    assert {each.outcome for each in outcomes} == {"deleted"}


def test_what_breaks_outside_is_an_error_that_can_be_tried_again(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise BaseError("connection reset\n\nDebug source:\n…")

    _, version = storage.get_versioned("data/1")
    monkeypatch.setattr(obstore, "put", breaks)
    for write in (
        lambda: storage.put("x", b"1"),
        lambda: storage.replace("data/1", b"1", version=version),
    ):
        with pytest.raises(Failed) as caught:
            write()
        assert not isinstance(caught.value, Refused)
        assert caught.value.kind == "storage_error"
        assert caught.value.message.endswith("connection reset")


def test_a_conditional_write_is_bounded(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.storage.remote._CREATE_BYTES_MAX", 10)
    storage.put("small", iter([b"12345", b"12345"]), create_only=True)
    with pytest.raises(InvalidInput):
        storage.put("large", iter([b"12345", b"12345", b"1"]), create_only=True)
    assert storage.head("large") is None


@pytest.mark.parametrize(
    "error", [PreconditionError("412"), FileNotFoundError("404"), AlreadyExistsError("409")]
)
def test_a_condition_that_does_not_hold_is_a_conflict(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Storages answer differently to one that is gone, or is being written by another."""

    def refused(*_: object, **__: object) -> None:
        raise error

    _, version = storage.get_versioned("data/1")
    monkeypatch.setattr(obstore, "put", refused)
    with pytest.raises(Conflict) as caught:
        storage.replace("data/1", b"1", version=version)
    assert caught.value.kind == "object_changed"


@pytest.mark.parametrize("number", [None, "7"])
def test_both_marks_of_a_version_are_compared(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, number: str | None
) -> None:
    modes: list[object] = []

    def put(*_: object, mode: object) -> dict[str, str | None]:
        modes.append(mode)
        return {"e_tag": f"e{len(modes)}", "version": number}

    _, version = storage.get_versioned("data/1")
    monkeypatch.setattr(obstore, "put", put)
    for _ in range(2):
        version = storage.replace("data/1", b"1", version=version)
    assert modes[1] == ({"e_tag": "e1"} if number is None else {"e_tag": "e1", "version": "7"})


def test_a_storage_without_versions_says_so(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, version = storage.get_versioned("data/1")
    monkeypatch.setattr(obstore, "put", lambda *_, **__: {"e_tag": None, "version": None})
    with pytest.raises(Failed) as caught:
        storage.replace("data/1", b"1", version=version)
    assert caught.value.kind == "storage_error"
    assert "no ETag" in caught.value.message


def test_where_there_are_no_bulk_deletes_each_key_is_deleted_by_itself() -> None:
    """A server of S3's interface that has none, as Google's, and fails at some keys."""
    requests: list[tuple[str, str]] = []

    def give(method: str, path: str) -> tuple[int, bytes]:
        requests.append((method, path))
        if method == "POST":
            return 501, xml("NotImplemented")
        return (403, xml("AccessDenied")) if path.endswith("denied") else (204, b"")

    with answering(give) as endpoint:
        options = {"endpoint": endpoint, "allow_http": "true", "region": "us-east-1"}
        options |= {"access_key_id": "key", "secret_access_key": "secret"}
        storage = open_storage("s3://bucket/x", options)
        names = [f"data/{number}" for number in range(50)]
        assert {each.outcome for each in storage.delete(names)} == {"deleted"}
        asked = [path for method, path in requests if method == "DELETE"]
        assert sorted(asked) == sorted(f"/bucket/x/{name}" for name in names)
        outcomes = storage.delete(["data/1", "denied", "data/2"])
    assert [each.outcome for each in outcomes] == ["deleted", "failed", "deleted"]
    assert "AccessDenied" in (outcomes[1].error or "")
    # It is asked once whether there are any.
    assert [method for method, _ in requests].count("POST") == 1
