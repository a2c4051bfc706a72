"""Directories below a root: opened, listed and emptied. A symbolic link is never followed.

Each step is relative to an open directory. If somebody replaces a directory by a link between a
check and a delete, the delete therefore stays below the root. Listings are Arrow batches, a few
hundred thousand files per second. Deletes are many at a time, and a power cut restores no file.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from ebbtide.errors import Failed, InvalidInput
from ebbtide.storage import base
from ebbtide.storage.base import DeleteOutcome

THREADS: Final = 16
OPENED_MAX: Final = 128
"""The most directories that are open at a time."""
_MEMBERS_MIN: Final = 64
"""Fewer files than this get no thread of their own."""
_TRIED, _AT_ONCE = 500, 2_000
"""The most files that a turn asks for: the first one, and others."""
_LOOKS_AT_ONCE: Final = 8
_WORK_MAX, _WAIT_MAX = 10e-6, 100e-6
"""Seconds of a processor, and in all, for a file's status that the system has in memory. It takes 4
µs; from a disk the work alone takes 15. While other threads run, all of it takes longer."""
_ALONE: Final = threading.Lock()

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS_MAX: Final = 1_000
_Member = TypeVar("_Member")


class NotInsideError(NotADirectoryError):
    """A component of a directory's path is a symbolic link, which may lead out of the root."""


@contextmanager
def opened(root: str, segments: Sequence[str]) -> Iterator[int]:
    """Yields a descriptor of the directory at `segments` below `root`, and closes it at the end.

    Raises FileNotFoundError if the directory does not exist, NotInsideError if a component is a
    symbolic link, and NotADirectoryError if a component is a file.
    """
    descriptor = os.open(root, _DIRECTORY)
    try:
        for segment in segments:
            descriptor = _step(descriptor, segment)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_chain(root: str, segments: Sequence[str], *, make: bool = True) -> Iterator[list[int]]:
    """Yields descriptors of the root and of each directory down to `segments`.

    Makes missing directories if `make` is true. Otherwise a missing directory raises
    FileNotFoundError. So does a directory that is removed between its making and its opening: a
    sweep removes empty directories.
    """
    chain = _open_chain(root, segments, make=make)
    try:
        yield chain
    finally:
        close_all(chain)


def _open_chain(root: str, segments: Sequence[str], *, make: bool) -> list[int]:
    if make:
        Path(root).mkdir(parents=True, exist_ok=True)
    chain = [os.open(root, _DIRECTORY)]
    try:
        for segment in segments:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(segment, dir_fd=chain[-1])
            chain.append(_open(chain[-1], segment))
    except BaseException:
        close_all(chain)
        raise
    return chain


def close_all(chain: Sequence[int]) -> None:
    """Closes descriptors."""
    for descriptor in chain:
        os.close(descriptor)


def create_exclusively(
    root: str, segments: Sequence[str], name: str, *, make: bool = True
) -> tuple[list[int], int]:
    """Makes a new file `name` in the directory at `segments`, and the directories that it needs.

    Returns descriptors of the chain of directories and of the file; the caller closes all. Most
    directories are there: the first attempt makes none. Until the file exists, its directory is
    empty and may be removed: then the attempt is repeated. If `make` is false, a missing directory
    raises FileNotFoundError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    attempt = 0
    while True:
        chain: list[int] = []
        try:
            chain = _open_chain(root, segments, make=make and attempt > 0)
            return chain, os.open(name, flags, 0o666, dir_fd=chain[-1])
        except BaseException as error:
            close_all(chain)
            attempt += 1
            if not (make and isinstance(error, FileNotFoundError)) or attempt == _ATTEMPTS_MAX:
                raise


def remove_empty(root: str, segments: Sequence[str], *, keep_depth: int) -> None:
    """Removes the directory at `segments` and those above it, as long as they are empty.

    Directories that are `keep_depth` or fewer levels below the root stay. The kernel itself checks
    that a directory is empty, so that a directory that gets a file meanwhile stays too.
    """
    for depth in range(len(segments), keep_depth, -1):
        try:
            with opened(root, segments[: depth - 1]) as parent:
                os.rmdir(segments[depth - 1], dir_fd=parent)
        except OSError:
            # Not empty, gone already, or not permitted. An empty directory does no harm.
            return


def _step(parent: int, segment: str) -> int:
    """Opens a directory in `parent`, and closes `parent` unless there was an error."""
    descriptor = _open(parent, segment)
    os.close(parent)
    return descriptor


def _open(parent: int, segment: str) -> int:
    try:
        return os.open(segment, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(segment, dir_fd=parent, follow_symlinks=False).st_mode):
            raise NotInsideError(f"{segment!r} is a symbolic link") from None
        raise


class _Turns:
    """Lets one thread at a time read directories and statuses, as long as the system has them in
    memory: for so short calls, passing Python's lock between threads takes longer than the answers.
    Where answers come from a disk, threads wait for them side by side."""

    def __init__(self) -> None:
        self._quick = True
        self._count = _TRIED

    def take(self, work: Callable[[int], int]) -> int:
        """Calls `work` with the most files that it may ask for. Returns what it returns: the number
        of files that it asked for."""
        if self._quick:
            with _ALONE:
                if self._quick:
                    return self._timed(work)
        return work(_AT_ONCE)

    def _timed(self, work: Callable[[int], int]) -> int:
        began, worked = time.perf_counter(), time.thread_time()
        asked = work(self._count)
        worked, took = time.thread_time() - worked, time.perf_counter() - began
        some = max(asked, _TRIED)
        self._quick = worked < some * _WORK_MAX and took < some * _WAIT_MAX
        self._count = _AT_ONCE
        return asked


@dataclass(slots=True)
class _Columns:
    """Rows that were found and not yet yielded: one list for each column. `modified` is in
    microseconds since 1970."""

    addresses: list[str] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    modified: list[int | None] = field(default_factory=list)
    regular: list[bool] = field(default_factory=list)

    def batch(self) -> pa.RecordBatch:
        """Returns the batch of all rows, and clears the lists."""
        regular = self.regular
        try:
            addresses = pa.array(self.addresses, pa.string())
        except UnicodeEncodeError:
            # A name that is not UTF-8 cannot be an address. It is listed in readable form, as not
            # regular, so that the file is kept.
            shown = [_readable(address) for address in self.addresses]
            pairs = zip(self.addresses, shown, regular, strict=True)
            regular = [plain and name == legible for name, legible, plain in pairs]
            addresses = pa.array(shown, pa.string())
        microseconds = pa.array(self.modified, pa.int64())
        columns: list[pa.Array[Any]] = [
            addresses,
            pa.array(self.sizes, pa.int64()),
            microseconds.cast(pa.timestamp("us", "UTC")),
            pa.array(regular, pa.bool_()),
            pa.nulls(len(regular), pa.string()),
        ]
        for column in (self.addresses, self.sizes, self.modified, self.regular):
            column.clear()
        return pa.RecordBatch.from_arrays(columns, schema=base.LISTING_SCHEMA)

    def add_named(self, prefix: str, entries: Sequence[os.DirEntry[str]]) -> None:
        """Adds files of a directory, without sizes and dates."""
        self.addresses += [prefix + entry.name for entry in entries]
        self.regular += [entry.is_file(follow_symlinks=False) for entry in entries]
        self.sizes += [None] * len(entries)
        self.modified += [None] * len(entries)

    def add_sized(self, prefix: str, entries: Sequence[os.DirEntry[str]]) -> None:
        """Adds files of a directory, with sizes and dates. Files deleted meanwhile are left out."""
        found = [_status_of(entry) for entry in entries]
        there = [status for status in found if status is not None]
        self.addresses += [prefix + entry.name for entry in compress(entries, found)]
        self.sizes += [status.st_size for status in there]
        self.modified += [base.micros_of_write(status.st_mtime_ns) for status in there]
        self.regular += [stat.S_ISREG(status.st_mode) for status in there]

    def add(self, address: str, status: os.stat_result | None) -> None:
        """Adds the plain file at an address, or a row without size and date if there is none."""
        is_there = status is not None and stat.S_ISREG(status.st_mode)
        self.addresses.append(address)
        self.sizes.append(status.st_size if status is not None and is_there else None)
        self.modified.append(
            base.micros_of_write(status.st_mtime_ns) if status is not None and is_there else None
        )
        self.regular.append(is_there)


def list_directory(
    root: str,
    prefix: str,
    *,
    recursive: bool,
    share: tuple[int, int] = (0, 1),
    sized: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yields the files under `prefix` ("" or ending in `/`) in batches of LISTING_SCHEMA. Without
    sizes and dates, a listing takes a fifth of the time.

    Memory is bounded by the directories that wait to be read, and one batch. A directory that does
    not exist counts as empty. A directory that cannot be read raises Failed (`storage_error`).
    """
    columns, turns = _Columns(), _Turns()
    waiting = [prefix]
    while waiting:
        here = waiting.pop()
        try:
            for _ in _scan(root, here, columns, waiting, share, turns, sized=sized):
                yield columns.batch()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Failed(
                "storage_error", f"the directory {here or root} can't be listed: {error}"
            ) from error
        if not recursive and here == prefix:
            # A directory whose name cannot be in an address cannot be listed by a call of its own.
            waiting = [inner for inner in waiting if not base.is_prefix(inner)]
    if columns.addresses:
        yield columns.batch()


def list_sizes(root: str, addresses: Sequence[str]) -> pa.RecordBatch:
    """Returns the size and date of each address, as `Storage.sizes` does."""
    by_directory = _by_directory(addresses, [None] * len(addresses))
    found: list[os.stat_result | None] = [None] * len(addresses)
    turns = _Turns()

    def look(segments: Sequence[str], members: Iterator[tuple[int, str, str]]) -> None:
        def ask(count: int) -> int:
            some = list(islice(members, count))
            for place, _, name in some:
                found[place] = _status_at(descriptor, name)
            return len(some)

        try:
            with opened(root, segments) as descriptor:
                while turns.take(ask):
                    pass
        except OSError as error:
            if not _is_missing(error):
                raise Failed(
                    "storage_error",
                    f"the files in {'/'.join(segments) or root} can't be examined: {error}",
                ) from error

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        list(pool.map(look, by_directory.keys(), map(iter, by_directory.values())))
    columns = _Columns()
    for address, status in zip(addresses, found, strict=True):
        columns.add(address, status)
    return columns.batch()


def _scan(
    root: str,
    prefix: str,
    columns: _Columns,
    found: list[str],
    share: tuple[int, int],
    turns: _Turns,
    *,
    sized: bool,
) -> Iterator[None]:
    """Adds the files of one directory to the columns, and yields whenever a batch is full.

    Adds its directories to `found`. Unless `sized`, adds no sizes and dates. Files that are deleted
    meanwhile may be left out.
    """
    add = columns.add_sized if sized else columns.add_named

    def read(count: int) -> int:
        room = base.LISTING_ROWS_MAX - len(columns.addresses)
        some = list(islice(entries, min(count, room)))
        asked = len(some)
        if not all(entry.is_file(follow_symlinks=False) for entry in some):
            is_inner = [entry.is_dir(follow_symlinks=False) for entry in some]
            found.extend(f"{prefix}{entry.name}/" for entry in compress(some, is_inner))
            some = [entry for entry, inner in zip(some, is_inner, strict=True) if not inner]
        if share[1] > 1:
            some = [entry for entry in some if base.in_share(entry.name, share)]
        add(prefix, some)
        return asked

    segments = prefix.split("/")[:-1]
    with (
        opened(root, segments) as descriptor,
        os.scandir(descriptor) as entries,
    ):
        while turns.take(read):
            if len(columns.addresses) >= base.LISTING_ROWS_MAX:
                yield


def _is_missing(error: OSError) -> bool:
    """Whether there is no such file. None has a name that is too long for the file system."""
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return missing or error.errno == errno.ENAMETOOLONG


def _status_at(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if _is_missing(error):
            return None
        raise


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _readable(address: str) -> str:
    return address.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


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
            remove_empty(root, parents, keep_depth=keep_depth)
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
            descriptor = self.opened.enter_context(opened(self.root, self.parents))
        except OSError as error:
            self._failed(error)
            return

        def some(part: Sequence[tuple[int, str, str]]) -> None:
            for index, address, name in part:
                self.outcomes[index] = _unlink_one(descriptor, address, name)

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
        link = isinstance(error, NotInsideError)
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


def _unlink_one(parent: int, address: str, name: str) -> DeleteOutcome:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return DeleteOutcome(address, "missing")
    except OSError as error:
        return DeleteOutcome(address, "failed", str(error))
    return DeleteOutcome(address, "deleted")
