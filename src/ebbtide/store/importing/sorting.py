"""Sorts any number of entries by path, on the local disk.

Not for: anything that must outlast the process. The files are part of one import.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ebbtide.errors import Failed, disk_full
from ebbtide.store.content.entries import ENTRY_SCHEMA, Entry, from_table, to_table

RUN_ENTRIES: Final = 50_000
"""The number of entries that are sorted in memory and written as one file."""
BATCH_ENTRIES: Final = 500
"""The number of entries of each file that memory holds while all files are merged."""

_path: Final = attrgetter("path")


class SortedEntries:
    """Entries that were added in any order. Iterating yields them by path, and can be repeated. If
    a path was added more than once, the last entry counts."""

    def __init__(self, directory: Path, *, run_entries: int = RUN_ENTRIES) -> None:
        self._directory = directory
        self._run_entries = run_entries
        self._buffer: list[Entry] = []
        self._files: list[Path] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries. Raises Failed `disk_full` or `storage_error` if they cannot be written."""
        for entry in entries:
            self._buffer.append(entry)
            if len(self._buffer) >= self._run_entries:
                self._write()

    def __iter__(self) -> Iterator[Entry]:
        if self._buffer:
            self._write()
        runs = (_numbered(number, file) for number, file in enumerate(self._files))
        latest: Entry | None = None
        # Of equal paths, the entry of the last file comes last.
        for _, _, entry in merge(*runs, key=itemgetter(0, 1)):
            if latest is not None and latest.path != entry.path:
                yield latest
            latest = entry
        if latest is not None:
            yield latest

    def _write(self) -> None:
        # A dictionary keeps the last entry of each path.
        chosen = sorted({entry.path: entry for entry in self._buffer}.values(), key=_path)
        file = self._directory / f"{len(self._files)}.arrow"
        try:
            with (
                pa.OSFile(str(file), "wb") as sink,
                pa.ipc.new_file(sink, ENTRY_SCHEMA) as writer,
            ):
                for start in range(0, len(chosen), BATCH_ENTRIES):
                    writer.write_table(to_table(chosen[start : start + BATCH_ENTRIES]))
        except OSError as error:
            raise _not_written(self._directory, error) from error
        self._files.append(file)
        self._buffer.clear()


def _numbered(number: int, file: Path) -> Iterator[tuple[str, int, Entry]]:
    with pa.OSFile(str(file), "rb") as source:
        reader: Any = pa.ipc.open_file(source)
        for place in range(reader.num_record_batches):
            for entry in from_table(pa.Table.from_batches([reader.get_batch(place)])):
                yield entry.path, number, entry


def _not_written(directory: Path, error: OSError) -> Failed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(str(directory), str(error))
    return Failed("storage_error", f"temporary files cannot be written to {directory}: {error}")
