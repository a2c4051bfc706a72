"""Objects through boto3: written, read, listed, copied and deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from typing import Any

import httpx
import lakefs
import pytest
from botocore.exceptions import ClientError

from tests.server.s3.conftest import Client
from tests.support.server import Server, eventually


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


def test_the_api_sees_the_same(s3: Client, repo: lakefs.Repository) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a/b", Body=b"data", Metadata={"x": "y"})
    stat = repo.branch("main").object("a/b").stat()
    assert stat.checksum == hashlib.sha256(b"data").hexdigest()
    assert stat.metadata == {"X-Amz-Meta-x": "y"}
    commit = repo.branch("main").commit("m").get_commit()
    repo.branch("main").object("a/b").upload(b"other", mode="wb")
    for ref, data in (("main", b"other"), (commit.id, b"data"), ("main~0", b"data")):
        assert s3.get_object(Bucket=repo.id, Key=f"{ref}/a/b")["Body"].read() == data


def test_refs_with_slashes(server: Server, s3: Client, repo: lakefs.Repository) -> None:
    """`test_listing.py` lists them as prefixes."""
    server.branch(repo.id, "feature/x")
    s3.put_object(Bucket=repo.id, Key="feature%2Fx/a", Body=b"1")
    assert repo.branch("feature/x").object("a").exists()
    found = s3.list_objects_v2(Bucket=repo.id, Prefix="feature%2Fx/")
    assert [each["Key"] for each in found["Contents"]] == ["feature%2Fx/a"]


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
        ({"IfNoneMatch": etag}, "NotImplemented"),
        ({"IfNoneMatch": f"{etag}, *"}, "NotImplemented"),
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


def test_roles(client_of: Callable[..., Client], bucket: str) -> None:
    client_of("writer").put_object(Bucket=bucket, Key="main/a", Body=b"1")
    reader = client_of("reader")
    assert reader.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"1"
    assert reader.list_objects_v2(Bucket=bucket, Prefix="main/")["KeyCount"] == 1


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


def test_presigned_urls(client_of: Callable[..., Client], bucket: str) -> None:
    s3 = client_of(signature_version="s3v4")
    where = {"Bucket": bucket, "Key": "main/a ü"}
    put = s3.generate_presigned_url("put_object", where, ExpiresIn=60)
    get = s3.generate_presigned_url("get_object", where, ExpiresIn=60)
    with httpx.Client(verify=False) as http:
        assert http.put(put, content=b"data").status_code == 200
        assert http.get(get).content == b"data"
        assert http.get(put).status_code == 403
        assert http.get(get.replace("main", "mane")).status_code == 403
        assert http.delete(get).status_code == 403


def test_an_expired_commit_says_so(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"1")
    old = repo.branch("main").commit("1").get_commit().id
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"2")
    repo.branch("main").commit("2")
    place = f"/repositories/{repo.id}"
    with server.http() as http:
        policy = {"policy": {"default": {"keep_last": 1}}}
        assert http.put(f"{place}/settings/retention", json=policy).status_code == 200
        asked = {"mode": "clean", "grace": "0s", "unsafe": True, "allow_share": True}
        run = http.post(f"{place}/gc/runs", json=asked).json()["run_id"]
        eventually(lambda: http.get(f"{place}/gc/runs/{run}").json()["state"] != "running")
    # The lease of the branch's former commit has ended: it lasts zero seconds.
    gone = code_of(lambda: s3.get_object(Bucket=repo.id, Key=f"{old}/a"))
    assert gone == ("CommitExpired", 410)
    # The answer to HEAD could not say why: many clients ask so first, and then for the bytes.
    assert s3.head_object(Bucket=repo.id, Key=f"{old}/a")["ContentLength"] == 1
    source = {"Bucket": repo.id, "Key": f"{old}/a"}
    gone = code_of(lambda: s3.copy_object(CopySource=source, Bucket=repo.id, Key="main/b"))
    assert gone == ("CommitExpired", 410)
    assert s3.get_object(Bucket=repo.id, Key="main/a")["Body"].read() == b"2"
