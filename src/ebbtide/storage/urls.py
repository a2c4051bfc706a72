"""The URLs of storages: their normalized spelling, and whether one storage contains another."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from ebbtide.errors import Failed, InvalidInput, NotFound
from ebbtide.imports import require_extra
from ebbtide.storage import base, clients
from ebbtide.storage.base import Storage
from ebbtide.storage.local import LocalStorage
from ebbtide.storage.profiles import options_of
from ebbtide.storage.remote import RemoteStorage
from ebbtide.text import shown

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_LOOKS_AT_ONCE: Final = 16
_HOW: Final = "name a directory, or a URL such as s3://bucket/prefix"


def open_storage(url: str, options: Mapping[str, str] | None = None) -> Storage:
    """Returns the storage at a path or URL: `file://`, `s3://` (`s3a://`, `s3n://`),
    `az://`, `memory:`.

    Reads and makes nothing there. Raises InvalidInput: `invalid_argument` for a URL or `gs://`, and
    `invalid_setting` for options, that cannot be understood. Raises Failed `extra_missing`.
    """
    normal = normalize_url(url)
    if not normal.startswith("file:"):
        # obstore answers listings with Arrow only if this package is there.
        require_extra("a storage in a bucket", "s3", "arro3.core")
        return RemoteStorage.of(normal, options)
    if options:
        raise InvalidInput(
            "invalid_setting", f"a local storage takes no options: {sorted(options)}"
        )
    return LocalStorage(_local_path(normal))


def stream_external(
    url: str, *, start: int = 0, end: int | None = None, etag: str | None = None
) -> Iterator[bytes]:
    """Returns the bytes of the object at a URL, as `Storage.stream` does. Raises the errors of
    `object_url` too."""
    storage, address = _place_of(url)
    return storage.stream(address, start=start, end=end, etag=etag)


def sign_external(
    url: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
) -> str | None:
    """Returns a signed URL for the object at a URL, as `Storage.sign_get` does. Raises the errors
    of `object_url` too."""
    storage, address = _place_of(url)
    return storage.sign_get(address, lasts=lasts, method=method)


def exist_external(urls: Sequence[str]) -> list[bool]:
    """Returns whether there is an object at each URL. Paths and keys are written as they are, with
    a space and not `%20`.

    Raises InvalidInput `invalid_argument` for kinds of storages that are not known, and the errors
    of storages.
    """
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return list(pool.map(_exists, urls))


def _exists(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return rest.startswith("/") and _is_file(rest)
    name, _, key = rest.partition("/")
    bucket = normalize_url(f"{scheme}://{name}")
    try:
        with clients.translated(url):
            clients.connect(bucket, options_of(f"{bucket}/{key}")).head(key)
    except NotFound:
        return False
    return True


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise Failed("storage_error", f"{shown(path)} can't be examined: {error}") from error


def _place_of(url: str) -> tuple[Storage, str]:
    """Returns the storage of an object's URL, and the object's address there."""
    normal = object_url(url)
    place, _, name = normal.rpartition("/")
    if not place.startswith("file:"):
        scheme, _, rest = normal.partition("://")
        bucket, _, key = rest.partition("/")
        return open_storage(f"{scheme}://{bucket}", dict(options_of(normal))), key
    # If the file is directly in the root directory, only `file://` is left.
    directory = place if place != "file://" else "file:///"
    return open_storage(directory), unquote(name)


def object_url(url: str) -> str:
    """Returns the normalized URL of an object, as `normalize_url` does for storages.

    The key of an object in a bucket stays as it is, with `?` and `#`; the prefix of a storage
    cannot have these. Raises InvalidInput `invalid_address` if the URL cannot be understood or
    names no object: a directory, a bucket without a key, or `memory:`, which has only one level.
    """
    try:
        normal = _normalized(url, is_object=True)
    except InvalidInput as error:
        raise InvalidInput("invalid_address", error.message) from None
    scheme, _, rest = normal.partition("://")
    place, _, name = rest.rpartition("/")
    if url.endswith("/") or not name or not (place or scheme == "file"):
        raise InvalidInput(
            "invalid_address",
            f"{shown(url)} names no object: write one such as s3://bucket/key or file:///data/file",
        )
    return normal


def normalize_url(url: str) -> str:
    """Returns the normalized URL of a storage. Two URLs of one place get the same spelling.

    A local URL gets the real path: relative parts and symbolic links are resolved as they are now.
    Raises InvalidInput (`invalid_argument`).
    """
    return _normalized(url, is_object=False)


def _normalized(url: str, *, is_object: bool) -> str:
    match = _SCHEME.fullmatch(url)
    if not url or "\0" in url:
        raise _invalid(url, "it is empty or holds a zero byte")
    if match is None:
        return _file_url(url, url)
    scheme = match[1].lower()
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "file":
        return _file_url(url, _local_path(url))
    if scheme == "memory":
        return f"memory:{_memory_name(url, match[2])}"
    if scheme in clients.BUCKET_SCHEMES:
        return _bucket_url(url, scheme, match[2], is_object=is_object)
    raise _invalid(url, f"{scheme}: is not a known kind of storage")


def contains(outer_url: str, inner_url: str) -> bool:
    """Whether the inner storage, or object, is the outer storage or lies within it.

    Directories are also compared by device and inode, which finds a second mount of a directory.
    Options are ignored: buckets of one name behind two endpoints count as one.
    """
    outer, inner = normalize_url(outer_url), _normalized(inner_url, is_object=True)
    if f"{inner}/".startswith(outer.rstrip("/") + "/"):
        return True
    if not (outer.startswith("file:") and inner.startswith("file:")):
        return False
    outer_path, inner_path = Path(_local_path(outer)), Path(_local_path(inner))
    return any(_same(outer_path, path) for path in (inner_path, *inner_path.parents))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _file_url(url: str, path: str) -> str:
    try:
        return Path(path).resolve().as_uri()
    except (OSError, RuntimeError, ValueError) as error:
        # Links in a circle, a zero byte written as %00, or invalid Unicode.
        raise _invalid(url, f"such a path cannot exist ({error})") from None


def _local_path(url: str) -> str:
    if any(character in url for character in "\t\r\n"):
        raise _invalid(url, "write a tab as %09, a line feed as %0A and a carriage return as %0D")
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
        path.encode()
    except ValueError as error:
        raise _invalid(url, str(error)) from None
    if parts.netloc.lower() not in ("", "localhost"):
        raise _invalid(url, "a file URL has no host: write file:///path")
    if parts.query or parts.fragment:
        raise _invalid(url, "write ? as %3F and # as %23")
    if not parts.path.startswith("/"):
        raise _invalid(url, "a file URL names an absolute path: write file:///path")
    return path


def _memory_name(url: str, rest: str) -> str:
    name = rest.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise _invalid(url, "write memory: and a name of letters and digits")
    return name


def _bucket_url(url: str, scheme: str, rest: str, *, is_object: bool) -> str:
    if not rest.startswith("//"):
        raise _invalid(url, f"write {scheme}://bucket/prefix")
    bucket, _, prefix = rest[2:].partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", bucket):
        raise _invalid(url, "the bucket's name is missing or not allowed")
    if not is_object and ("?" in prefix or "#" in prefix):
        raise _invalid(url, "a prefix holds no ? or #")
    prefix = prefix.rstrip("/")
    if not prefix:
        return f"{scheme}://{bucket}"
    try:
        return f"{scheme}://{bucket}/{'/'.join(base.split_address(prefix))}"
    except InvalidInput as error:
        raise _invalid(url, error.message) from None


def _invalid(url: str, why: str) -> InvalidInput:
    return InvalidInput("invalid_argument", f"{shown(url)} is not a storage: {why}; {_HOW}")
