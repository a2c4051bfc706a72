"""Storage classes of objects: as servers say them, and as vendors document them."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from ebbtide.storage.classes import DAYS_MIN, StorageClass, class_of
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
    assert storage.has_classes
    found = storage.classes(["cold", "absent", "é b+c/usual"])
    assert found == [
        StorageClass(STORAGE_CLASS, readable=False),
        None,
        StorageClass("STANDARD", readable=True),
    ]


def test_tiers_of_azure(azure_url: str) -> None:
    prefix = new_id()
    storage = open_storage(f"{azure_url}/{prefix}")
    port = urlsplit(os.environ["AZURE_STORAGE_ENDPOINT"]).port
    assert port is not None
    for tier in ("Hot", "Cool", "Archive"):
        storage.put(tier, b"data")
        set_tier(port, f"{prefix}/{tier}", tier)
    assert azure_url == f"az://{CONTAINER}"
    found = storage.classes(["Hot", "Cool", "Archive", "absent"])
    assert found == [
        StorageClass("Hot", readable=True),
        StorageClass("Cool", readable=True),
        StorageClass("Archive", readable=False),
        None,
    ]
    storage.put("copied", b"data")
    (cold, copied) = storage.move([("Archive", "to/Archive"), ("copied", "to/copied")])
    assert cold.outcome == "failed" and cold.error is not None
    assert "archive" in cold.error
    assert copied.outcome == "moved"


def test_a_directory_has_no_classes(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert not storage.has_classes
    assert storage.classes(["a"]) == [None]


CLASS = "x-amz-storage-class"
HEADERS: list[tuple[dict[str, str], str, bool]] = [
    ({}, "STANDARD", True),
    ({CLASS: "GLACIER_IR"}, "GLACIER_IR", True),
    ({CLASS: "DEEP_ARCHIVE"}, "DEEP_ARCHIVE", False),
    ({CLASS: "GLACIER", "x-amz-restore": 'ongoing-request="true"'}, "GLACIER", False),
    (
        {CLASS: "GLACIER", "x-amz-restore": 'ongoing-request="false", expiry-date="Fri, 1 Jan"'},
        "GLACIER",
        True,
    ),
    (
        {CLASS: "INTELLIGENT_TIERING", "x-amz-archive-status": "ARCHIVE_ACCESS"},
        "INTELLIGENT_TIERING",
        False,
    ),
    ({"x-goog-storage-class": "ARCHIVE"}, "ARCHIVE", True),
]


def test_headers_say_the_class() -> None:
    for headers, name, readable in HEADERS:
        found = StorageClass(name, readable=readable)
        assert class_of(headers, "STANDARD") == found
        assert class_of(headers, None) == (found if headers else None)


def test_minimum_durations_are_those_of_the_vendors() -> None:
    """S3, Azure and Google bill these days at least; the usual classes have none."""
    assert {DAYS_MIN[each] for each in ("STANDARD_IA", "ONEZONE_IA", "Cool", "NEARLINE")} == {30}
    assert {DAYS_MIN[each] for each in ("GLACIER", "GLACIER_IR", "Cold", "COLDLINE")} == {90}
    assert (DAYS_MIN["DEEP_ARCHIVE"], DAYS_MIN["Archive"], DAYS_MIN["ARCHIVE"]) == (180, 180, 365)
    assert not DAYS_MIN.keys() & {"STANDARD", "Hot", "INTELLIGENT_TIERING"}
