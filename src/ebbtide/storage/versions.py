"""Versions of a bucket of S3: whether it keeps them, and their delete.

A delete of an object in a bucket with versions writes a delete marker. The object is hidden, and
its bytes stay as a noncurrent version. Only objects that are hidden lose versions here. Versions go
before the last marker. So no older version becomes the object again, even if the process ends in
between. A version that somebody writes meanwhile was not listed, and stays.

Source: Amazon S3 API Reference, GetBucketVersioning, ListObjectVersions, DeleteObjects. Not for:
the delete of the objects themselves (`deleting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from ebbtide.storage import locks
from ebbtide.storage.asking import FAILURES, FailedAnswer
from ebbtide.storage.base import DeleteOutcome, Retained
from ebbtide.storage.keys import DELETES_MAX, Bucket, is_truncated, text_of

_PAGE_ROWS: Final = 1000
_LISTS_AT_ONCE: Final = 16
_DENIED: Final = (
    "the storage denies it: the credentials lack s3:DeleteObjectVersion, or an object lock or a "
    "policy protects the version"
)
_DENIALS: Final = frozenset({"AccessDenied", "ObjectLocked"})
PRESENT: Final = "an object is at this address now: its versions stay"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the object of a key, or a delete marker."""

    key: str
    version_id: str
    is_latest: bool
    is_marker: bool


def retained(bucket: Bucket) -> Retained:
    """Returns whether deletes leave versions in a bucket. `unknown` if it cannot be read."""
    try:
        answer = bucket.ask("GET", {"versioning": ""}, "VersioningConfiguration")
    except FAILURES as error:
        return Retained("unknown", f"its versioning could not be read ({_explained(error)})")
    status = text_of(answer, "Status")
    if status == "Enabled":
        return Retained("versions", "versioning is enabled", locks.lock_of(bucket))
    if status == "Suspended":
        return Retained("versions", "versioning is suspended, and older versions stay")
    return Retained("no", "versioning was never enabled")


def delete_versions(bucket: Bucket, root: str, addresses: Sequence[str]) -> list[DeleteOutcome]:
    """Deletes the versions and delete markers of objects that do not exist. Returns one outcome for
    each address, as `Storage.delete_versions`. `root` is the prefix of all keys."""

    def look(address: str) -> list[Version] | str:
        try:
            return _versions_of(bucket, root + address)
        except FAILURES as error:
            return f"its versions could not be listed ({_explained(error)})"

    outcomes: dict[str, DeleteOutcome] = {}
    hidden: dict[str, list[Version]] = {}
    asked = list(dict.fromkeys(addresses))
    with ThreadPoolExecutor(_LISTS_AT_ONCE) as pool:
        for address, found in zip(asked, pool.map(look, asked), strict=True):
            if isinstance(found, str):
                outcomes[address] = DeleteOutcome(address, "failed", found)
            elif not found:
                outcomes[address] = DeleteOutcome(address, "missing")
            elif _is_hidden(found):
                hidden[address] = found
            else:
                outcomes[address] = DeleteOutcome(address, "missing", PRESENT)
    denied: list[Version] = []
    failed = _delete(bucket, _chosen(hidden.values(), is_marker=False), denied)
    # The marker of an object with a version left must stay: it hides that version.
    free = [found for found in hidden.values() if found[0].key not in failed]
    failed |= _delete(bucket, _chosen(free, is_marker=True), denied)
    locked = locks.locked(bucket, {each.key: each.version_id for each in denied})
    for address, found in hidden.items():
        key = found[0].key
        error = locked.get(key) or (f"of its versions: {failed[key]}" if key in failed else None)
        outcomes[address] = DeleteOutcome(address, "failed" if error else "deleted", error)
    return [outcomes[address] for address in addresses]


def hidden(bucket: Bucket, root: str, prefix: str) -> Iterator[list[str]]:
    """Yields the addresses under a prefix whose objects do not exist and have versions or delete
    markers left. Raises FAILURES."""
    for page in _pages(bucket, root + prefix):
        keys = [each.key for each in page if each.is_latest and each.is_marker]
        if keys:
            yield [key.removeprefix(root) for key in keys]


def _is_hidden(found: Iterable[Version]) -> bool:
    return any(each.is_latest and each.is_marker for each in found)


def _chosen(found: Iterable[list[Version]], *, is_marker: bool) -> list[Version]:
    return [each for each in chain.from_iterable(found) if each.is_marker == is_marker]


def _versions_of(bucket: Bucket, key: str) -> list[Version]:
    """Returns all versions and markers of exactly one key. S3 can only list by prefix: other keys
    begin with the key too, and come after it."""
    found: list[Version] = []
    for page in _pages(bucket, key, goes_on=lambda marker: marker == key):
        found += [each for each in page if each.key == key]
    return found


def _pages(
    bucket: Bucket, prefix: str, goes_on: Callable[[str], bool] = lambda _marker: True
) -> Iterator[list[Version]]:
    """Yields the versions of keys that begin with a prefix, in pages. `goes_on` is called with the
    key at which the next page begins; the listing ends if it returns False."""
    asked = {
        "versions": "",
        "encoding-type": "url",
        "prefix": prefix,
        "max-keys": str(_PAGE_ROWS),
    }
    markers: dict[str, str] = {}
    while True:
        page = bucket.ask("GET", asked | markers, "ListVersionsResult", "ListBucketResult")
        goes_further = is_truncated(page)
        is_quoted = text_of(page, "EncodingType") == "url"
        found = [
            _version(each, is_quoted=is_quoted)
            for each in page
            if _tag(each) in ("Version", "DeleteMarker")
        ]
        yield found
        if not goes_further:
            return
        # The next marker of Ceph is not encoded, in an answer that is. Keys are listed in order.
        key = max((each.key for each in found), key=str.encode, default="")
        if not goes_on(key):
            return
        earlier = markers
        markers = {"key-marker": key, "version-id-marker": text_of(page, "NextVersionIdMarker")}
        if markers == earlier or not all(markers.values()):
            raise ValueError("the storage does not say where the listing of versions continues")


def _version(element: ElementTree.Element, *, is_quoted: bool) -> Version:
    key = text_of(element, "Key")
    return Version(
        unquote_plus(key, errors="backslashreplace") if is_quoted else key,
        text_of(element, "VersionId"),
        text_of(element, "IsLatest") == "true",
        _tag(element) == "DeleteMarker",
    )


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _delete(bucket: Bucket, versions: Sequence[Version], denied: list[Version]) -> dict[str, str]:
    """Deletes versions. Returns the keys of versions that were not deleted, with the reason. Adds
    those to `denied` that the storage forbids to delete."""
    failed: dict[str, str] = {}
    for start in range(0, len(versions), DELETES_MAX):
        some = versions[start : start + DELETES_MAX]
        try:
            refused = bucket.delete([(each.key, each.version_id) for each in some])
        except FAILURES as error:
            failed |= dict.fromkeys((each.key for each in some), _explained(error))
            continue
        for each in some:
            code, message = refused.get((each.key, each.version_id), ("NoSuchVersion", ""))
            if code == "NoSuchVersion":  # this request deleted it, or another attempt
                continue
            failed[each.key] = _reason(code, message)
            if code in _DENIALS:
                denied.append(each)
    return failed


def _explained(error: BaseException) -> str:
    """Returns the reason of a failed request: the storage's code and message, if it has them."""
    if isinstance(error, FailedAnswer):
        code, message = error.told()
        return _reason(code, message) if code else f"status {error.code}"
    return str(error)


def _reason(code: str, message: str) -> str:
    if code == "AccessDenied":
        return _DENIED
    return ": ".join(filter(None, (code, message)))
