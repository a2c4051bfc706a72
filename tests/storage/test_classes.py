"""Storage classes of objects: as servers list them, and as vendors document them."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from ebbtide.gc.costs import DAYS_MIN
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from tests.support.azurite import CONTAINER, set_tier
from tests.support.ceph import STORAGE_CLASS
from tests.support.versioned import connect


def test_classes_of_s3(s3_url: str) -> None:
    place = f"{s3_url}/{new_id()}"
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    storage = open_storage(place)
    storage.put("é b+c/usual", b"data")
    connect().put_object(
        Bucket=bucket, Key=f"{prefix}/cold", Body=b"data", StorageClass=STORAGE_CLASS
    )
    rows = [row for batch in storage.list() for row in batch.to_pylist()]
    assert {row["address"]: row["storage_class"] for row in rows} == {
        "cold": STORAGE_CLASS,
        "é b+c/usual": "STANDARD",
    }


def test_archived_objects_of_azure_are_not_copied(azure_url: str) -> None:
    prefix = new_id()
    storage = open_storage(f"{azure_url}/{prefix}")
    port = urlsplit(os.environ["AZURE_STORAGE_ENDPOINT"]).port
    assert port is not None
    assert azure_url == f"az://{CONTAINER}"
    for address in ("archived", "usual"):
        storage.put(address, b"data")
    set_tier(port, f"{prefix}/archived", "Archive")
    (cold, copied) = storage.move([("archived", "to/archived"), ("usual", "to/usual")])
    assert cold.outcome == "failed" and cold.error is not None
    assert "archive" in cold.error
    assert copied.outcome == "moved"


def test_minimum_durations_are_those_of_the_vendors() -> None:
    """S3, Azure and Google bill these days at least; the usual classes have none."""
    assert {DAYS_MIN[each] for each in ("STANDARD_IA", "ONEZONE_IA", "Cool", "NEARLINE")} == {30}
    assert {DAYS_MIN[each] for each in ("GLACIER", "GLACIER_IR", "Cold", "COLDLINE")} == {90}
    assert (DAYS_MIN["DEEP_ARCHIVE"], DAYS_MIN["Archive"], DAYS_MIN["ARCHIVE"]) == (180, 180, 365)
    assert not DAYS_MIN.keys() & {"STANDARD", "Hot", "INTELLIGENT_TIERING"}
