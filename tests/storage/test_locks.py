"""Object lock of a bucket, on a real server: what it says, and which deletes it refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest

from ebbtide.gc.costs import retained_json, retained_of, warnings_of
from ebbtide.storage import BucketLock, Retained, open_storage, retained
from ebbtide.storage.clients import LOCKED
from ebbtide.storage.requests import Bucket
from tests.support.versioned import NEVER, VersionedBucket

ODD = "é b+c/100%&d"

pytestmark = pytest.mark.usefixtures("s3_url")


@pytest.mark.parametrize(
    ("mode", "period", "days"),
    [("COMPLIANCE", {"Days": 2}, 2), ("GOVERNANCE", {"Years": 1}, 365), (None, {}, None)],
)
def test_the_lock_of_a_bucket_is_read(
    mode: str | None, period: dict[str, int], days: int | None
) -> None:
    found = open_storage(VersionedBucket.with_lock(mode, **period).url).retained()
    assert found.state == "versions"
    assert found.lock is not None
    assert (found.lock.state, found.lock.mode, found.lock.days) == ("on", mode, days)
    assert retained_of(retained_json(found)) == found
    kept, locked = warnings_of(found)
    assert "--delete-versions deletes them" in kept
    assert found.lock.reason in locked
    assert warnings_of(found, versions_deleted=True) == (locked,)


def test_a_bucket_without_a_lock_says_so() -> None:
    found = open_storage(VersionedBucket.made().url).retained()
    assert found.lock == BucketLock("no", "the bucket has no object lock")
    assert len(warnings_of(found)) == 1
    assert open_storage(VersionedBucket.made(NEVER).url).retained().lock is None


def test_a_lock_that_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPError("http://x", 403, "Forbidden", Message(), None) as refusal:

        def refuse(*_arguments: object, **_named: object) -> Any:
            raise refusal

        monkeypatch.setattr(Bucket, "ask", refuse)
        monkeypatch.setattr(Bucket, "headers_of", refuse)
        bucket = Bucket("b", ())
        assert retained.lock_of(bucket).state == "unknown"
        assert "403" in retained.lock_of(bucket).reason
        assert retained.locked_of(bucket, {"a": "1"}) == {}


def test_a_lock_that_is_over_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else forbids the delete then, such as a missing permission."""
    headers = {"x-amz-object-lock-mode": "COMPLIANCE"}
    monkeypatch.setattr(retained, "lock_of", lambda _bucket: BucketLock("on", "on"))
    monkeypatch.setattr(Bucket, "headers_of", lambda *_arguments: headers)
    ends = "x-amz-object-lock-retain-until-date"
    found = []
    for headers[ends] in ("2020-01-01T00:00:00Z", "2999-01-01T00:00:00.123456789Z"):
        found.append(retained.locked_of(Bucket("b", ()), {"a": "1"}))
    assert found == [{}, {"a": f"{LOCKED}mode COMPLIANCE, until 2999-01-01 00:00 UTC"}]


def test_reports_of_older_programs_have_no_lock() -> None:
    old = {"state": "versions", "reason": "versioning is enabled"}
    assert retained_of(old) == Retained("versions", "versioning is enabled")


def test_a_locked_version_is_named_with_its_end() -> None:
    """As is a legal hold, which ends when somebody ends it."""
    bucket = VersionedBucket.with_lock(None)
    storage = open_storage(f"{bucket.url}/lake")
    storage.put("free", b"data")
    bucket.hold("ON")
    storage.delete(["free"])
    (found,) = storage.delete_versions(["free"])
    assert found.error == f"{LOCKED}a legal hold keeps them until somebody ends it"
    bucket.hold("OFF")
    bucket.lock_by_default("GOVERNANCE", Days=1)
    storage.put(ODD, b"data")
    storage.delete([ODD])
    odd, free = storage.delete_versions([ODD, "free"])
    assert (free.outcome, free.error) == ("deleted", None)
    assert odd.outcome == "failed"
    assert odd.error is not None and odd.error.startswith(f"{LOCKED}mode GOVERNANCE, until ")
    until = datetime.strptime(odd.error.partition("until ")[2], "%Y-%m-%d %H:%M UTC")
    left = until.replace(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(hours=23) < left <= timedelta(days=1)
    assert bucket.left()[f"lake/{ODD}"] == (1, 1), "the marker still hides the version"
