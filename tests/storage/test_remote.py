"""What a remote storage's deletes answer when the storage does not do all that it is asked."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from email.message import Message
from functools import lru_cache
from io import BytesIO
from types import MappingProxyType, SimpleNamespace
from urllib.error import HTTPError

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput
from ebbtide.ids import new_id
from ebbtide.storage import Storage, deletes, open_storage, remote, requests
from ebbtide.storage.deletes import Pace
from ebbtide.storage.requests import FailedAnswer
from tests.support.answers import answering, s3_at, xml
from tests.support.errors import raises


class FaultyBucket:
    """Bulk deletes of S3, in place of the request. In the first `failing_calls`, keys fail, each
    with its code and message. The first `error_calls` fail as a whole, and all that have a key of
    `poison`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        failing: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        *,
        failing_calls: int = 10**6,
        error: Exception | None = None,
        error_calls: int = 0,
        poison: frozenset[str] = frozenset(),
    ) -> None:
        self.failing, self.failing_calls = failing, failing_calls
        self.error, self.error_calls, self.poison = error, error_calls, poison
        self.calls: list[list[str]] = []
        self.gone: set[str] = set()
        monkeypatch.setattr(requests.Bucket, "delete", lambda _, objects, **__: self(objects))

    def __call__(self, objects: Sequence[tuple[str, str]]) -> dict[tuple[str, str], object]:
        addresses = {each: each[0].partition("/")[2] for each in objects}
        self.calls.append([*addresses.values()])
        number = len(self.calls)
        is_poisoned = not self.poison.isdisjoint(addresses.values())
        if self.error is not None and (number <= self.error_calls or is_poisoned):
            raise self.error
        failing = self.failing if number <= self.failing_calls else {}
        self.gone |= {*addresses.values()} - failing.keys()
        return {each: failing[name] for each, name in addresses.items() if name in failing}


def refused(status: int, code: str = "") -> FailedAnswer:
    """The exception of a request that a storage answers with an error."""
    return FailedAnswer(HTTPError("http://x", status, "", Message(), BytesIO(xml(code))))


@pytest.fixture
def storage() -> Storage:
    return s3_at("http://127.0.0.1:1", f"/{new_id()}")


def names(count: int) -> list[str]:
    return [f"data/{number}" for number in range(count)]


def test_one_key_that_fails_fails_alone(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says which one: nothing is asked again."""
    failing = {"data/700": ("AccessDenied", "no")}
    faulty = FaultyBucket(monkeypatch, failing)
    outcomes = storage.delete(names(1_500))
    assert [each.address for each in outcomes] == names(1_500)
    (failed_one,) = [each for each in outcomes if each.outcome != "deleted"]
    assert failed_one.address == "data/700" and "AccessDenied: no" in (failed_one.error or "")
    assert sorted(map(len, faulty.calls)) == [500, 1_000]
    assert faulty.gone == {*names(1_500)} - failing.keys()


def test_one_key_for_which_a_call_fails_as_a_whole_fails_alone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server cannot read the name of one key."""
    poison = frozenset({"data/700"})
    faulty = FaultyBucket(monkeypatch, error=refused(400, "MalformedXML"), poison=poison)
    outcomes = storage.delete(names(1_000))
    assert [each.address for each in outcomes if each.outcome != "deleted"] == ["data/700"]
    assert faulty.gone == {*names(1_000)} - poison
    assert len(faulty.calls) <= 1_001


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept in place of sleeping, which moves the clock all the same."""
    found: list[float] = []
    start = time.monotonic()

    def clock() -> float:
        return start + sum(found)

    shared = lru_cache(
        lambda url, options: deletes.Deletes(url, options, Pace(clock, found.append))
    )
    monkeypatch.setattr(remote, "deletes_of", shared)
    # Not in the module itself, which threads that other tests left behind use too.
    monkeypatch.setattr(deletes, "time", SimpleNamespace(sleep=found.append, monotonic=clock))
    return found


@pytest.mark.parametrize(
    "error", [refused(503, "SlowDown"), refused(503), refused(429), TimeoutError("network")]
)
def test_a_busy_storage_is_asked_more_slowly_for_the_same(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, waits: list[float], error: Exception
) -> None:
    """As is one that broke."""
    busy = FaultyBucket(monkeypatch, error_calls=3, error=error)
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"deleted"}
    # Not in smaller pieces, of which there would be more.
    assert list(map(len, busy.calls)) == [1_000] * 4
    # All but the first wait, longer and longer.
    assert waits == sorted(waits)
    assert len(waits) >= 2


@pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
def test_only_the_keys_that_fail_are_asked_for_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, waits: list[float], code: str
) -> None:
    faulty = FaultyBucket(monkeypatch, dict.fromkeys(names(7), (code, "")), failing_calls=3)
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert list(map(len, faulty.calls)) == [1_000, 7, 7, 7]
    assert waits


def test_patience_with_a_busy_storage_ends(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    FaultyBucket(monkeypatch, error_calls=10**6, error=refused(503, "SlowDown"))
    outcomes = storage.delete(names(1_000))
    assert {each.outcome for each in outcomes} == {"failed"}
    assert all((each.error or "").startswith("throttled: ") for each in outcomes)
    assert 600 < sum(waits) < 700


@pytest.mark.parametrize("count", [7, 1_000])
@pytest.mark.parametrize("error", [refused(500, "InternalError"), refused(400, "InvalidRequest")])
def test_where_every_key_fails_the_storage_is_not_asked_for_each(
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
    error: FailedAnswer,
    count: int,
) -> None:
    always = FaultyBucket(monkeypatch, error_calls=10**6, error=error)
    outcomes = storage.delete(names(count))
    said = f"status {error.code}: {error.told()[0]}: of a test"
    assert {(each.outcome, each.error) for each in outcomes} == {("failed", said)}
    assert len(always.calls) < 20
    assert sum(waits) < 10


def test_each_key_has_its_own_outcome_whichever_fail(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that fail beside each other hide no others."""
    asked = names(300)
    first, length = random.randrange(300), random.randrange(150)
    failing = dict.fromkeys(asked[first : first + length], ("AccessDenied", ""))
    FaultyBucket(monkeypatch, failing)
    left = [each.address for each in storage.delete(asked) if each.outcome == "failed"]
    assert left == list(failing)


def test_calls_do_not_wait_for_each_other(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=30)

    def delete(_bucket: object, _objects: object, **_: object) -> dict[str, object]:
        together.wait()
        return {}

    monkeypatch.setattr(requests.Bucket, "delete", delete)
    outcomes = storage.delete(names(1_500))
    assert {each.outcome for each in outcomes} == {"deleted"}


WRITE_ERRORS: list[tuple[Exception, type[EbbtideError], str]] = [
    (BaseError("connection reset\n\nDebug source:\n…"), Failed, "storage_error"),
    (PreconditionError("412"), Conflict, "object_changed"),
    (FileNotFoundError("404"), Conflict, "object_changed"),
    (AlreadyExistsError("409"), Conflict, "object_changed"),
]
"""Storages answer differently to a condition on what is gone or is being written."""


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
    storage.put("x", b"00")
    monkeypatch.setattr(obstore, "put", refused)
    with raises(kind, of=of) as caught:
        storage.replace("x", b"1", version=version)
    if of is Failed:
        assert caught.value.message.endswith("connection reset")
        with raises(kind, "connection reset", of=of):
            storage.put("x", b"1")


def test_a_server_that_refuses_the_version_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that another was faster: it would be so each time."""

    def refused(*_: object, **__: object) -> None:
        raise PreconditionError("412")

    storage = open_storage(f"memory:{new_id()}")
    storage.put("x", b"0")
    _, version = storage.get_versioned("x")
    monkeypatch.setattr(obstore, "put", refused)
    with raises("storage_unconditional", "If-Match", of=Failed):
        storage.replace("x", b"1", version=version)


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
