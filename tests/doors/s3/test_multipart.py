"""Uploads in parts through boto3."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Final

import lakefs
import pytest

from ebbtide.arrow import texts
from ebbtide.storage import open_storage
from tests.doors.s3.conftest import Client
from tests.doors.s3.test_etags import DATA, seen
from tests.doors.s3.test_objects import code_of
from tests.support.server import Server

KEY: Final = "main/a/ü b"


class Upload:
    """One upload, with what it needs at each call."""

    def __init__(self, s3: Client, bucket: str, key: str = KEY, **more: Any) -> None:
        self.s3 = s3
        self.key = key
        made = s3.create_multipart_upload(Bucket=bucket, Key=key, **more)
        assert (made["Bucket"], made["Key"]) == (bucket, key)
        self.where = {"Bucket": bucket, "Key": key, "UploadId": made["UploadId"]}

    def part(self, number: int, data: bytes, **more: Any) -> dict[str, Any]:
        """Sends a part; returns how it is named when the upload is completed."""
        sent = self.s3.upload_part(**self.where, PartNumber=number, Body=data, **more)
        assert sent["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def complete(self, parts: list[dict[str, Any]], **more: Any) -> Any:
        return self.s3.complete_multipart_upload(
            **self.where, MultipartUpload={"Parts": parts}, **more
        )

    def abort(self) -> Any:
        return self.s3.abort_multipart_upload(**self.where)

    def listed(self) -> list[tuple[int, int]]:
        """Numbers and sizes of the parts."""
        pages = self.s3.get_paginator("list_parts").paginate(
            **self.where, PaginationConfig={"PageSize": 2}
        )
        return [(part["PartNumber"], part["Size"]) for page in pages for part in page["Parts"]]


def files(server: Server, bucket: str) -> set[str]:
    """The addresses of all data files of a repository."""
    storage = server.environment.get("EBBTIDE_STORAGE_URL", str(server.directory / "storage"))
    batches = open_storage(f"{storage}/{bucket}").list("data/")
    return {str(address) for batch in batches for address in texts(batch.column("address"))}


@pytest.mark.twins
def test_parts_become_an_object(s3: Client, server: Server, bucket: str) -> None:
    upload = Upload(s3, bucket, ContentType="text/x", Metadata={"x": "y"})
    data = {3: b"c" * 2_000_000, 1: b"a" * 10, 7: b"", 2: b"b" * 300}
    parts = [upload.part(number, data[number]) for number in data]
    upload.part(2, b"earlier")
    parts[3] = upload.part(2, data[2])
    parts.sort(key=lambda part: int(part["PartNumber"]))
    assert upload.listed() == [(number, len(data[number])) for number in sorted(data)]
    listed = s3.list_parts(**upload.where)["Parts"]
    assert [part["ETag"] for part in listed] == [part["ETag"] for part in parts]
    assert code_of(lambda: s3.head_object(Bucket=bucket, Key=KEY))[1] == 404
    done = upload.complete(parts)
    found = s3.get_object(Bucket=bucket, Key=KEY)
    assert found["Body"].read() == b"".join(data[number] for number in sorted(data))
    assert (found["ContentType"], found["Metadata"]) == ("text/x", {"x": "y"})
    digests = b"".join(hashlib.md5(data[number]).digest() for number in sorted(data))
    etag = f"{hashlib.md5(digests).hexdigest()}-4"
    assert done["ETag"] == f'"{etag}"' and seen(s3, bucket, KEY) == {etag}
    # The parts' files go at once; only the two that were replaced are left to the reclaimer.
    assert len(files(server, bucket)) == 3


def of_complete(answer: Any) -> dict[str, Any]:
    """What an answer to a complete says of the object."""
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def test_a_repeated_complete_changes_nothing(s3: Client, bucket: str) -> None:
    """It gets the answer of the first, whatever the path shows by now."""
    upload = Upload(s3, bucket, ChecksumAlgorithm="CRC32")
    parts = [upload.part(1, b"1", ChecksumAlgorithm="CRC32"), upload.part(2, b"2")]
    done = of_complete(upload.complete(parts, IfNoneMatch="*"))
    assert done["ChecksumCRC32"].endswith("-2")
    assert of_complete(upload.complete(parts, IfNoneMatch="*")) == done
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"newer")
    assert of_complete(upload.complete(parts)) == done
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"newer"
    s3.delete_object(Bucket=bucket, Key=KEY)
    assert of_complete(upload.complete(parts)) == done
    assert code_of(lambda: s3.head_object(Bucket=bucket, Key=KEY))[1] == 404
    other = parts[1] | {"ETag": parts[0]["ETag"]}
    for use in (
        lambda: upload.complete([parts[0]]),
        lambda: upload.complete([parts[0], other]),
        upload.abort,
        upload.listed,
        lambda: upload.part(1, b"late"),
    ):
        assert code_of(use) == ("NoSuchUpload", 404)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_an_aborted_upload_leaves_nothing(s3: Client, server: Server, bucket: str) -> None:
    upload = Upload(s3, bucket)
    part = upload.part(1, b"a" * 10_000)
    assert len(files(server, bucket)) == 1
    upload.abort()
    assert files(server, bucket) == set()
    assert code_of(lambda: upload.complete([part])) == ("NoSuchUpload", 404)
    assert code_of(upload.abort) == ("NoSuchUpload", 404)


def test_a_refused_complete_leaves_the_upload(s3: Client, bucket: str) -> None:
    upload = Upload(s3, bucket)
    one, two = upload.part(1, b"1"), upload.part(2, b"2")
    etag = s3.put_object(Bucket=bucket, Key=KEY, Body=b"old")["ETag"]
    wrong = {"PartNumber": 2, "ETag": '"x"'}
    missing = {"PartNumber": 3, "ETag": two["ETag"]}
    checked = one | {"ChecksumCRC32": "AAAAAA=="}
    refusals: tuple[tuple[list[dict[str, Any]], dict[str, Any], str], ...] = (
        ([two, one], {}, "InvalidPartOrder"),
        ([one, one], {}, "InvalidPartOrder"),
        ([one, wrong], {}, "InvalidPart"),
        ([one, missing], {}, "InvalidPart"),
        ([checked], {}, "InvalidPart"),
        ([], {}, "MalformedXML"),
        ([one, two], {"MpuObjectSize": 3}, "InvalidRequest"),
        ([one], {"ChecksumCRC32": "AAAAAA=="}, "BadDigest"),
        ([one, two], {"IfNoneMatch": "*"}, "PreconditionFailed"),
        ([one, two], {"IfMatch": '"x"'}, "PreconditionFailed"),
    )
    for parts, more, code in refusals:
        assert code_of(lambda: upload.complete(parts, **more))[0] == code, more  # noqa: B023
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"old"
    upload.complete([one, two], IfMatch=etag, MpuObjectSize=2)
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"12"


def test_wrong_uploads(s3: Client, repo: lakefs.Repository) -> None:
    upload = Upload(s3, repo.id)
    for change in ({"Key": "main/other"}, {"UploadId": "x"}, {"UploadId": "0" * 32}):
        where = upload.where | change
        for use in (partial(s3.upload_part, PartNumber=1, Body=b""), s3.abort_multipart_upload):
            assert code_of(lambda: use(**where)) == ("NoSuchUpload", 404)  # noqa: B023
    wrong = code_of(lambda: s3.upload_part(**upload.where, PartNumber=10_001, Body=b""))
    assert wrong == ("InvalidArgument", 400)
    repo.tag("v1").create("main")
    assert code_of(lambda: Upload(s3, repo.id, "v1/a")) == ("MethodNotAllowed", 405)
    assert code_of(lambda: Upload(s3, repo.id, "no/a")) == ("NoSuchKey", 404)
    assert code_of(lambda: Upload(s3, repo.id, "main")) == ("InvalidArgument", 400)


def test_parts_that_are_copies(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    other = server.repository(f"{repo.id[:40]}-2")
    s3.put_object(Bucket=repo.id, Key="main/source", Body=DATA)
    repo.branch("main").commit("m")
    upload = Upload(s3, other.id)
    source = {"Bucket": repo.id, "Key": "main/source"}
    parts = []
    for number, asked, data in ((1, {}, DATA), (2, {"CopySourceRange": "bytes=2-4"}, b"234")):
        copied = s3.upload_part_copy(**upload.where, PartNumber=number, CopySource=source, **asked)
        etag = copied["CopyPartResult"]["ETag"]
        assert etag == f'"{hashlib.md5(data).hexdigest()}"'
        parts.append({"PartNumber": number, "ETag": etag})
    for wrong_range, code in (
        ("bytes=10-", "InvalidRange"),
        ("bytes=2-10", "InvalidRange"),
        ("bytes=4-2", "InvalidArgument"),
        ("bytes=-2", "InvalidArgument"),
        ("2-4", "InvalidArgument"),
    ):
        wrong = {"PartNumber": 1, "CopySource": source, "CopySourceRange": wrong_range}
        assert code_of(lambda: s3.upload_part_copy(**upload.where, **wrong))[0] == code  # noqa: B023
    upload.complete(parts)
    assert s3.get_object(Bucket=other.id, Key=KEY)["Body"].read() == DATA + b"234"


def test_uploads_are_listed(server: Server, s3: Client, repo: lakefs.Repository) -> None:
    server.branch(repo.id, "feature/x")
    keys = ["feature%2Fx/a", "main/a", "main/a", "main/b&", "main/ü"]
    uploads = [Upload(s3, repo.id, key) for key in keys]
    pages = s3.get_paginator("list_multipart_uploads").paginate(
        Bucket=repo.id, PaginationConfig={"PageSize": 1}
    )
    found = [each for page in pages for each in page.get("Uploads", ())]
    assert [each["Key"] for each in found] == keys
    assert {each["UploadId"] for each in found} == {each.where["UploadId"] for each in uploads}
    for prefix, count in (("main/", 4), ("main/a", 2), ("f", 1), ("feature%2Fx/", 1), ("no/", 0)):
        page = s3.list_multipart_uploads(Bucket=repo.id, Prefix=prefix)
        assert len(page.get("Uploads", ())) == count
    page = s3.list_multipart_uploads(Bucket=repo.id, KeyMarker="main/a")
    assert [each["Key"] for each in page["Uploads"]] == keys[3:]
