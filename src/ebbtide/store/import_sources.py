"""The sources of an import: prefixes and single objects outside the repositories of the store; any
number of their entries, sorted by path on the local disk; and the records of imports.

The files of sorted entries are part of one import, and need not outlast the process. Not for: how a
storage lists objects (`storage.external`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import sqlalchemy as sa

from ebbtide.errors import Denied, Failed, InvalidInput, NotFound, disk_full
from ebbtide.storage import normalize_url, object_url
from ebbtide.storage.external import (
    ExternalObject,
    directory_identity,
    find_external,
    list_external,
    place_url,
)
from ebbtide.storage.roots import ListedRoots
from ebbtide.store.content.entries import ENTRY_SCHEMA, Entry, from_table, to_table
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import imports
from ebbtide.store.names import check_path, check_size
from ebbtide.store.repositories.known_roots import KnownRoot
from ebbtide.store.staging.addresses import URL_BYTES_MAX
from ebbtide.text import shown

SINGLE_AT_ONCE: Final = 500
_LOOKS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class ImportSource:
    """One object at `url` that becomes the path `destination`; or, if `is_prefix`, all objects
    below `url`, which ends in a slash. Their paths begin with the directory `destination`, where ""
    is the whole branch."""

    url: str
    destination: str
    is_prefix: bool

    def normalized(self) -> ImportSource:
        """Returns the source with normalized spellings, of which a prefix has no slash at its end,
        and a destination of a prefix has one.

        Raises InvalidInput `invalid_address` or `invalid_path`.
        """
        if not self.is_prefix:
            check_path(self.destination)
            return ImportSource(object_url(self.url), self.destination, False)
        destination = self.destination.rstrip("/")
        if self.destination:
            check_path(destination)
            destination += "/"
        return ImportSource(place_url(self.url), destination, True)


def require_allowed(url: str, prefixes: Sequence[str]) -> None:
    """Raises Denied `import_forbidden` unless a normalized URL is in the directory of one of the
    prefixes, or is one itself. So `s3://bucket/a` does not allow `s3://bucket/ab`."""
    directories = tuple(each if each.endswith("/") else f"{each}/" for each in prefixes)
    if url not in prefixes and not url.startswith(directories):
        raise Denied(
            "import_forbidden",
            f"{shown(url)} may not be imported: it begins with none of the prefixes in the "
            "server's EBBTIDE_IMPORT_PREFIXES",
        )


def require_sources_allowed(sources: Iterable[ImportSource], prefixes: Sequence[str]) -> None:
    """Raises Denied `import_forbidden` unless all objects of normalized sources may be imported."""
    for source in sources:
        # With the slash, the source `s3://bucket/a` does not stand for objects of `s3://bucket/ab`.
        require_allowed(f"{source.url}/" if source.is_prefix else source.url, prefixes)


def places_of(sources: Iterable[ImportSource]) -> set[tuple[str, bool]]:
    """Returns the directories and prefixes of normalized sources, for `roots.require_outside`."""
    # An object is in a root if its directory is. Many objects share one directory.
    return {
        (source.url if source.is_prefix else _directory(source.url), source.is_prefix)
        for source in sources
    }


def list_entries(
    sources: Sequence[ImportSource], existing: Iterable[KnownRoot]
) -> Iterator[list[Entry]]:
    """Yields the entries of normalized sources in batches, in the order of the sources.

    Raises NotFound `object_not_found` for a source without objects. Raises InvalidInput
    `invalid_path`, `invalid_argument` or `invalid_address` for a path, size or URL that no entry
    can have. The latter is also raised for a second mount of a storage root, and for a root of a
    repository that the listed names show. Raises the errors of `list_external`.
    """
    roots = {
        identity: root.name
        for root in existing
        if (identity := directory_identity(normalize_url(root.url))) is not None
    }
    singles: list[ImportSource] = []
    for source in sources:
        if not source.is_prefix:
            singles.append(source)
        if singles and (source.is_prefix or len(singles) == SINGLE_AT_ONCE):
            yield _look_at(singles)
            singles = []
        if source.is_prefix:
            yield from _list(source, roots)
    if singles:
        yield _look_at(singles)


def _list(source: ImportSource, roots: dict[tuple[int, int], str]) -> Iterator[list[Entry]]:
    count = 0
    listed = ListedRoots()
    for batch in list_external(source.url):
        _refuse_mounts(batch, roots)
        nested = listed.find(found.name for found in batch)
        if nested is not None:
            raise InvalidInput(
                "invalid_address",
                f"there is a repository at {shown(f'{source.url}/{nested}')}, whose objects may be "
                "collected: import the places beside it",
            )
        count += len(batch)
        yield [_entry(found, source.destination + found.name) for found in batch]
    if count == 0:
        raise NotFound(
            "object_not_found",
            f"there is no object below {source.url}/, and nothing was imported: correct the URL, "
            "or delete the paths on the branch instead",
        )


def _look_at(sources: Sequence[ImportSource]) -> list[Entry]:
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        looked = list(pool.map(find_external, (source.url for source in sources)))
    entries = []
    for source, found in zip(sources, looked, strict=True):
        if found is None:
            hint = "" if not _is_place(source.url) else ": to import a directory, end it in a slash"
            raise NotFound("object_not_found", f"there is no object at {source.url}{hint}")
        entries.append(_entry(found, source.destination))
    return entries


def _is_place(url: str) -> bool:
    return directory_identity(url) is not None


def _entry(found: ExternalObject, path: str) -> Entry:
    check_path(path)
    check_size(found.size_bytes)
    if len(found.url.encode()) > URL_BYTES_MAX:
        raise InvalidInput(
            "invalid_address", f"{shown(found.url)} has more than {URL_BYTES_MAX} bytes"
        )
    return Entry(
        path=path,
        address=found.url,
        size_bytes=found.size_bytes,
        checksum=found.etag,
        mtime=found.last_modified,
    )


def _refuse_mounts(batch: Iterable[ExternalObject], roots: dict[tuple[int, int], str]) -> None:
    """Raises InvalidInput `invalid_address` if a directory of listed objects is a storage root, by
    device and inode."""
    if not roots:
        return
    for place in {_directory(found.url) for found in batch}:
        identity = directory_identity(place)
        if identity is not None and identity in roots:
            raise InvalidInput(
                "invalid_address",
                f"{shown(place)} is the storage root of repository {roots[identity]!r}, mounted a "
                "second time: import the places beside it",
            )


def _directory(url: str) -> str:
    """Returns the URL of the directory, prefix or bucket that an object is directly in."""
    place = url.rpartition("/")[0]
    return place if place != "file://" else "file:///"


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


SILENCE_MAX: Final = timedelta(minutes=10)
"""An import that has written no sign of life for longer has failed. A storage that does not answer
is given up after six minutes at the latest."""

State = Literal["running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ImportRow:
    """An import. `object_count` is the number of objects that were listed so far. `error` has the
    `kind` and `message` of the failure."""

    import_id: str
    branch: str
    state: State
    object_count: int
    commit_id: str | None
    error: Mapping[str, str] | None
    started_at: datetime
    updated_at: datetime


_IMPORTS: Final = Rows(imports, ImportRow, imports.c.import_id)


def insert_import(tx: Transaction, repository_id: str, import_id: str, branch: str) -> None:
    """Records an import that begins."""
    now = tx.now()
    tx.execute(
        sa.insert(imports).values(
            repository_id=repository_id,
            import_id=import_id,
            branch=branch,
            state="running",
            object_count=0,
            started_at=now,
            updated_at=now,
        )
    )


def find_import(tx: Transaction, repository_id: str, import_id: str) -> ImportRow | None:
    """Returns an import. Its state is `running` although it has failed, if its process died."""
    return _IMPORTS.by_id(tx, import_id, imports.c.repository_id == repository_id)


def update_running(
    tx: Transaction,
    repository_id: str,
    import_id: str,
    **values: Any,  # values of the columns' types
) -> bool:
    """Changes an import, and records a sign of life. Returns false, and changes nothing, if the
    import is not running any more, or was silent for too long."""
    now = tx.now()
    changed = tx.execute(
        sa.update(imports)
        .where(
            imports.c.repository_id == repository_id,
            imports.c.import_id == import_id,
            imports.c.state == "running",
            imports.c.updated_at > now - SILENCE_MAX,
        )
        .values(updated_at=now, **values)
    )
    return changed.rowcount == 1


def cancel_running(tx: Transaction, repository_id: str, import_id: str) -> None:
    """Cancels an import that has not ended, also if it was silent for too long."""
    tx.execute(
        sa.update(imports)
        .where(
            imports.c.repository_id == repository_id,
            imports.c.import_id == import_id,
            imports.c.state == "running",
        )
        .values(updated_at=tx.now(), state="cancelled")
    )


def delete_old_imports(tx: Transaction, repository_id: str, *, before: datetime) -> None:
    """Deletes the records of imports without a sign of life since `before`."""
    tx.execute(
        sa.delete(imports).where(
            imports.c.repository_id == repository_id, imports.c.updated_at < before
        )
    )
