"""Versions of a bucket: on a real server, and on random histories against a slow model."""

from __future__ import annotations

import os

import pytest

from ebbtide.storage import Storage, open_storage, retained
from tests.support.versioned import NEVER, VersionedBucket

KEYS = ("a", "a/b", "a0", "ab", "é b+c", "é b+c&d")
"""Some begin with others."""

pytestmark = pytest.mark.usefixtures("s3_url")


@pytest.fixture
def bucket() -> VersionedBucket:
    return VersionedBucket.made()


def filled(bucket: VersionedBucket) -> Storage:
    storage = open_storage(f"{bucket.url}/lake")
    for _ in range(3):
        for key in KEYS:
            storage.put(key, b"data")
    return storage


@pytest.mark.parametrize(
    ("status", "state"),
    [(NEVER, "no"), ("Enabled", "versions"), ("Suspended", "versions")],
)
def test_the_bucket_says_what_it_keeps(status: str, state: str) -> None:
    """One that never had versions has none to delete."""
    bucket = VersionedBucket.made(status)
    found = open_storage(bucket.url).retained()
    assert found.state == state
    assert "versioning" in found.reason
    if status == NEVER:
        storage = filled(bucket)
        storage.delete(["a"])
        assert [each.outcome for each in storage.delete_versions(["a", "ab"])] == ["missing"] * 2
        assert storage.get("ab") == b"data"


def test_without_the_permission_it_is_unknown(
    bucket: VersionedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = open_storage(bucket.url, options={"endpoint": os.environ["AWS_ENDPOINT"]}).retained()
    assert found.state == "unknown"
    assert "SignatureDoesNotMatch" in found.reason


@pytest.mark.parametrize("rows", [1, 1000])
def test_versions_of_exactly_the_addresses_go(
    bucket: VersionedBucket, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other keys begin with these, and pages end within a key."""
    monkeypatch.setattr(retained, "_PAGE_ROWS", rows)
    storage = filled(bucket)
    gone = ["a", "é b+c"]
    for _ in range(2):  # two markers
        assert {each.outcome for each in storage.delete(gone)} == {"deleted"}
    before = bucket.left()
    assert before["lake/a"][0] == 3 and before["lake/a"][1] >= 1
    assert [address for page in storage.hidden("") for address in page] == gone
    found = storage.delete_versions([*gone, "absent"])
    assert [(each.outcome, each.error) for each in found] == [
        ("deleted", None),
        ("deleted", None),
        ("missing", None),
    ]
    kept = {key: counts for key, counts in before.items() if key.removeprefix("lake/") not in gone}
    assert bucket.left() == kept
    assert [each.outcome for each in storage.delete_versions(gone)] == ["missing", "missing"]
    assert list(storage.hidden("")) == []


def test_versions_of_an_object_that_exists_stay(bucket: VersionedBucket) -> None:
    storage = filled(bucket)
    storage.delete(["a"])
    storage.put("a", b"again")
    before = bucket.left()
    (found,) = storage.delete_versions(["a"])
    assert (found.outcome, found.error) == ("missing", retained.PRESENT)
    assert bucket.left() == before


def test_an_older_version_does_not_return_if_versioning_is_suspended(
    bucket: VersionedBucket,
) -> None:
    storage = filled(bucket)
    bucket.set("Suspended")
    storage.put("a", b"null version")
    storage.delete(["a"])
    assert storage.head("a") is None
    (found,) = storage.delete_versions(["a"])
    assert found.outcome == "deleted"
    assert not bucket.left("lake/a").keys() & {"lake/a"}
