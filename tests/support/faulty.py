"""A storage whose calls a test watches, interrupts, or lets something else happen before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pytest

from ebbtide.errors import Failed
from ebbtide.storage import DeleteOutcome, LocalStorage, Storage
from ebbtide.store.content.trees import ContentCache
from ebbtide.store.repository import Repository

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


_UNHEARD: Final = ("sign_get", "retained", "classes")
"""The methods that hooks do not hear of."""


@dataclass(frozen=True)
class FaultyStorage(Any):  # type: ignore[misc]  # it has all that a storage has
    """Calls `before` with a method's name and address, then the storage's method, then `after`.

    A hook that raises makes the call fail: before anything was done, or after all of it was. Of
    several addresses it is told with blanks between them.
    """

    inner: Any  # a storage
    before: Hook = nothing
    after: Hook = nothing

    @property
    def shared_between_processes(self) -> bool:
        """Hooks stay in this process."""
        return False

    def sign_put(self, address: str, *, lasts: timedelta) -> Any:  # as the storage says
        return self.inner.sign_put(address, lasts=lasts)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):  # asked by pickle, also before there is an `inner`
            raise AttributeError(method)
        call = getattr(self.inner, method)
        if method in _UNHEARD or not callable(call):
            return call

        def around(asked: Any = "", *given: Any, **named: Any) -> Any:
            each = [asked] if isinstance(asked, str) else asked
            address = " ".join(one if isinstance(one, str) else one[0] for one in each)
            self.before(method, address)
            answer = call(asked, *given, **named)
            self.after(method, address)
            return answer

        return around


class SharedFaultyStorage(FaultyStorage):
    """Calls itself shared. Its hooks are in this process, and so are runs without workers."""

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
