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

from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput
from ebbtide.ids import new_id
from ebbtide.storage import DeleteOutcome, RemoteStorage, deleting, open_storage, remote
from ebbtide.storage.pace import Pace
from tests.support.answers import answering, broken, failed, s3_at, xml
from tests.support.errors import raises


class FaultyDelete:
    """Bulk deletes that fail as a whole where one key does, as obstore's do; and the first calls
    that a `busy` storage refuses."""

    def __init__(
        self, failing: dict[str, Exception], busy_calls: int = 0, busy: Exception | None = None
    ) -> None:
        self.failing = failing
        self.busy_calls, self.busy = busy_calls, busy
        self.calls: list[list[str]] = []
        self._real = obstore.delete

    def __call__(self, client: MemoryStore, paths: list[str]) -> None:
        self.calls.append(paths)
        if self.busy is not None and len(self.calls) <= self.busy_calls:
            raise self.busy
        for path in paths:
            if path in self.failing:
                raise self.failing[path]
            self._real(client, [path])


@pytest.fixture
def storage() -> RemoteStorage:
    storage = open_storage(f"memory:{new_id()}")
    assert isinstance(storage, RemoteStorage)
    for name in names(1_500):
        storage.put(name, b"")
    return storage


def names(count: int) -> list[str]:
    return [f"data/{number}" for number in range(count)]


def test_one_key_that_fails_fails_alone(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyDelete({"data/700": BaseError("denied\n\nDebug source:\n…")})
    monkeypatch.setattr(obstore, "delete", faulty)
    outcomes = storage.delete(names(1_500))
    assert [each.address for each in outcomes] == names(1_500)
    (failed_one,) = [each for each in outcomes if each.outcome != "deleted"]
    assert failed_one == DeleteOutcome("data/700", "failed", "denied")
    assert max(map(len, faulty.calls)) == 1_000
    assert len(faulty.calls) < 50
    left = {a for batch in storage.list() for a in batch.column("address").to_pylist()}
    assert left == set(faulty.failing)


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


@pytest.mark.parametrize(
    "error", [failed(200, "SlowDown"), failed(503, ""), failed(429, ""), broken()]
)
def test_a_busy_storage_is_asked_more_slowly_for_the_same(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float], error: Exception
) -> None:
    """As is one that broke."""
    busy = FaultyDelete({}, 3, error)
    monkeypatch.setattr(obstore, "delete", busy)
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"deleted"}
    # Not in smaller pieces, of which there would be more.
    assert list(map(len, busy.calls)) == [1_000] * 4
    # All but the first wait, longer and longer.
    assert waits == sorted(waits)
    assert len(waits) >= 2


def test_patience_with_a_busy_storage_ends(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(obstore, "delete", FaultyDelete({}, 10**6, failed(503, "SlowDown")))
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"failed"}
    assert all((each.error or "").startswith("throttled: ") for each in outcomes)
    assert 600 < sum(waits) < 700


@pytest.mark.parametrize("count", [7, 1_000])
@pytest.mark.parametrize("error", [failed(500, "InternalError"), failed(400, "InvalidRequest")])
def test_where_every_key_fails_the_storage_is_not_asked_for_each(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], error: Exception, count: int
) -> None:
    always = FaultyDelete({}, 10**6, error)
    monkeypatch.setattr(obstore, "delete", always)
    outcomes = open_storage(f"memory:{new_id()}").delete(names(count))
    said = str(error).partition("\n\n")[0]
    assert {(each.outcome, each.error) for each in outcomes} == {("failed", said)}
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
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"deleted", "failed"}
    assert len(faulty.calls) < 200
    assert sum(waits) < 100


SWEEPS_MAX = 2_000
"""Where nearly all keys fail, a sweep finds one of the others every tenth time or so."""


def test_each_key_has_its_own_outcome_whichever_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that fail beside each other hide no others for good: what is left is tried again, as by
    another sweep, until those alone are left that fail."""
    storage = open_storage(f"memory:{new_id()}")
    left = names(300)
    for name in left:
        storage.put(name, b"")
    first, length = random.randrange(300), random.randrange(150)
    failing: dict[str, Exception] = dict.fromkeys(left[first : first + length], BaseError("held"))
    monkeypatch.setattr(obstore, "delete", FaultyDelete(failing))
    for _ in range(SWEEPS_MAX):
        left = [each.address for each in storage.delete(left) if each.outcome == "failed"]
        assert {*left} >= failing.keys()
        if len(left) == len(failing):
            break
    assert {*left} == failing.keys()


def test_calls_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=30)
    monkeypatch.setattr(obstore, "delete", lambda *_: together.wait())
    outcomes = open_storage(f"memory:{new_id()}").delete(names(1_500))
    assert {each.outcome for each in outcomes} == {"deleted"}


WRITE_ERRORS: list[tuple[Exception, type[EbbtideError], str]] = [
    (BaseError("connection reset\n\nDebug source:\n…"), Failed, "storage_error"),
    (PreconditionError("412"), Conflict, "object_changed"),
    (FileNotFoundError("404"), Conflict, "object_changed"),
    (AlreadyExistsError("409"), Conflict, "object_changed"),
]
"""Storages answer differently to a condition on an object that is gone, or is being written by
another."""


@pytest.mark.parametrize(("error", "of", "kind"), WRITE_ERRORS)
def test_what_a_conditional_write_raises(
    monkeypatch: pytest.MonkeyPatch, error: Exception, of: type[EbbtideError], kind: str
) -> None:
    """What breaks outside is an error that can be tried again."""

    def refused(*_: object, **__: object) -> None:
        raise error

    storage = open_storage(f"memory:{new_id()}")
    storage.put("x", b"0")
    _, version = storage.get_versioned("x")
    monkeypatch.setattr(obstore, "put", refused)
    with raises(kind, of=of) as caught:
        storage.replace("x", b"1", version=version)
    if of is Failed:
        assert caught.value.message.endswith("connection reset")
        with raises(kind, "connection reset", of=of):
            storage.put("x", b"1")


def test_a_conditional_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.storage.remote._CREATE_BYTES_MAX", 10)
    storage = open_storage(f"memory:{new_id()}")
    storage.put("small", iter([b"12345", b"12345"]), create_only=True)
    with pytest.raises(InvalidInput):
        storage.put("large", iter([b"12345", b"12345", b"1"]), create_only=True)
    assert storage.head("large") is None


def test_both_marks_of_a_version_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that has none says so."""
    storage = open_storage(f"memory:{new_id()}")
    storage.put("x", b"0")
    _, first = storage.get_versioned("x")
    for tag, number in (("e1", None), ("e1", "7"), (None, None)):
        modes: list[object] = []

        def put(*_: object, mode: object) -> dict[str, str | None]:
            modes.append(mode)  # noqa: B023
            return {"e_tag": tag, "version": number}  # noqa: B023

        monkeypatch.setattr(obstore, "put", put)
        if tag is None:
            with raises("storage_error", "no ETag", of=Failed):
                storage.replace("x", b"1", version=first)
            return
        storage.replace("x", b"1", version=storage.replace("x", b"1", version=first))
        assert modes[1] == ({"e_tag": tag} if number is None else {"e_tag": tag, "version": number})


def test_where_there_are_no_bulk_deletes_each_key_is_deleted_by_itself() -> None:
    """A server of S3's interface that has none, as Google's, and fails at some keys."""
    requests: list[tuple[str, str]] = []

    def give(method: str, path: str) -> tuple[int, bytes]:
        requests.append((method, path))
        if method == "POST":
            return 501, xml("NotImplemented")
        return (403, xml("AccessDenied")) if path.endswith("denied") else (204, b"")

    with answering(give) as endpoint:
        storage = s3_at(endpoint, "/x")
        assert {each.outcome for each in storage.delete(names(50))} == {"deleted"}
        asked = [path for method, path in requests if method == "DELETE"]
        assert sorted(asked) == sorted(f"/bucket/x/{name}" for name in names(50))
        outcomes = storage.delete(["data/1", "denied", "data/2"])
    assert [each.outcome for each in outcomes] == ["deleted", "failed", "deleted"]
    assert "AccessDenied" in (outcomes[1].error or "")
    # It is asked once whether there are any.
    assert [method for method, _ in requests].count("POST") == 1
