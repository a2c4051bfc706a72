"""Objects outside every storage root: lists those below a place, looks at single ones, and reads
those that are still as they were recorded.

The answers have the URL of each object, and its ETag, which `Storage.list` leaves out. Not for:
which places may be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from obstore.exceptions import InvalidPathError

from ebbtide.errors import Conflict, Failed, Gone, InvalidInput, NotFound
from ebbtide.storage import clients, requests
from ebbtide.storage.local import LocalStorage
from ebbtide.storage.profiles import Options, options_of
from ebbtide.storage.urls import normalize_url, object_url, open_storage, stream_external
from ebbtide.text import shown

if TYPE_CHECKING:
    from obstore import ObjectMeta

ROWS_MAX: Final = 10_000
"""The most objects in one batch."""
_HEADS_AT_ONCE: Final = 16
_ETAG: Final = re.compile(r"[0-9a-f]{32}(-\d+)?|0x[0-9A-Fa-f]+")
"""The form of the ETags of S3 and of Azure."""


@dataclass(frozen=True, slots=True)
class ExternalObject:
    """One object. `name` is its path below the listed place, or its last part if it was looked at
    alone. `etag` is without quotes, and "" if the storage has none. `last_modified` is UTC."""

    url: str
    name: str
    size_bytes: int
    last_modified: datetime
    etag: str


def place_url(url: str) -> str:
    """Returns the normalized URL of a directory, of a bucket, or of a prefix in one, without a
    slash at its end.

    Raises InvalidInput `invalid_address` if the URL does not end in a slash, is `memory:`, or
    cannot be understood. Without the slash, `s3://bucket/a` could also mean the keys `ab`.
    """
    if not url.endswith("/"):
        raise InvalidInput(
            "invalid_address",
            f"{shown(url)} is no prefix of objects: end it in a slash, such as s3://bucket/data/",
        )
    try:
        normal = normalize_url(url)
    except InvalidInput as error:
        raise InvalidInput("invalid_address", error.message) from None
    if normal.startswith("memory:"):
        raise InvalidInput("invalid_address", "objects in memory cannot be imported")
    return normal


def list_external(place: str) -> Iterator[list[ExternalObject]]:
    """Yields the objects below a place (`place_url`) in batches of bounded size, in no order.

    Keys of a bucket that end in a slash mark directories, and are left out. A directory that does
    not exist counts as empty. Symbolic links are never followed.

    Raises InvalidInput `invalid_address` for a file that is not a plain one, and for a key that no
    address can have, such as one with an empty or `..` part. Raises Failed `storage_error`.
    """
    if place.startswith("file:"):
        return _list_directory(place)
    return _list_bucket(place)


def find_external(url: str) -> ExternalObject | None:
    """Returns the object at a URL, or None if there is none. Raises InvalidInput `invalid_address`
    as `object_url` does, and Failed `storage_error`."""
    normal = object_url(url)
    parent, _, name = normal.rpartition("/")
    if not normal.startswith("file:"):
        bucket, key = _split(normal)
        return _head(bucket, key, name)
    # If the file is directly in the root directory, only `file://` is left.
    storage = open_storage(parent if parent != "file://" else "file:///")
    found = storage.head(unquote(name))
    if found is None:
        return None
    return ExternalObject(normal, unquote(name), found.size_bytes, found.last_modified, "")


@dataclass(frozen=True, slots=True)
class RecordedObject:
    """An object as it was recorded when something began to refer to it.

    `checksum` is its ETag, or another checksum that the caller gave, or "". `modified_at` is its
    date, or a later one; None if it is not known.
    """

    url: str
    size_bytes: int
    checksum: str
    modified_at: datetime | None

    def require_unchanged(self) -> ExternalObject:
        """Returns the object as it is now.

        Raises Gone `source_changed` if it is another one by size, by ETag, or, for a file of a
        directory, by date. Raises NotFound `object_not_found`, and as `find_external`.
        """
        found = find_external(self.url)
        if found is None:
            raise NotFound("object_not_found", f"there is no object at {self.url}")
        if found.size_bytes != self.size_bytes:
            raise self._changed(f"it has {found.size_bytes} bytes, not {self.size_bytes}")
        if self._has_other_etag(found):
            raise self._changed(f"its ETag is {found.etag}, not {self.checksum}")
        if not found.etag and not self.checksum and self._is_older_than(found):
            raise self._changed(f"it was written at {found.last_modified.isoformat()}")
        return found

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Returns the bytes from `start` to before `end`, in pieces, if the object is unchanged.
        The condition is checked before the first piece, and holds for each piece.

        Raises as `require_unchanged` and `Storage.stream` do; Gone `source_changed` also later.
        """
        found = self.require_unchanged()
        etag = f'"{found.etag}"' if found.etag else None
        return self._pieces(found, stream_external(self.url, start=start, end=end, etag=etag))

    def _pieces(self, found: ExternalObject, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from pieces
        except Conflict as error:
            if error.kind != "object_changed":
                raise
            raise self._changed("it was overwritten while it was read") from None
        # Files have no ETags: a file that was overwritten meanwhile is noticed at the end.
        if not found.etag and find_external(self.url) != found:
            raise self._changed("it was overwritten while it was read")

    def _has_other_etag(self, found: ExternalObject) -> bool:
        if found.etag == self.checksum or not (found.etag and _ETAG.fullmatch(self.checksum)):
            return False
        # A caller may have given the MD5 of an object whose ETag is none, as after an upload in
        # parts. Then the date decides.
        is_alike = len(found.etag) == len(self.checksum)
        return is_alike or self._is_older_than(found)

    def _is_older_than(self, found: ExternalObject) -> bool:
        if self.modified_at is None:
            return False
        # Many callers give whole seconds.
        is_whole = self.modified_at.microsecond == 0
        written = found.last_modified.replace(microsecond=0) if is_whole else found.last_modified
        return written > self.modified_at

    def _changed(self, why: str) -> Gone:
        return Gone(
            "source_changed",
            f"the object at {self.url} is not the one that was imported: {why}. Restore it there, "
            "or import it again",
        )


def directory_identity(url: str) -> tuple[int, int] | None:
    """Returns device and inode of the directory at a URL, by which a second mount of it is found.
    None if it is not a directory of this machine."""
    if not url.startswith("file:"):
        return None
    try:
        found = Path(unquote(urlsplit(url).path)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _list_directory(place: str) -> Iterator[list[ExternalObject]]:
    storage = cast("LocalStorage", open_storage(place))
    # The storage resolves links in the path of the directory itself.
    if storage.url != place:
        raise InvalidInput(
            "invalid_address", f"{place} is a symbolic link by now: import {storage.url} instead"
        )
    root = place.rstrip("/")
    for batch in _in_parts(storage.list()):
        rows: list[dict[str, Any]] = batch.to_pylist()
        for row in rows:
            if not row["regular"]:
                raise InvalidInput(
                    "invalid_address",
                    f"{shown(row['address'])} in {storage.url} is no plain file, or its name is "
                    "not UTF-8: import the directories and files beside it, or replace it",
                )
        yield [
            ExternalObject(
                f"{root}/{quote(row['address'])}",
                row["address"],
                row["size_bytes"],
                row["last_modified"],
                "",
            )
            for row in rows
        ]


def _in_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)


def _list_bucket(place: str) -> Iterator[list[ExternalObject]]:
    bucket, prefix = _split(place)
    root = f"{prefix}/" if prefix else ""
    with clients.translated(place):
        try:
            found = clients.connect(bucket, options_of(place)).list(
                root or None, chunk_size=ROWS_MAX, return_arrow=True
            )
            last = ""
            for batch in map(pa.record_batch, found):
                last = batch["path"][-1].as_py() if batch.num_rows else last
                yield _without_markers(bucket, root, batch)
        except InvalidPathError as error:
            raise InvalidInput(
                "invalid_address",
                f"{place} holds a key that no address can have ({clients.explained(error)}): "
                "rename that object, or import the prefixes beside it",
            ) from error
    if bucket.startswith("s3:"):
        _check_end(bucket, options_of(place), root, last)


def _check_end(bucket: str, options: Options, root: str, last: str) -> None:
    """Raises Failed `storage_error` if S3 has keys after the last one that obstore has listed: it
    takes any answer without a token for the last page."""
    named = requests.Bucket(bucket.removeprefix("s3://"), options)
    for page in named.list_keys(root, after=last):
        # obstore drops a slash at the end of a key.
        if any(each.key not in (root, f"{last}/") for each in page.objects):
            raise Failed(
                "storage_error",
                f"the listing of {bucket}/{root} ended before its last key: try again, while "
                "nobody writes there",
            )


def _without_markers(bucket: str, root: str, batch: pa.RecordBatch) -> list[ExternalObject]:
    """Returns the objects of a batch of obstore's listing.

    obstore drops the slash at the end of a key. Such a key marks a directory and is empty. So each
    empty object is looked at by its name; a marker is not found there.
    """
    objects = [
        _of(bucket, row["path"], row["path"].removeprefix(root), row)
        for row in batch.to_pylist()
        if row["path"].startswith(root) and row["path"] != root
    ]
    empty = [each for each in objects if each.size_bytes == 0]
    if not empty:
        return objects
    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        looked = pool.map(lambda each: _head(bucket, f"{root}{each.name}", each.name), empty)
        return [*(each for each in objects if each.size_bytes), *filter(None, looked)]


def _head(bucket: str, key: str, name: str) -> ExternalObject | None:
    try:
        with clients.translated(f"{bucket}/{key}"):
            found: ObjectMeta = clients.connect(bucket, options_of(f"{bucket}/{key}")).head(key)
    except NotFound:
        return None
    return _of(bucket, key, name, found)


def _of(bucket: str, key: str, name: str, found: Any) -> ExternalObject:  # a row, or ObjectMeta
    etag = (found["e_tag"] or "").removeprefix("W/").strip('"')
    return ExternalObject(f"{bucket}/{key}", name, found["size"], found["last_modified"], etag)


def _split(url: str) -> tuple[str, str]:
    """Returns the URL of the bucket, and the rest of a normalized URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
