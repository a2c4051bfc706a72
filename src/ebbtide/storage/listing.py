"""Lists a local directory as Arrow batches, a few hundred thousand files per second."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any, Final

import pyarrow as pa

from ebbtide.errors import Failed
from ebbtide.storage import base, directories

_ENTRIES_AT_ONCE: Final = 2_000
_LOOKS_AT_ONCE: Final = 8


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
        ]
        for column in (self.addresses, self.sizes, self.modified, self.regular):
            column.clear()
        return pa.RecordBatch.from_arrays(columns, schema=base.LISTING_SCHEMA)

    def add_named(
        self, prefix: str, entries: Sequence[os.DirEntry[str]], regular: Sequence[bool]
    ) -> None:
        """Adds files of a directory, without sizes and dates."""
        self.addresses += [prefix + entry.name for entry in entries]
        self.regular += regular
        self.sizes += [None] * len(entries)
        self.modified += [None] * len(entries)

    def add_sized(self, prefix: str, entries: Sequence[os.DirEntry[str]]) -> None:
        """Adds files of a directory, with sizes and dates. Files deleted meanwhile are left out."""
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            self.addresses.append(prefix + entry.name)
            self.sizes.append(status.st_size)
            self.modified.append(base.micros_of_write(status.st_mtime_ns))
            self.regular.append(stat.S_ISREG(status.st_mode))

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
    columns = _Columns()
    waiting = [prefix]
    while waiting:
        here = waiting.pop()
        try:
            for _ in _scan(root, here, columns, waiting, share, sized=sized):
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
    by_directory: dict[str, list[tuple[int, str]]] = {}
    for place, address in enumerate(addresses):
        prefix, _, name = address.rpartition("/")
        by_directory.setdefault(prefix, []).append((place, name))
    found: list[os.stat_result | None] = [None] * len(addresses)

    def look(prefix: str, members: Sequence[tuple[int, str]]) -> None:
        try:
            with directories.opened(root, prefix.split("/") if prefix else []) as descriptor:
                for place, name in members:
                    with suppress(FileNotFoundError):
                        found[place] = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise Failed(
                "storage_error", f"the files in {prefix or root} can't be examined: {error}"
            ) from error

    # Several threads, because the status of a file that is not cached waits for the disk.
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        list(pool.map(look, by_directory.keys(), by_directory.values()))
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
    *,
    sized: bool,
) -> Iterator[None]:
    """Adds the files of one directory to the columns, and yields whenever a batch is full.

    Adds its directories to `found`. Files that are deleted meanwhile may be left out.
    """
    segments = prefix.split("/")[:-1]
    with (
        directories.opened(root, segments) as descriptor,
        os.scandir(descriptor) as entries,
    ):
        while True:
            room = base.LISTING_ROWS_MAX - len(columns.addresses)
            some = list(islice(entries, min(_ENTRIES_AT_ONCE, room)))
            if not some:
                break
            regular = [entry.is_file(follow_symlinks=False) for entry in some]
            if not all(regular):
                is_inner = [entry.is_dir(follow_symlinks=False) for entry in some]
                found += [f"{prefix}{entry.name}/" for entry in compress(some, is_inner)]
                is_other = [not is_directory for is_directory in is_inner]
                some, regular = list(compress(some, is_other)), list(compress(regular, is_other))
            if share[1] > 1:
                is_own = [base.in_share(entry.name, share) for entry in some]
                some, regular = list(compress(some, is_own)), list(compress(regular, is_own))
            if sized:
                columns.add_sized(prefix, some)
            else:
                columns.add_named(prefix, some, regular)
            if len(columns.addresses) >= base.LISTING_ROWS_MAX:
                yield


def _readable(address: str) -> str:
    return address.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
