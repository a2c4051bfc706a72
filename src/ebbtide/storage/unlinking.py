"""Deletes files of a local directory, many at a time. A power cut does not restore any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from ebbtide.errors import InvalidInput
from ebbtide.storage import base, directories
from ebbtide.storage.base import DeleteOutcome

_Member = TypeVar("_Member")

THREADS: Final = 16
OPENED_MAX: Final = 128
"""The most directories that are open at a time."""
_MEMBERS_MIN: Final = 64
"""Fewer files than this get no thread of their own."""


def unlink(root: str, addresses: Sequence[str], *, keep_depth: int) -> list[DeleteOutcome]:
    """Deletes files, and returns outcomes as `Storage.delete` does. Removes directories that are
    empty afterwards, except those at most `keep_depth` levels below the root."""
    outcomes: list[DeleteOutcome | None] = [None] * len(addresses)
    found = list(_by_directory(addresses, outcomes).items())
    for start in range(0, len(found), OPENED_MAX):
        group = found[start : start + OPENED_MAX]
        # Deletes in one directory wait for each other; deletes in several directories do not. All
        # deletes come before the first flush, because one flush writes the changes of all.
        with ExitStack() as opened, ThreadPoolExecutor(THREADS if len(group) > 1 else 1) as pool:
            alone = len(group) == 1
            parts = [_Directory(root, *each, outcomes, opened, alone=alone) for each in group]
            list(pool.map(_Directory.unlink, parts))
            list(pool.map(_Directory.synchronize, parts))
        for parents, _ in group:
            directories.remove_empty(root, parents, keep_depth=keep_depth)
    return [outcome for outcome in outcomes if outcome is not None]


def in_parallel(work: Callable[[Sequence[_Member]], None], members: Sequence[_Member]) -> None:
    """Calls `work` with each share of the members, in a thread of its own."""
    size = max(_MEMBERS_MIN, -(-len(members) // THREADS))
    parts = [members[first : first + size] for first in range(0, len(members), size)]
    if len(parts) == 1:
        work(parts[0])
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))


@dataclass(slots=True)
class _Directory:
    """A directory, and the files in it to delete, as (index, address, name). It stays open from the
    first delete until it is flushed to disk, because somebody may remove it meanwhile."""

    root: str
    parents: tuple[str, ...]
    members: Sequence[tuple[int, str, str]]
    outcomes: list[DeleteOutcome | None]
    opened: ExitStack
    alone: bool
    descriptor: int | None = None

    def unlink(self) -> None:
        """Deletes the files and sets their outcomes."""
        try:
            descriptor = self.opened.enter_context(directories.opened(self.root, self.parents))
        except OSError as error:
            self._failed(error)
            return

        def some(part: Sequence[tuple[int, str, str]]) -> None:
            for index, address, name in part:
                self.outcomes[index] = _unlink(descriptor, address, name)

        self.descriptor = descriptor
        if self.alone:
            in_parallel(some, self.members)
        else:
            some(self.members)

    def synchronize(self) -> None:
        """Flushes the directory to disk, so that a power cut undoes no reported delete."""
        if self.descriptor is None:
            return
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Sets the outcome of all files: `missing` if there is no such directory, and `failed` for
        other errors. A path through a link is `failed`, because files behind it are not touched."""
        link = isinstance(error, directories.NotInsideError)
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError)) and not link
        for index, address, _ in self.members:
            self.outcomes[index] = (
                DeleteOutcome(address, "missing")
                if missing
                else DeleteOutcome(address, "failed", str(error))
            )


def _by_directory(
    addresses: Sequence[str], outcomes: list[DeleteOutcome | None]
) -> dict[tuple[str, ...], list[tuple[int, str, str]]]:
    """Groups addresses by their directory, as (index, address, name). Sets the outcome of each
    invalid address to `failed`."""
    members: dict[tuple[str, ...], list[tuple[int, str, str]]] = {}
    for index, address in enumerate(addresses):
        try:
            *parents, name = base.split_address(address)
        except InvalidInput as error:
            outcomes[index] = DeleteOutcome(address, "failed", error.message)
        else:
            members.setdefault(tuple(parents), []).append((index, address, name))
    return members


def _unlink(parent: int, address: str, name: str) -> DeleteOutcome:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return DeleteOutcome(address, "missing")
    except OSError as error:
        return DeleteOutcome(address, "failed", str(error))
    return DeleteOutcome(address, "deleted")
