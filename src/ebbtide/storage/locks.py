"""Object lock of S3: whether a bucket has it, and which versions it keeps.

A lock keeps a version until a date, or as long as it has a legal hold. A delete without a version
id is allowed: it writes a delete marker. S3 refuses the delete of a locked version with the code
AccessDenied, as without the permission. Only the version's own headers tell the two apart. Source:
Amazon S3 API Reference, GetObjectLockConfiguration and HeadObject. Not for: the delete
(`versions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final
from urllib.error import HTTPError

from ebbtide.storage.asking import FAILURES
from ebbtide.storage.base import BucketLock
from ebbtide.storage.failures import LOCKED
from ebbtide.storage.keys import Bucket, text_of

_LOOKS_AT_ONCE: Final = 16
_DAYS_OF_A_YEAR: Final = 365
_ABSENT: Final = frozenset({404, 501})
"""A bucket without object lock, and a server that does not have the request."""


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


def locked(bucket: Bucket, denied: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys whose version is locked, with the error for users, which begins with LOCKED.

    `denied` has the id of a version that the storage did not delete, by key. Each takes one
    request; there is none if the bucket has no object lock.
    """
    if not denied or lock_of(bucket).state == "no":
        return {}
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
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
