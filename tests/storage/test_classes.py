"""Storage classes of objects: as servers say them, and as vendors document them."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest

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


def test_a_directory_has_no_classes(tmp_path_factory: pytest.TempPathFactory) -> None:
    storage = open_storage(str(tmp_path_factory.mktemp("storage")))
    assert not storage.has_classes
    assert storage.classes(["a"]) == [None]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, StorageClass("STANDARD", readable=True)),
        ({"x-amz-storage-class": "GLACIER_IR"}, StorageClass("GLACIER_IR", readable=True)),
        ({"x-amz-storage-class": "DEEP_ARCHIVE"}, StorageClass("DEEP_ARCHIVE", readable=False)),
        (
            {"x-amz-storage-class": "GLACIER", "x-amz-restore": 'ongoing-request="true"'},
            StorageClass("GLACIER", readable=False),
        ),
        (
            {
                "x-amz-storage-class": "GLACIER",
                "x-amz-restore": 'ongoing-request="false", expiry-date="Fri, 1 Jan 2027"',
            },
            StorageClass("GLACIER", readable=True),
        ),
        (
            {
                "x-amz-storage-class": "INTELLIGENT_TIERING",
                "x-amz-archive-status": "ARCHIVE_ACCESS",
            },
            StorageClass("INTELLIGENT_TIERING", readable=False),
        ),
        ({"x-goog-storage-class": "ARCHIVE"}, StorageClass("ARCHIVE", readable=True)),
    ],
)
def test_headers_say_the_class(headers: dict[str, str], found: StorageClass) -> None:
    assert class_of(headers, "STANDARD") == found
    assert class_of(headers, None) == (found if headers else None)


def test_minimum_durations_are_those_of_the_vendors() -> None:
    """S3, Azure and Google bill these days at least; the usual classes have none."""
    assert {DAYS_MIN[each] for each in ("STANDARD_IA", "ONEZONE_IA", "Cool", "NEARLINE")} == {30}
    assert {DAYS_MIN[each] for each in ("GLACIER", "GLACIER_IR", "Cold", "COLDLINE")} == {90}
    assert (DAYS_MIN["DEEP_ARCHIVE"], DAYS_MIN["Archive"], DAYS_MIN["ARCHIVE"]) == (180, 180, 365)
    assert not DAYS_MIN.keys() & {"STANDARD", "Hot", "INTELLIGENT_TIERING"}
