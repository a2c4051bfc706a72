"""The sources of an import: prefixes and single objects outside the repositories of the store.

Not for: how a storage lists them (`storage.external`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import Denied, InvalidInput, NotFound
from ebbtide.storage import normalize_url, object_url
from ebbtide.storage.external import (
    ExternalObject,
    directory_identity,
    find_external,
    list_external,
    place_url,
)
from ebbtide.storage.roots import ListedRoots
from ebbtide.store.content.entries import Entry
from ebbtide.store.names import check_path, check_size
from ebbtide.store.repositories.roots import KnownRoot
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
