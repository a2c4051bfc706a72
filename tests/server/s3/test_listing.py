"""Listings through boto3, against a model."""

from __future__ import annotations

import random
from typing import Any

import lakefs
import pytest

from tests.server.s3.conftest import Client
from tests.server.s3.test_objects import code_of
from tests.support.server import Server

KEYS = ("a", "a/b", "a/c/d", "a/c/e", "b b", "b+c", "c%2F", "dir/", "dir/x", "z/ü", "z/😀", "&<>")


def expected(
    keys: list[str], prefix: str, delimiter: str, after: str = ""
) -> tuple[list[str], list[str]]:
    """The keys and common prefixes that S3 lists, by its definition."""
    found: list[str] = []
    prefixes: list[str] = []
    for key in sorted(keys):
        if not key.startswith(prefix) or key <= after:
            continue
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            found.append(key)
        elif key[: end + len(delimiter)] not in prefixes:
            prefixes.append(key[: end + len(delimiter)])
    return found, prefixes


def listed(pages: Any) -> tuple[list[str], list[str]]:
    keys: list[str] = []
    prefixes: list[str] = []
    for page in pages:
        keys += [each["Key"] for each in page.get("Contents", ())]
        prefixes += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
    return keys, prefixes


@pytest.mark.twins
def test_listings(s3: Client, bucket: str) -> None:
    keys = [f"main/{key}" for key in KEYS]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    rng = random.Random(1)
    for prefix in ("main/", "main/a", "main/a/", "main/dir/", "main/no", "no/"):
        for delimiter in ("", "/", "/c", "+"):
            paginator = s3.get_paginator(rng.choice(["list_objects", "list_objects_v2"]))
            size = rng.choice([1, 2, 3, 1000])
            asked = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
            pages = list(paginator.paginate(**asked, PaginationConfig={"PageSize": size}))
            assert listed(pages) == expected(keys, prefix, delimiter), (prefix, delimiter, size)
            for page in pages:
                count = len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ()))
                assert count <= size
                assert page.get("KeyCount", count) == count
    for after in ("main/a/c/d", "main", "main/b", "a/x", "z/x", "main/zz"):
        first = s3.list_objects(Bucket=bucket, Prefix="main/", Marker=after)
        second = s3.list_objects_v2(Bucket=bucket, Prefix="main/", StartAfter=after)
        wanted = expected(keys, "main/", "", after)
        assert listed([first]) == listed([second]) == wanted, after


def test_branches_are_the_first_part_of_keys(
    server: Server, s3: Client, repo: lakefs.Repository
) -> None:
    names = ["dev", "dev-2", "feature/x", "main"]
    for name in names[:3]:
        server.branch(repo.id, name)
    repo.tag("v1").create("main")
    prefixes = [f"{name.replace('/', '%2F')}/" for name in names]
    for version in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(version).paginate(
            Bucket=repo.id, Delimiter="/", PaginationConfig={"PageSize": 1}
        )
        assert listed(pages) == ([], prefixes)
    found = s3.list_objects_v2(Bucket=repo.id, Prefix="dev", Delimiter="/")
    assert listed([found]) == ([], prefixes[:2])
    for after, left in (("dev", 4), ("dev/", 3), ("dev/x", 3), ("dev 2", 3), ("zz", 0), ("d", 4)):
        found = s3.list_objects_v2(Bucket=repo.id, StartAfter=after)
        assert listed([found]) == ([], prefixes[4 - left :]), after


def test_details(s3: Client, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"12")["ETag"]
    found = s3.list_objects_v2(Bucket=bucket, Prefix="main/", FetchOwner=True)["Contents"][0]
    assert (found["ETag"], found["Size"], found["StorageClass"]) == (etag, 2, "STANDARD")
    assert found["Owner"]["ID"] == "ebbtide"
    assert "Owner" not in s3.list_objects_v2(Bucket=bucket, Prefix="main/")["Contents"][0]
    assert "Owner" in s3.list_objects(Bucket=bucket, Prefix="main/")["Contents"][0]
    empty = s3.list_objects_v2(Bucket=bucket, Prefix="main/", MaxKeys=0)
    assert (empty["KeyCount"], empty["IsTruncated"]) == (0, False)
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=0)["KeyCount"] == 0
    most = s3.list_objects_v2(Bucket=bucket, Prefix="main/", MaxKeys=5000)
    assert most["MaxKeys"] == 1000
    for wrong in ({"ContinuationToken": "_w=="}, {"ContinuationToken": "x"}, {"MaxKeys": -1}):
        code = code_of(lambda: s3.list_objects_v2(Bucket=bucket, Prefix="main/", **wrong))  # noqa: B023
        assert code == ("InvalidArgument", 400)
