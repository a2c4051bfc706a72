"""Something else happens at one place of an operation: before one of its transactions or calls of
the storage, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ebbtide.store.content.trees import ContentCache
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.repository import Repository
from tests.support.faulty import FaultyStorage

Step = Callable[[str], None]


class SteppingMetadata(Metadata):
    """A database that tells of each transaction before it begins."""

    def __init__(self, inner: Metadata, before: Step) -> None:
        super().__init__(inner.engine, inner.clock)
        self._before = before

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._before("transaction")
        with super().transaction() as tx:
            yield tx

    @contextmanager
    def snapshot(self, *, scans: bool = False) -> Iterator[Transaction]:
        self._before("snapshot")
        with super().snapshot(scans=scans) as tx:
            yield tx


class HeldMetadata(Metadata):
    """A database that tells of each of its transactions that write, just before it ends."""

    def __init__(self, inner: Metadata, before_commit: Callable[[Transaction], None]) -> None:
        super().__init__(inner.engine, inner.clock)
        self._before_commit = before_commit

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as tx:
            yield tx
            self._before_commit(tx)


def stepping(repository: Repository, before: Step) -> Repository:
    """The repository, each of whose transactions and calls of the storage is told of before."""
    context = repository.context
    storage = FaultyStorage(context.storage, before=lambda method, _address: before(method))
    return Repository(
        replace(
            context,
            metadata=SteppingMetadata(context.metadata, before),
            storage=storage,
            cache=ContentCache(storage),
        )
    )


class At:
    """Does something once, at the place with that number; counts the places."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self.number = number
        self.action = action
        self.count = 0

    def __call__(self, _step: str) -> None:
        self.count += 1
        if self.count - 1 == self.number:
            self.action()
