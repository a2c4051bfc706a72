"""A copy is looked at before its original goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from obstore.store import MemoryStore

from ebbtide.gc import quarantine
from ebbtide.ids import new_id
from ebbtide.storage import RemoteStorage, copies, open_storage, remote
from tests.support.answers import answering, s3_at, xml

KEY: Final = "dGVzdA=="


@pytest.fixture
def storage() -> RemoteStorage:
    storage = open_storage(f"memory:{new_id()}")
    assert isinstance(storage, RemoteStorage)
    storage.put("data/x", b"the content")
    return storage


class ShortCopies:
    """A client whose copies lack bytes, or whose copies are not made though they are confirmed."""

    def __init__(self, client: MemoryStore, copied: bytes | None) -> None:
        self._client = client
        self._copied = copied
        self.can_delete = True

    def copy(self, _source: str, target: str) -> None:
        if self._copied is not None:
            self._client.put(target, self._copied)

    def delete(self, target: str) -> None:
        if not self.can_delete:
            raise OSError("no")
        self._client.delete(target)

    def __getattr__(self, name: str) -> Any:  # whatever else a client does
        return getattr(self._client, name)


def moved_by(client: ShortCopies, storage: RemoteStorage, patch: pytest.MonkeyPatch) -> str:
    with patch.context() as patched:
        patched.setattr(RemoteStorage, "_client", lambda _self: client)
        (found,) = quarantine.move_in(storage, "run", ["data/x"])
    assert found.outcome == "failed"
    return found.error or ""


@pytest.mark.parametrize("copied", [None, b"", b"the con"])
def test_an_incomplete_copy_never_costs_the_source(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch, copied: bytes | None
) -> None:
    broken_off = ShortCopies(storage._client(), copied)  # type: ignore[arg-type]
    assert "the copy" in moved_by(broken_off, storage, monkeypatch)
    assert storage.get("data/x") == b"the content"
    assert storage.head(quarantine.prefix_of("run") + "data/x") is None


def test_a_copy_that_cannot_be_deleted_never_replaces_the_original(
    storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off = ShortCopies(storage._client(), b"the con")  # type: ignore[arg-type]
    broken_off.can_delete = False
    told = moved_by(broken_off, storage, monkeypatch)
    assert "delete the incomplete copy at" in told
    (back,) = quarantine.move_back(storage, "run", ["data/x"])
    assert back.outcome == "failed"
    assert "one of the two is not complete" in (back.error or "")
    assert storage.get("data/x") == b"the content"


def test_a_copy_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure may copy later. A status other than `success` fails."""
    statuses = iter(["pending", "pending", "success"])
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=lambda: sum(waits))
    monkeypatch.setattr(copies, "time", clock)
    with monkeypatch.context() as patched:
        patched.setattr(copies.Copier, "_copy_status", lambda _self, _address: next(statuses))
        copier = copies.Copier(azure_client(), lambda _address: None, lambda _address: None)
        copier._check_status("x")
    assert len(waits) == 2
    monkeypatch.setattr(copies.Copier, "_copy_status", lambda _self, _address: "failed")
    with pytest.raises(copies._CopyError, match="ended as failed"):
        copier._check_status("x")


def azure_client() -> Any:
    """A client of Azure that nobody answers."""
    options = {"account_name": "test", "account_key": KEY, "endpoint": "http://127.0.0.1:1"}
    found = open_storage("az://container", options | {"allow_http": "true"})
    assert isinstance(found, RemoteStorage)
    return found._client()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("InvalidObjectState", "cold storage class"),
        ("AccessDenied", "object lock"),
        ("ObjectLocked", "object lock"),
    ],
)
def test_cold_and_locked_objects_fail_with_the_reason(code: str, said: str) -> None:
    def give(method: str, _path: str) -> tuple[int, bytes]:
        return (200, b"") if method == "HEAD" else (403, xml(code))

    with answering(give) as endpoint:
        storage = s3_at(endpoint)
        found = (*storage.move([("x", "y")]), *storage.delete(["x"]))
    assert [each.outcome for each in found] == ["failed"] * 2
    for each in found:
        assert said in (each.error or "") and code in (each.error or "")


def test_azure_copies_and_their_status_on_the_real_server(azure_url: str) -> None:
    storage = open_storage(f"{azure_url}/{new_id()}")
    assert isinstance(storage, remote.RemoteStorage)
    storage.put("x", b"1")
    copier = copies.Copier(storage._client(), storage.head, copies.sign_head(storage.sign_get))
    assert copier._copy_status("x") is None
    assert copier.copy("x", "y").outcome == "moved"
    assert copier._copy_status("y") == "success"
    assert copier._copy_status("none") is None
