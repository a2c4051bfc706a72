"""What a storage keeps of deleted objects: versions of S3 and their locks, and Azure's soft delete.

A delete of an object in a bucket with versions writes a delete marker. The object is hidden, and
its bytes stay as a noncurrent version. Only objects that are hidden lose versions here. Versions go
before the last marker. So no older version becomes the object again, even if the process ends in
between. A version that somebody writes meanwhile was not listed, and stays.

A lock keeps a version until a date, or as long as it has a legal hold. A delete without a version
id is allowed: it writes a delete marker. S3 refuses the delete of a locked version with the code
AccessDenied, as without the permission. Only the version's own headers tell the two apart.

On Azure, only an account key may read the properties of the service. Other credentials are for
objects and containers.

Source: Amazon S3 API Reference, GetBucketVersioning, ListObjectVersions, DeleteObjects,
GetObjectLockConfiguration, HeadObject; Azure Storage REST, the properties of the service, and
"Authorize with Shared Key". Not for: the delete of the objects themselves (`deletes`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote_plus, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from ebbtide.storage.base import BucketLock, DeleteOutcome, Retained
from ebbtide.storage.clients import LOCKED
from ebbtide.storage.requests import (
    DELETES_MAX,
    FAILURES,
    TIMEOUT_SECONDS,
    Bucket,
    FailedAnswer,
    document,
    is_truncated,
    repeated,
    text_of,
)

_PAGE_ROWS: Final = 1000
_LISTS_AT_ONCE: Final = 16
_DENIED: Final = (
    "the storage denies it: the credentials lack s3:DeleteObjectVersion, or an object lock or a "
    "policy protects the version"
)
_DENIALS: Final = frozenset({"AccessDenied", "ObjectLocked"})
PRESENT: Final = "an object is at this address now: its versions stay"

_DAYS_OF_A_YEAR: Final = 365
_ABSENT: Final = frozenset({404, 501})
"""A bucket without object lock, and a server that does not have the request."""

# Of Azure.
_API_VERSION: Final = "2021-08-06"
_ACCOUNTS: Final = ("account_name", "azure_storage_account_name")
_KEYS: Final = (
    "account_key",
    "access_key",
    "azure_storage_account_key",
    "azure_storage_access_key",
    "azure_storage_master_key",
)
_ASKED: Final = "?restype=service&comp=properties"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the object of a key, or a delete marker."""

    key: str
    version_id: str
    is_latest: bool
    is_marker: bool


def bucket_retained(bucket: Bucket) -> Retained:
    """Returns whether deletes leave versions in a bucket. `unknown` if it cannot be read."""
    try:
        answer = bucket.ask("GET", {"versioning": ""}, "VersioningConfiguration")
    except FAILURES as error:
        return Retained("unknown", f"its versioning could not be read ({_explained(error)})")
    status = text_of(answer, "Status")
    if status == "Enabled":
        return Retained("versions", "versioning is enabled", lock_of(bucket))
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
    locked = locked_of(bucket, {each.key: each.version_id for each in denied})
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


def lock_of(bucket: Bucket) -> BucketLock:
    """Returns whether a bucket has object lock. `unknown` if it cannot be read."""
    try:
        answer = bucket.ask("GET", {"object-lock": ""}, "ObjectLockConfiguration")
    except FAILURES as error:
        if isinstance(error, HTTPError) and error.code in _ABSENT:
            return BucketLock("no", "the bucket has no object lock")
        return BucketLock("unknown", f"its object lock could not be read ({error})")
    if text_of(answer, "ObjectLockEnabled") != "Enabled":
        return BucketLock("no", "the bucket has no object lock")
    default = answer.find("{*}Rule/{*}DefaultRetention")
    if default is None:
        return BucketLock("on", "object lock is on, without a default period")
    years = int(text_of(default, "Years") or 0)
    days = int(text_of(default, "Days") or 0) + years * _DAYS_OF_A_YEAR
    mode = text_of(default, "Mode")
    text = f"object lock is on, by default in mode {mode} for {days} days"
    return BucketLock("on", text, mode, days)


def locked_of(bucket: Bucket, denied: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys whose version is locked, with the error for users, which begins with LOCKED.

    `denied` has the id of a version that the storage did not delete, by key. Each takes one
    request; there is none if the bucket has no object lock.
    """
    if not denied or lock_of(bucket).state == "no":
        return {}
    with ThreadPoolExecutor(_LISTS_AT_ONCE) as pool:
        found = pool.map(lambda each: _lock_text(bucket, *each), denied.items())
        return {key: f"{LOCKED}{text}" for key, text in zip(denied, found, strict=True) if text}


def _lock_text(bucket: Bucket, key: str, version_id: str) -> str | None:
    """Returns until when a version is locked, as a clause. None if it is not locked, or if the
    storage does not say so: the headers need s3:GetObjectRetention and s3:GetObjectLegalHold."""
    try:
        headers = bucket.headers_of(key, version_id)
    except FAILURES:
        return None
    if headers.get("x-amz-object-lock-legal-hold", "") == "ON":
        return "a legal hold keeps them until somebody ends it"
    mode = headers.get("x-amz-object-lock-mode")
    until = headers.get("x-amz-object-lock-retain-until-date")
    if mode is None or until is None or _instant(until) <= datetime.now(UTC):
        return None
    return f"mode {mode}, until {_instant(until):%Y-%m-%d %H:%M} UTC"


def _instant(text: str) -> datetime:
    """Returns the instant of a header, to the second: Ceph writes nanoseconds."""
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)


def account_retained(object_url: str | None, options: Mapping[str, str]) -> Retained:
    """Returns whether an account has soft delete for objects. `object_url` is the URL of any of its
    objects, or None if the credentials sign none. `options` and the environment can have the
    account and its key, as for obstore.

    Versioning is not among the properties of the service: without soft delete, the answer is
    `unknown`.
    """
    account, key = _option(_ACCOUNTS, options), _option(_KEYS, options)
    if object_url is None or account is None or key is None:
        return Retained("unknown", "its soft delete can be read only with an account key")
    try:
        days = _days(object_url, account, key)
    except (binascii.Error, *FAILURES) as error:
        return Retained("unknown", f"its soft delete could not be read ({error})")
    if days is None:
        return Retained("unknown", "soft delete is off, and versioning is not read on Azure")
    return Retained("soft_delete", f"soft delete is on, for {days} days")


def _option(names: Iterable[str], options: Mapping[str, str]) -> str | None:
    found = [options.get(name) or os.environ.get(name.upper()) for name in names]
    return next(filter(None, found), None)


def _days(object_url: str, account: str, key: str) -> str | None:
    """Returns for how many days the account keeps deleted objects; None if it keeps none. Raises
    FAILURES, and binascii.Error for a key that is not base64."""
    parts = urlsplit(object_url)
    # An emulator has the account in the path, and Azure in the name of the host.
    root = f"/{account}/" if parts.path.startswith(f"/{account}/") else "/"
    now = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
    signed = (
        f"GET{chr(10) * 12}x-ms-date:{now}\nx-ms-version:{_API_VERSION}\n"
        f"/{account}{root}\ncomp:properties\nrestype:service"
    )
    mark = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
    request = Request(
        f"{parts.scheme}://{parts.netloc}{root}{_ASKED}",
        headers={
            "x-ms-date": now,
            "x-ms-version": _API_VERSION,
            "authorization": f"SharedKey {account}:{base64.b64encode(mark).decode()}",
        },
    )

    def send() -> ElementTree.Element | None:
        with urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            found = document(answer.read(), "StorageServiceProperties")
            return found.find("DeleteRetentionPolicy")

    found = repeated(send)
    if found is None or found.findtext("Enabled") != "true":
        return None
    return found.findtext("Days")
