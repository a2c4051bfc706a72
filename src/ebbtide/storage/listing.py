"""Listing a local directory as Arrow batches, a few hundred thousand files a second."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import Failed
from ebbtide.storage import base, directories


@dataclass(slots=True)
class _Columns:
    """What was seen and not yet handed on, a list for each column."""

    addresses: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    modified_ns: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)

    def batch(self) -> pa.RecordBatch:
        """The batch of all rows, which are dropped."""
        regular = [stat.S_ISREG(mode) for mode in self.modes]
        try:
            addresses = pa.array(self.addresses, pa.string())
        except UnicodeEncodeError:
            # A name that is no UTF-8 can't be an address of ours: it is shown and kept.
            shown = [_readable(address) for address in self.addresses]
            pairs = zip(self.addresses, shown, regular, strict=True)
            regular = [plain and name == legible for name, legible, plain in pairs]
            addresses = pa.array(shown, pa.string())
        microseconds = pc.divide(pa.array(self.modified_ns, pa.int64()), 1000)
        columns: list[pa.Array[Any]] = [
            addresses,
            pa.array(self.sizes, pa.int64()),
            microseconds.cast(pa.timestamp("us", "UTC")),
            pa.array(regular, pa.bool_()),
        ]
        for column in (self.addresses, self.sizes, self.modified_ns, self.modes):
            column.clear()
        return pa.RecordBatch.from_arrays(columns, schema=base.LISTING_SCHEMA)


def list_directory(
    root: str, prefix: str, *, recursive: bool, share: tuple[int, int] = (0, 1)
) -> Iterator[pa.RecordBatch]:
    """Batches of LISTING_SCHEMA of the files under `prefix`, which is "" or ends in `/`.

    Memory is bounded by the directories that wait to be read, and one batch. A directory that is
    gone or was never there is empty; one that can't be read raises Failed (`storage_error`).
    """
    columns = _Columns()
    waiting = [prefix]
    while waiting:
        here = waiting.pop()
        try:
            for _ in _scan(root, here, columns, waiting, share):
                yield columns.batch()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Failed(
                "storage_error", f"the directory {here or root} can't be listed: {error}"
            ) from error
        if not recursive:
            break
    if columns.addresses:
        yield columns.batch()


def _scan(
    root: str, prefix: str, columns: _Columns, found: list[str], share: tuple[int, int]
) -> Iterator[None]:
    """Add the files of one directory to the columns, stopping whenever a batch is full.

    Its directories are added to `found`. A file that vanishes meanwhile is left out.
    """
    segments = prefix.split("/")[:-1]
    is_shared = share[1] > 1
    add_address, add_size = columns.addresses.append, columns.sizes.append
    add_modified, add_mode = columns.modified_ns.append, columns.modes.append
    with (
        directories.opened(root, segments) as descriptor,
        os.scandir(descriptor) as entries,
    ):
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(f"{prefix}{entry.name}/")
                continue
            if is_shared and not base.in_share(entry.name, share):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            add_address(prefix + entry.name)
            add_size(status.st_size)
            add_modified(status.st_mtime_ns)
            add_mode(status.st_mode)
            if len(columns.addresses) >= base.LISTING_ROWS_MAX:
                yield


def _readable(address: str) -> str:
    return address.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
