"""What the gateway keeps of an upload besides its bytes, and gives back: headers, checksums and
metadata of users. Names and letters of metadata are those of lakeFS: `x-amz-meta-Color` is
`X-Amz-Meta-color` in the API."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import lakefs

from ebbtide.doors.s3.object_headers import headers_of, metadata_of
from ebbtide.store.content.entries import Entry
from tests.doors.s3.conftest import Client
from tests.doors.s3.test_multipart import KEY, Upload
from tests.doors.s3.test_objects import code_of
from tests.support.server import Server
from tests.support.world import START

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


def test_what_is_kept_of_an_upload(s3: Client, repo: lakefs.Repository) -> None:
    """By uploads, copies and parts. A user's metadata of the same name is another thing."""
    metadata = {"Color": "blue", "x_y.z-1": "2", "cache-control": "mine"}
    given = {"Metadata": metadata, **CHOSEN}
    where = {"Bucket": repo.id, "Key": "main/a"}
    s3.put_object(**where, Body=b"1", **given)
    s3.copy_object(Bucket=repo.id, Key="main/staged", CopySource=where)
    repo.branch("main").commit("m")
    s3.copy_object(Bucket=repo.id, Key="main/copy", CopySource=where)
    replaced = {"CopySource": where, "MetadataDirective": "REPLACE"}
    s3.copy_object(Bucket=repo.id, Key="main/replaced", **replaced, **given)
    upload = Upload(s3, repo.id, "main/parts", **given)
    upload.complete([upload.part(1, b"1")])
    for path in ("a", "staged", "copy", "replaced", "parts"):
        for read in (s3.get_object, s3.head_object):
            found = read(Bucket=repo.id, Key=f"main/{path}")
            assert chosen(found) == CHOSEN, path
            assert found["Metadata"] == {name.lower(): text for name, text in metadata.items()}
        of_api = repo.branch("main").object(path).stat().metadata
        wanted = {f"X-Amz-Meta-{name.lower()}": text for name, text in metadata.items()}
        assert wanted.items() <= of_api.items(), "the names of lakeFS"
    override = s3.get_object(**where, ResponseCacheControl="no-store")
    assert override["CacheControl"] == "no-store"
    s3.copy_object(**where, **replaced, ContentLanguage="fr")
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


def test_a_checksum_of_the_parts_checksums(s3: Client, bucket: str) -> None:
    name, field, data = "SHA256", "ChecksumSHA256", [b"a" * 1000, b"b" * 10]
    digests = [hashlib.sha256(each).digest() for each in data]
    expected = text(hashlib.sha256(b"".join(digests)).digest()) + "-2"
    upload = Upload(s3, bucket, ChecksumAlgorithm=name)
    assert s3.list_parts(**upload.where)["ChecksumAlgorithm"] == name
    (listed,) = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == (name, "COMPOSITE")
    parts = [upload.part(number, each) for number, each in enumerate(data, 1)]
    parts[0][field] = text(digests[0])
    whole = text(hashlib.sha256(b"".join(data)).digest())
    for wrong in ("AAAA", whole, expected.replace("-2", "-3")):
        assert code_of(lambda: upload.complete(parts, **{field: wrong})) == ("BadDigest", 400)  # noqa: B023
    done = upload.complete(parts, **{field: expected})
    key = upload.where["Key"]
    for found in (
        done,
        s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"),
        s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["Checksum"])["Checksum"],
    ):
        assert (found[field], found["ChecksumType"]) == (expected, "COMPOSITE")
        assert "ChecksumCRC32" not in found
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


def test_metadata_of_the_api_in_s3(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    place = f"/repositories/{repo.id}/branches/main/objects"
    with server.http() as http:
        sent = {"x-lakefs-meta-X-Amz-Meta-Color": "blue", "x-lakefs-internal-client-mtime": "1"}
        answer = http.post(place, params={"path": "a"}, content=b"1", headers=sent)
        assert answer.status_code == 201
        found = s3.head_object(Bucket=repo.id, Key="main/a")
        assert (found["Metadata"], found["MissingMeta"]) == ({"color": "blue"}, 1)
        changed = {"X-Amz-Meta-Color": "röt", "plain": "1"}
        answer = http.put(
            f"{place}/stat/user_metadata", params={"path": "a"}, json={"set": changed}
        )
        assert answer.status_code == 204
    assert repo.branch("main").object("a").stat().metadata == changed
    found = s3.head_object(Bucket=repo.id, Key="main/a")["Metadata"]
    assert found == {"color": "=?UTF-8?B?csO2dA==?=", "plain": "1"}


def entry_with(metadata: Mapping[str, str]) -> Entry:
    return Entry("a", "data/a/b", 1, "x", START, metadata=metadata)


def test_values_in_other_letters() -> None:
    """A client that encodes, as S3's own do, is understood by the API; S3 gives it back encoded."""
    for sent, stored in (
        ("blue", "blue"),
        ("=?UTF-8?B?csO2dA==?=", "röt"),
        ("=?iso-8859-1?Q?r=F6t?=", "röt"),
        ("röt".encode().decode("latin-1"), "röt"),
        ("röt", "röt"),  # bytes of Latin-1
        ("=?UTF-8?Q?blue?=", "=?UTF-8?Q?blue?="),
        ("=?x-unknown?B?csO2dA==?=", "=?x-unknown?B?csO2dA==?="),
        ("=?UTF-8?B?gA==?=", "=?UTF-8?B?gA==?="),
        ("", ""),
    ):
        found = metadata_of({"x-amz-meta-a": sent})
        assert found == {"X-Amz-Meta-a": stored}
        again = headers_of(entry_with(found))["x-amz-meta-a"]
        assert again.isascii()
        assert metadata_of({"x-amz-meta-a": again}) == found


def test_names_that_share_a_header() -> None:
    cases: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        ({"color": "1"}, {"meta-color": "1"}),
        ({"color": "1", "X-Amz-Meta-color": "2"}, {"meta-color": "2", "missing-meta": "1"}),
        (
            {"x-amz-meta-color": "1", "Color": "2", "color": "3"},
            {"meta-color": "1", "missing-meta": "2"},
        ),
        ({"X-Amz-Meta-": "1", "ä": "2", "::lakefs::x": "3"}, {"missing-meta": "3"}),
        ({"c:d": "2", "b": "ö"}, {"meta-b": "=?UTF-8?B?w7Y=?=", "missing-meta": "1"}),
    )
    for metadata, expected in cases:
        headers = headers_of(entry_with(metadata))
        found = {name.removeprefix("x-amz-"): text for name, text in headers.items()}
        shown = {name: text for name, text in found.items() if "meta" in name}
        assert shown == expected
