"""A storage whose calls a test watches, interrupts, or lets something else happen before."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, TypeVar

import pyarrow as pa
import pytest

from ebbtide.errors import Failed
from ebbtide.storage import Content, DeleteOutcome, LocalStorage, ObjectInfo, Retained, Storage
from ebbtide.storage.classes import StorageClass
from ebbtide.store.content.cache import ContentCache
from ebbtide.store.repository import Repository

Answer = TypeVar("Answer")
Hook = Callable[[str, str], None]


def nothing(method: str, address: str) -> None:
    del method, address


def fail_deletes(patch: pytest.MonkeyPatch, fails: Callable[[str], object]) -> None:
    """Directories do not delete what `fails` says so of, and go on with the rest."""
    delete = LocalStorage.delete

    def failing(storage: LocalStorage, addresses: list[str]) -> list[DeleteOutcome]:
        good = iter(delete(storage, [each for each in addresses if not fails(each)]))
        return [
            DeleteOutcome(each, "failed", "denied") if fails(each) else next(good)
            for each in addresses
        ]

    patch.setattr(LocalStorage, "delete", failing)


@dataclass(frozen=True)
class FaultyStorage:
    """Calls `before` with a method's name and address, then the storage's method, then `after`.

    A hook that raises makes the call fail: before anything was done, or after all of it was.
    """

    inner: Storage
    before: Hook = nothing
    after: Hook = nothing

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared_between_processes(self) -> bool:
        """Hooks stay in this process."""
        return False

    def get(self, address: str) -> bytes:
        return self._around("get", address, lambda: self.inner.get(address))

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        return self._around("get_versioned", address, lambda: self.inner.get_versioned(address))

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        return self._around(
            "stream", address, lambda: self.inner.stream(address, start=start, end=end, etag=etag)
        )

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        self._around(
            "put",
            address,
            lambda: self.inner.put(address, data, create_only=create_only, durable=durable),
        )

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        return self._around(
            "replace", address, lambda: self.inner.replace(address, data, version=version)
        )

    def head(self, address: str) -> ObjectInfo | None:
        return self._around("head", address, lambda: self.inner.head(address))

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        return self._around(
            "list",
            prefix,
            lambda: self.inner.list(
                prefix, recursive=recursive, share=share, sized=sized, streamed=streamed
            ),
        )

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        return self._around("sizes", " ".join(addresses), lambda: self.inner.sizes(addresses))

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        return self.inner.sign_put(address, lasts=lasts)

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        return self.inner.sign_get(address, lasts=lasts, method=method)

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        return self._around("list_prefixes", prefix, lambda: self.inner.list_prefixes(prefix))

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        return self._around("delete", " ".join(addresses), lambda: self.inner.delete(addresses))

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        sources = " ".join(source for source, _ in moves)
        return self._around("move", sources, lambda: self.inner.move(moves))

    def retained(self) -> Retained:
        return self.inner.retained()

    @property
    def deletes_versions(self) -> bool:
        return self.inner.deletes_versions

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        return self._around(
            "delete_versions", " ".join(addresses), lambda: self.inner.delete_versions(addresses)
        )

    @property
    def has_classes(self) -> bool:
        return self.inner.has_classes

    def classes(self, addresses: Sequence[str]) -> builtins.list[StorageClass | None]:
        return self.inner.classes(addresses)

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        return self._around("hidden", prefix, lambda: self.inner.hidden(prefix))

    def _around(self, method: str, address: str, call: Callable[[], Answer]) -> Answer:
        self.before(method, address)
        answer = call()
        self.after(method, address)
        return answer


class SharedFaultyStorage(FaultyStorage):
    """One that says that processes share it, though its hooks are in this one alone: so are runs
    whose tasks are done in place."""

    @property
    def shared_between_processes(self) -> bool:
        """For the test, yes."""
        return True


class FailNth:
    """A hook that fails the `nth` call, counted from 0, and counts all; None fails none."""

    def __init__(self, nth: int | None = None) -> None:
        self.nth = nth
        self.count = 0

    def __call__(self, method: str, address: str) -> None:
        self.count += 1
        if self.count - 1 == self.nth:
            raise Failed("storage_error", f"{method} {address} was made to fail")


class OncePut:
    """A hook that does something once, at the first write to an address that begins so."""

    def __init__(self, beginning: str, action: Callable[[], object]) -> None:
        self.beginning = beginning
        self.action = action
        self.done = False

    def __call__(self, method: str, address: str) -> None:
        if method in ("put", "replace") and address.startswith(self.beginning) and not self.done:
            self.done = True
            self.action()


def with_storage(repository: Repository, storage: Storage) -> Repository:
    return Repository(replace(repository.context, storage=storage, cache=ContentCache(storage)))
