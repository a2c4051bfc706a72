"""Objects through boto3: written, read, listed, copied and deleted."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from typing import Any

import lakefs
import pytest
from botocore.exceptions import ClientError

from tests.doors.s3.conftest import Client
from tests.server.test_collecting import expire_older
from tests.support.server import Server


def code_of(work: Callable[[], Any]) -> tuple[str, int]:
    """Code and status of the error that some work ends with. HEAD has no code but the status."""
    with pytest.raises(ClientError) as error:
        work()
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.twins
def test_an_object_comes_back(s3: Client, bucket: str) -> None:
    data = bytes(range(256)) * 10_000
    put = s3.put_object(
        Bucket=bucket,
        Key="main/dir/ü +&%.bin",
        Body=data,
        ContentType="text/x; a=b",
        Metadata={"color": "blue", "mtime": "1.5"},
    )
    etag = f'"{hashlib.md5(data).hexdigest()}"'
    assert put["ETag"] == etag
    assert put["ChecksumCRC32"]
    for found in (
        s3.get_object(Bucket=bucket, Key="main/dir/ü +&%.bin"),
        s3.head_object(Bucket=bucket, Key="main/dir/ü +&%.bin", ChecksumMode="ENABLED"),
    ):
        assert found["ETag"] == etag
        assert found["ContentLength"] == len(data)
        assert found["ContentType"] == "text/x; a=b"
        assert found["Metadata"] == {"color": "blue", "mtime": "1.5"}
        assert found["ChecksumSHA256"]
        assert abs(found["LastModified"] - datetime.now(UTC)) < timedelta(minutes=1)
        if "Body" in found:
            assert found["Body"].read() == data


def test_refs_of_each_kind(s3: Client, repo: lakefs.Repository) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a/b", Body=b"data")
    commit = repo.branch("main").commit("m").get_commit()
    s3.put_object(Bucket=repo.id, Key="main/a/b", Body=b"other")
    for ref, data in (("main", b"other"), (commit.id, b"data"), ("main~0", b"data")):
        assert s3.get_object(Bucket=repo.id, Key=f"{ref}/a/b")["Body"].read() == data


def test_ranges(s3: Client, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"0123456789")
    for header, expected in (
        ("bytes=0-0", b"0"),
        ("bytes=3-5", b"345"),
        ("bytes=7-", b"789"),
        ("bytes=-2", b"89"),
        ("bytes=5-100", b"56789"),
    ):
        found = s3.get_object(Bucket=bucket, Key="main/a", Range=header)
        assert found["Body"].read() == expected
        assert found["ContentRange"].endswith("/10")
        head = s3.head_object(Bucket=bucket, Key="main/a", Range=header)
        assert head["ContentLength"] == len(expected)
    wrong = code_of(lambda: s3.get_object(Bucket=bucket, Key="main/a", Range="bytes=10-"))
    assert wrong == ("InvalidRange", 416)
    whole = s3.get_object(Bucket=bucket, Key="main/a", Range="2-4")  # S3 ignores such a header
    assert whole["Body"].read() == b"0123456789"


def test_conditions_of_reads(s3: Client, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"1")["ETag"]
    hour, now = timedelta(hours=1), datetime.now(UTC)
    failed, same = ("PreconditionFailed", 412), ("304", 304)
    for condition, code in (
        ({"IfMatch": etag}, None),
        ({"IfMatch": etag, "IfUnmodifiedSince": now - hour}, None),
        ({"IfNoneMatch": '"x"', "IfModifiedSince": now + hour}, None),
        ({"IfModifiedSince": now - hour}, None),
        ({"IfUnmodifiedSince": now + hour}, None),
        ({"IfMatch": '"x"'}, failed),
        ({"IfUnmodifiedSince": now - hour}, failed),
        ({"IfNoneMatch": etag}, same),
        ({"IfNoneMatch": "*"}, same),
        ({"IfModifiedSince": now + hour}, same),
    ):
        get = partial(s3.get_object, Bucket=bucket, Key="main/a", **condition)
        if code is None:
            assert get()["Body"].read() == b"1"
        else:
            assert code_of(get) == code


def test_headers_that_the_reader_chooses(s3: Client, bucket: str) -> None:
    where = {"Bucket": bucket, "Key": "main/a"}
    s3.put_object(**where, Body=b"1")
    wanted = {"ContentType": "text/csv", "ContentDisposition": 'attachment; filename="a.csv"'}
    found = s3.get_object(**where, **{f"Response{name}": wanted[name] for name in wanted})
    assert wanted.items() <= found.items()
    assert found["Body"].read() == b"1"
    wrong = code_of(lambda: s3.get_object(**where, ResponseContentType="a\r\nb: c"))
    assert wrong == ("InvalidArgument", 400)


def test_conditions_of_writes(s3: Client, bucket: str) -> None:
    def put(**condition: str) -> str:
        return str(s3.put_object(Bucket=bucket, Key="main/a", Body=b"1", **condition)["ETag"])

    etag = put(IfNoneMatch="*")
    for unmet, code in (
        ({"IfNoneMatch": "*"}, "PreconditionFailed"),
        ({"IfMatch": '"x"'}, "PreconditionFailed"),
        ({"IfNoneMatch": "*", "IfMatch": etag}, "InvalidArgument"),
    ):
        assert code_of(lambda: put(**unmet))[0] == code  # noqa: B023
    for tags in (etag, "*"):
        assert put(IfMatch=tags) == etag
    s3.delete_object(Bucket=bucket, Key="main/a")
    for tags in ("*", etag):
        assert code_of(lambda: put(IfMatch=tags)) == ("NoSuchKey", 404)  # noqa: B023
    assert put(IfNoneMatch="*") == etag


def test_deletes(s3: Client, repo: lakefs.Repository) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"1")
    for key in ("main/a", "main/a", "main/", "main", "no/such", "main/a/../b"):
        done = s3.delete_object(Bucket=repo.id, Key=key)
        assert done["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert code_of(lambda: s3.head_object(Bucket=repo.id, Key="main/a")) == ("404", 404)


def test_many_deletes(s3: Client, repo: lakefs.Repository) -> None:
    repo.branch("dev").create("main")
    repo.tag("v1").create("main")
    keys = [f"{ref}/{name}" for ref in ("main", "dev") for name in ("a", "b&<>", "ü")]
    for key in keys:
        s3.put_object(Bucket=repo.id, Key=key, Body=b"1")
    asked = [{"Key": key} for key in (*keys[:4], "main/missing", "v1/a", "nobody/x", "main/")]
    found = s3.delete_objects(Bucket=repo.id, Delete={"Objects": asked})
    deleted = [each["Key"] for each in found["Deleted"]]
    assert deleted == [*keys[:4], "main/missing", "nobody/x", "main/"]
    assert [(each["Key"], each["Code"]) for each in found["Errors"]] == [
        ("v1/a", "MethodNotAllowed")
    ]
    quiet = s3.delete_objects(Bucket=repo.id, Delete={"Objects": [{"Key": keys[4]}], "Quiet": True})
    assert "Deleted" not in quiet
    left = s3.list_objects_v2(Bucket=repo.id, Prefix="dev/")
    assert [each["Key"] for each in left["Contents"]] == [keys[5]]
    many = {"Objects": [{"Key": f"main/{number}"} for number in range(1000)]}
    assert len(s3.delete_objects(Bucket=repo.id, Delete=many)["Deleted"]) == 1000
    many["Objects"].append({"Key": "main/x"})
    wrong = code_of(lambda: s3.delete_objects(Bucket=repo.id, Delete=many))
    assert wrong == ("MalformedXML", 400)


def test_copies(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    other = server.repository(f"{repo.id[:40]}-2")
    s3.put_object(Bucket=repo.id, Key="main/a b+", Body=b"1", Metadata={"x": "y"})
    repo.branch("main").commit("m")
    repo.tag("v1").create("main")
    for source, target in (
        ({"Bucket": repo.id, "Key": "main/a b+"}, (repo.id, "main/c")),
        ({"Bucket": repo.id, "Key": "v1/a b+"}, (repo.id, "main/d")),
        ({"Bucket": repo.id, "Key": "v1/a b+"}, (other.id, "main/e")),
        ({"Bucket": repo.id, "Key": "main/c"}, (repo.id, "main/f")),
    ):
        s3.copy_object(CopySource=source, Bucket=target[0], Key=target[1])
        found = s3.get_object(Bucket=target[0], Key=target[1])
        assert (found["Body"].read(), found["Metadata"]) == (b"1", {"x": "y"})
    replaced = {"Metadata": {"new": "1"}, "MetadataDirective": "REPLACE", "ContentType": "text/x"}
    s3.copy_object(CopySource=f"{repo.id}/main/c", Bucket=repo.id, Key="main/c", **replaced)
    found = s3.get_object(Bucket=repo.id, Key="main/c")
    assert (found["Body"].read(), found["Metadata"]) == (b"1", {"new": "1"})
    assert found["ContentType"] == "text/x"


def test_copies_that_are_refused(s3: Client, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"1")["ETag"]
    right = {"CopySource": f"{bucket}/main/a", "Bucket": bucket, "Key": "main/b"}
    for change, code in (
        ({"CopySource": f"{bucket}/main/no"}, "NoSuchKey"),
        ({"CopySource": f"{bucket}/main"}, "NoSuchKey"),
        ({"CopySource": "no-such-bucket/main/a"}, "NoSuchBucket"),
        ({"Key": "no/b"}, "NoSuchKey"),
        ({"Key": "main/a"}, "InvalidRequest"),
        ({"CopySourceIfMatch": '"x"'}, "PreconditionFailed"),
        ({"CopySourceIfNoneMatch": etag}, "PreconditionFailed"),
    ):
        assert code_of(partial(s3.copy_object, **right | change))[0] == code, change
    copied = s3.copy_object(**right, CopySourceIfMatch=etag)
    assert copied["CopyObjectResult"]["ETag"] == etag


def test_what_does_not_exist(s3: Client, bucket: str) -> None:
    for key in ("main/no", "no/a", "main", "a b/c", "main/", "main/..", "deadbeef/a"):
        assert code_of(lambda: s3.get_object(Bucket=bucket, Key=key)) == ("NoSuchKey", 404), key  # noqa: B023
    assert code_of(lambda: s3.head_object(Bucket=bucket, Key="main/no")) == ("404", 404)
    missing = code_of(lambda: s3.get_object(Bucket="no-such", Key="main/a"))
    assert missing == ("NoSuchBucket", 404)
    assert code_of(lambda: s3.head_bucket(Bucket="no-such")) == ("404", 404)


def test_writes_go_to_branches_alone(s3: Client, repo: lakefs.Repository) -> None:
    """Where there is a directory of a branch: clients make it before they write to it."""
    put = partial(s3.put_object, Bucket=repo.id)
    for key in ("main/a", "main/", "main/dir/"):
        put(Key=key, Body=b"")
    listed = s3.list_objects_v2(Bucket=repo.id, Prefix="main/")
    assert [each["Key"] for each in listed["Contents"]] == ["main/a", "main/dir/"]
    commit = repo.branch("main").commit("m").get_commit()
    repo.tag("v1").create("main")
    for ref in ("v1", commit.id, "main~1", "main@"):
        assert code_of(partial(put, Key=f"{ref}/a")) == ("MethodNotAllowed", 405), ref
    wrong = code_of(lambda: s3.delete_object(Bucket=repo.id, Key="v1/a"))
    assert wrong == ("MethodNotAllowed", 405)
    for key, body, code in (
        ("main/", b"x", "InvalidArgument"),
        ("no/", b"", "NoSuchKey"),
        ("no/a", b"", "NoSuchKey"),
        ("a", b"", "InvalidArgument"),
        ("main/" + "a" * 1025, b"", "InvalidArgument"),
    ):
        assert code_of(partial(put, Key=key, Body=body))[0] == code, key


def test_buckets(s3: Client, bucket: str) -> None:
    names = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    assert bucket in names
    assert s3.head_bucket(Bucket=bucket)["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    exists = code_of(lambda: s3.create_bucket(Bucket=bucket))
    assert exists == ("BucketAlreadyOwnedByYou", 409)
    assert code_of(lambda: s3.create_bucket(Bucket="no-such"))[0] == "NoSuchBucket"
    assert code_of(lambda: s3.delete_bucket(Bucket=bucket)) == ("MethodNotAllowed", 405)
    for name in ("acl", "policy", "lifecycle_configuration", "tagging", "cors"):
        call = getattr(s3, f"get_bucket_{name}")
        assert code_of(lambda: call(Bucket=bucket)) == ("NotImplemented", 501)  # noqa: B023


def test_every_way_to_send_a_body(client_of: Callable[..., Client], bucket: str) -> None:
    plain = client_of(request_checksum_calculation="when_required")
    for signing in (True, False):
        path = {"addressing_style": "path", "payload_signing_enabled": signing}
        client = client_of(s3=path)
        for size, name in (
            (0, "CRC32"),
            (3_000_000, "CRC32C"),
            (300_000, "CRC64NVME"),
            (300_000, "SHA1"),
            (300_000, "SHA256"),
        ):
            data = bytes(size)
            where = {"Bucket": bucket, "Key": "main/a"}
            assert client.put_object(**where, Body=BytesIO(data), ChecksumAlgorithm=name)[
                f"Checksum{name}"
            ]
            assert client.get_object(**where)["Body"].read() == data
            plain.put_object(**where, Body=BytesIO(data + b"x"))
            assert plain.get_object(**where)["Body"].read() == data + b"x"


def test_an_expired_commit_says_so(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"1")
    old = repo.branch("main").commit("1").get_commit().id
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"2")
    repo.branch("main").commit("2")
    with server.http() as http:
        expire_older(http, repo)
    # The lease of the branch's former commit has ended: it lasts zero seconds.
    gone = code_of(lambda: s3.get_object(Bucket=repo.id, Key=f"{old}/a"))
    assert gone == ("CommitExpired", 410)
    # The answer to HEAD could not say why: many clients ask so first, and then for the bytes.
    assert s3.head_object(Bucket=repo.id, Key=f"{old}/a")["ContentLength"] == 1
    source = {"Bucket": repo.id, "Key": f"{old}/a"}
    gone = code_of(lambda: s3.copy_object(CopySource=source, Bucket=repo.id, Key="main/b"))
    assert gone == ("CommitExpired", 410)
    assert s3.get_object(Bucket=repo.id, Key="main/a")["Body"].read() == b"2"


FAILED = ("PreconditionFailed", 412)
LONG_AGO = datetime(2015, 1, 1, tzinfo=UTC)


def conditions(s3: Client, bucket: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Conditions that the object at `main/a` meets, and others that it does not meet."""
    head = s3.head_object(Bucket=bucket, Key="main/a")
    met = {"ETag": head["ETag"], "LastModifiedTime": head["LastModified"], "Size": 3}
    return met, {"ETag": '"x"', "LastModifiedTime": LONG_AGO, "Size": 4}


def as_headers(condition: dict[str, Any]) -> dict[str, Any]:
    """A condition as DeleteObject takes it."""
    return {f"IfMatch{name.removeprefix('ETag')}": value for name, value in condition.items()}


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
    twice: list[dict[str, Any]] = [{"Key": "main/b", "Size": 3}, {"Key": "main/b"}]
    assert code_of(lambda: delete(*twice)) == ("InvalidArgument", 400)
    left = s3.list_objects_v2(Bucket=repo.id, Prefix="main/")["Contents"]
    assert [each["Key"] for each in left] == ["main/b"]


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
    s3.put_object(Bucket=repo.id, Key="feature%2Fx/a", Body=b"1")
    assert repo.branch("feature/x").object("a").exists()
    found = s3.list_objects_v2(Bucket=repo.id, Prefix="feature%2Fx/")
    assert [each["Key"] for each in found["Contents"]] == ["feature%2Fx/a"]
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
