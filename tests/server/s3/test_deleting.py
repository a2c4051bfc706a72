"""Conditions on deletes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import lakefs
import pytest

from tests.server.s3.conftest import Client
from tests.server.s3.test_objects import code_of

FAILED = ("PreconditionFailed", 412)
LONG_AGO = datetime(2015, 1, 1, tzinfo=UTC)


def conditions(s3: Client, bucket: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Conditions that the object at `main/a` meets, and others that it does not meet."""
    head = s3.head_object(Bucket=bucket, Key="main/a")
    met = {"ETag": head["ETag"], "LastModifiedTime": head["LastModified"], "Size": 3}
    return met, {"ETag": '"x"', "LastModifiedTime": LONG_AGO, "Size": 4}


def as_headers(condition: dict[str, Any]) -> dict[str, Any]:
    """A condition as DeleteObject takes it."""
    names = {
        "ETag": "IfMatch",
        "LastModifiedTime": "IfMatchLastModifiedTime",
        "Size": "IfMatchSize",
    }
    return {names[name]: value for name, value in condition.items()}


@pytest.mark.parametrize("is_committed", [False, True])
def test_conditions_of_a_delete(s3: Client, repo: lakefs.Repository, is_committed: bool) -> None:
    where = {"Bucket": repo.id, "Key": "main/a"}
    s3.put_object(**where, Body=b"123")
    if is_committed:
        repo.branch("main").commit("m")
    met, unmet = conditions(s3, repo.id)
    for name in met:
        wrong = as_headers(met | {name: unmet[name]})
        assert code_of(lambda: s3.delete_object(**where, **wrong)) == FAILED  # noqa: B023
    assert s3.get_object(**where)["Body"].read() == b"123"
    s3.delete_object(**where, **as_headers(met))
    assert code_of(lambda: s3.head_object(**where)) == ("404", 404)
    # A key without an object is no error.
    s3.delete_object(**where, **as_headers(unmet))
    s3.put_object(**where, Body=b"1")
    s3.delete_object(**where, IfMatch="*")
    assert code_of(lambda: s3.head_object(**where)) == ("404", 404)


def test_conditions_of_many_deletes(s3: Client, repo: lakefs.Repository) -> None:
    for key in ("main/a", "main/b", "main/c"):
        s3.put_object(Bucket=repo.id, Key=key, Body=b"123")
    repo.branch("main").commit("m")
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"456")
    met, unmet = conditions(s3, repo.id)

    def delete(*objects: dict[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
        found = s3.delete_objects(Bucket=repo.id, Delete={"Objects": list(objects)})
        failed = [(each["Key"], each["Code"]) for each in found.get("Errors", ())]
        return [each["Key"] for each in found.get("Deleted", ())], failed

    for name, value in unmet.items():
        done = delete({"Key": "main/a", name: value}, {"Key": "main/no", name: value})
        assert done == (["main/no"], [("main/a", "PreconditionFailed")])
    done = delete({"Key": "main/a"} | met, {"Key": "main/b", "Size": 4}, {"Key": "main/c"})
    assert done == (["main/a", "main/c"], [("main/b", "PreconditionFailed")])
    left = s3.list_objects_v2(Bucket=repo.id, Prefix="main/")["Contents"]
    assert [each["Key"] for each in left] == ["main/b"]


def test_conditions_that_cannot_be_read(s3: Client, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"123")
    for header, value in (
        ("x-amz-if-match-size", "many"),
        ("x-amz-if-match-last-modified-time", "yesterday"),
        ("x-amz-if-match-last-modified-time", "2026-01-01T00:00:00"),
    ):

        def add(params: dict[str, Any], **_: Any) -> None:
            params["headers"][header] = value  # noqa: B023

        s3.meta.events.register("before-call.s3.DeleteObject", add)
        wrong = code_of(lambda: s3.delete_object(Bucket=bucket, Key="main/a"))
        assert wrong == ("InvalidArgument", 400)
        s3.meta.events.unregister("before-call.s3.DeleteObject", add)
    twice = [{"Key": "main/a", "Size": 3}, {"Key": "main/a"}]
    wrong = code_of(lambda: s3.delete_objects(Bucket=bucket, Delete={"Objects": twice}))
    assert wrong == ("InvalidArgument", 400)
    assert s3.head_object(Bucket=bucket, Key="main/a")["ContentLength"] == 3


def test_the_only_part_of_an_object(s3: Client, bucket: str) -> None:
    where = {"Bucket": bucket, "Key": "main/a"}
    s3.put_object(**where, Body=b"123")
    for read in (s3.get_object, s3.head_object):
        found = read(**where, PartNumber=1)
        assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert (found["PartsCount"], found["ContentLength"]) == (1, 3)
    assert s3.get_object(**where, PartNumber=1)["Body"].read() == b"123"
    for more, code in (
        ({"PartNumber": 2}, "InvalidPartNumber"),
        ({"PartNumber": 10_001}, "InvalidArgument"),
        ({"PartNumber": 1, "Range": "bytes=0-1"}, "InvalidRequest"),
    ):
        assert code_of(lambda: s3.get_object(**where, **more))[0] == code  # noqa: B023
    s3.put_object(**where, Body=b"")
    assert s3.get_object(**where, PartNumber=1)["Body"].read() == b""
    later = datetime.now(UTC) + timedelta(hours=1)
    unchanged = code_of(lambda: s3.get_object(**where, PartNumber=1, IfModifiedSince=later))
    assert unchanged == ("304", 304)
