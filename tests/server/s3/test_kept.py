"""What the gateway keeps of an upload besides its bytes, and gives back: headers and checksums."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import lakefs
import pytest

from tests.server.s3.conftest import Client
from tests.server.s3.test_multipart import KEY, Upload
from tests.server.s3.test_objects import code_of
from tests.support.server import Server

CHOSEN = {
    "CacheControl": "public, max-age=14400",
    "ContentDisposition": 'attachment; filename="a.csv"',
    "ContentEncoding": "gzip",
    "ContentLanguage": "de, en",
    "Expires": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
}


def crc32(*pieces: bytes) -> bytes:
    return zlib.crc32(b"".join(pieces)).to_bytes(4, "big")


def text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def chosen(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in CHOSEN if name in found}


def test_headers_of_an_upload(s3: Client, repo: lakefs.Repository) -> None:
    where = {"Bucket": repo.id, "Key": "main/a"}
    s3.put_object(**where, Body=b"1", Metadata={"cache-control": "mine"}, **CHOSEN)
    repo.branch("main").commit("m")
    source = {"Bucket": repo.id, "Key": "main/a"}
    s3.copy_object(Bucket=repo.id, Key="main/copy", CopySource=source)
    upload = Upload(s3, repo.id, "main/parts", Metadata={"cache-control": "mine"}, **CHOSEN)
    upload.complete([upload.part(1, b"1")])
    for key in ("main/a", "main/copy", "main/parts"):
        for read in (s3.get_object, s3.head_object):
            found = read(Bucket=repo.id, Key=key)
            assert chosen(found) == CHOSEN
            # A user's metadata of the same name is another thing.
            assert found["Metadata"] == {"cache-control": "mine"}
    override = s3.get_object(**where, ResponseCacheControl="no-store")
    assert override["CacheControl"] == "no-store"
    s3.copy_object(**where, CopySource=source, MetadataDirective="REPLACE", ContentLanguage="fr")
    assert chosen(s3.head_object(**where)) == {"ContentLanguage": "fr"}


def test_the_encoding_of_a_body_is_not_kept(s3: Client, bucket: str) -> None:
    for sent, kept in (
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate, gzip"),
        ("aws-chunked, gzip", "gzip"),
        ("gzip,aws-chunked", "gzip"),
        ("aws-chunked", None),
    ):
        s3.put_object(Bucket=bucket, Key="main/a", Body=b"1", ContentEncoding=sent)
        found = s3.head_object(Bucket=bucket, Key="main/a").get("ContentEncoding")
        assert found == kept, sent


def test_headers_that_the_api_set(s3: Client, server: Server, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"1")
    place = f"/repositories/{bucket}/branches/main/objects/stat/user_metadata"
    wanted = {
        "http:cache-control": "no-cache",
        "http:expires": "a\r\nb: c",
        "http:x": "1",
        "s3:checksum:crc32": "a\r\nb",
    }
    with server.http() as http:
        answer = http.put(place, params={"path": "a"}, json={"set": wanted})
        assert answer.status_code == 204
    found = s3.head_object(Bucket=bucket, Key="main/a", ChecksumMode="ENABLED")
    assert chosen(found) == {"CacheControl": "no-cache"}
    assert found["MissingMeta"] == 1
    # The bytes are the same, and so is their checksum.
    assert found["ChecksumCRC32"] == text(crc32(b"1"))


def test_the_checksum_of_an_upload(s3: Client, repo: lakefs.Repository) -> None:
    for name in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
        put = s3.put_object(Bucket=repo.id, Key="main/a", Body=b"data", ChecksumAlgorithm=name)
        where = {"Bucket": repo.id, "Key": "main/a"}
        copy = {"Bucket": repo.id, "Key": "main/b"}
        s3.copy_object(**copy, CopySource=where, MetadataDirective="REPLACE")
        sum_of = f"Checksum{name}"
        for place in (where, copy):
            assert sum_of not in s3.head_object(**place)
            found = s3.head_object(**place, ChecksumMode="ENABLED")
            assert found[sum_of] == put[sum_of]
            assert found["ChecksumSHA256"] == text(hashlib.sha256(b"data").digest())
            assert (found["ChecksumType"], found["Metadata"]) == ("FULL_OBJECT", {})
            attributes = s3.get_object_attributes(**place, ObjectAttributes=["Checksum"])
            assert attributes["Checksum"][sum_of] == put[sum_of]
        assert repo.branch("main").object("b").stat().metadata == {}


def test_the_same_bytes_are_no_change(
    s3: Client, client_of: Callable[..., Client], repo: lakefs.Repository
) -> None:
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"1", ChecksumAlgorithm="CRC32")
    repo.branch("main").commit("m")
    plain = client_of(request_checksum_calculation="when_required")
    plain.put_object(Bucket=repo.id, Key="main/a", Body=b"1")
    assert list(repo.branch("main").uncommitted()) == []
    plain.put_object(Bucket=repo.id, Key="main/a", Body=b"1", CacheControl="no-cache")
    assert [each.path for each in repo.branch("main").uncommitted()] == ["a"]


@pytest.mark.parametrize("name", ["CRC32", "SHA256"])
def test_a_checksum_of_the_parts_checksums(s3: Client, bucket: str, name: str) -> None:
    data = [b"a" * 1000, b"b" * 10]

    def digest(*pieces: bytes) -> bytes:
        whole = b"".join(pieces)
        return crc32(whole) if name == "CRC32" else hashlib.sha256(whole).digest()

    expected = text(digest(*map(digest, data))) + "-2"
    field = f"Checksum{name}"
    upload = Upload(s3, bucket, ChecksumAlgorithm=name)
    assert s3.list_parts(**upload.where)["ChecksumAlgorithm"] == name
    (listed,) = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == (name, "COMPOSITE")
    parts = [upload.part(number, each) for number, each in enumerate(data, 1)]
    parts[0][field] = text(digest(data[0]))
    for wrong in ("AAAA", text(digest(*data)), expected.replace("-2", "-3")):
        assert code_of(lambda: upload.complete(parts, **{field: wrong})) == ("BadDigest", 400)  # noqa: B023
    done = upload.complete(parts, **{field: expected})
    key = upload.where["Key"]
    for found in (
        done,
        s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"),
        s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["Checksum"])["Checksum"],
    ):
        assert (found[field], found["ChecksumType"]) == (expected, "COMPOSITE")
        assert not {"ChecksumCRC32", "ChecksumSHA256"} - {field} & found.keys()
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"".join(data)
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == {}


def test_other_checksums_of_parts(s3: Client, bucket: str) -> None:
    """Of the whole; of which only the last request says the name; and those that do not exist."""
    where = {"Bucket": bucket, "Key": KEY}
    upload = Upload(s3, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    parts = [upload.part(1, b"1"), upload.part(2, b"2")]
    assert code_of(lambda: upload.complete(parts, ChecksumCRC32="AAAAAA==")) == ("BadDigest", 400)
    upload.complete(parts)
    found = s3.head_object(**where, ChecksumMode="ENABLED")
    assert (found["ChecksumCRC32"], found["ChecksumType"]) == (text(crc32(b"12")), "FULL_OBJECT")
    assert found["ChecksumSHA256"]

    upload = Upload(s3, bucket)
    composite = text(crc32(crc32(b"1"), crc32(b"2"))) + "-2"
    parts = [upload.part(1, b"1"), upload.part(2, b"2")]
    done = upload.complete(parts, ChecksumCRC32=composite)
    assert (done["ChecksumCRC32"], done["ChecksumType"]) == (composite, "COMPOSITE")
    for algorithm, kind in (("MD4", "COMPOSITE"), ("CRC64NVME", "COMPOSITE"), ("CRC32", "x")):
        named = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind}
        assert code_of(lambda: Upload(s3, bucket, **named)) == ("InvalidRequest", 400)  # noqa: B023


def test_attributes(s3: Client, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"123")["ETag"]
    where = {"Bucket": bucket, "Key": "main/a"}
    names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    found = s3.get_object_attributes(**where, ObjectAttributes=names)
    assert (found["ETag"], found["ObjectSize"]) == (etag.strip('"'), 3)
    assert found["StorageClass"] == "STANDARD"
    assert found["LastModified"] == s3.head_object(**where)["LastModified"]
    assert "ObjectParts" not in found
    some = s3.get_object_attributes(**where, ObjectAttributes=["ObjectSize"])
    assert (some["ObjectSize"], some.get("ETag"), some.get("Checksum")) == (3, None, None)
    for key, asked, code in (
        ("main/a", "Color", "InvalidArgument"),
        ("main/no", "ETag", "NoSuchKey"),
    ):
        wrong = {"Bucket": bucket, "Key": key, "ObjectAttributes": [asked]}
        assert code_of(lambda: s3.get_object_attributes(**wrong))[0] == code  # noqa: B023
