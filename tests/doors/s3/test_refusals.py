"""Requests that no client would send: forged, too old or changed, of the wrong key, or with a body
that does harm. botocore signs them, and then they are changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from xml.etree import ElementTree

import httpx
import lakefs
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.doors.s3.call import OPERATIONS
from ebbtide.doors.s3.errors import STATUS_OF_CODE
from ebbtide.doors.s3.gateway import TOPICS
from ebbtide.doors.s3.signatures import UNSIGNED, signing_key
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.doors.s3.chunked import signed_body, unsigned_body
from tests.doors.s3.conftest import s3_client
from tests.support.server import Key, Server

DELETE: Final = b"<Delete><Object><Key>main/a</Key></Object></Delete>"
NO_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@dataclass(frozen=True)
class Call:
    """A right request for one operation. `{u}` in its place stands for the id of an upload."""

    method: str
    place: str
    body: bytes = b""
    takes: str = ""
    """What the body is: bytes or XML."""
    copies: bool = False


CALLS: Final = {
    "ListBuckets": Call("GET", "/"),
    "HeadBucket": Call("HEAD", "/{b}"),
    "GetBucketLocation": Call("GET", "/{b}?location"),
    "GetBucketVersioning": Call("GET", "/{b}?versioning"),
    "CreateBucket": Call("PUT", "/{b}"),
    "ListObjects": Call("GET", "/{b}?list-type=2&prefix=main%2F"),
    "GetObject": Call("GET", "/{b}/main/a"),
    "HeadObject": Call("HEAD", "/{b}/main/a"),
    "GetObjectAttributes": Call("GET", "/{b}/main/a?attributes"),
    "PutObject": Call("PUT", "/{b}/main/a", b"new", "bytes"),
    "CopyObject": Call("PUT", "/{b}/main/copy", copies=True),
    "DeleteObject": Call("DELETE", "/{b}/main/a"),
    "DeleteObjects": Call("POST", "/{b}?delete", DELETE, "xml"),
    "CreateMultipartUpload": Call("POST", "/{b}/main/b?uploads"),
    "UploadPart": Call("PUT", "/{b}/main/b?partNumber=1&uploadId={u}", b"new", "bytes"),
    "UploadPartCopy": Call("PUT", "/{b}/main/b?partNumber=1&uploadId={u}", copies=True),
    "ListParts": Call("GET", "/{b}/main/b?uploadId={u}"),
    "ListMultipartUploads": Call("GET", "/{b}?uploads"),
    "CompleteMultipartUpload": Call("POST", "/{b}/main/b?uploadId={u}", b"<a/>", "xml"),
    "AbortMultipartUpload": Call("DELETE", "/{b}/main/b?uploadId={u}"),
}
ROLES: Final = {each.name: each.role for each in OPERATIONS.values()}
SENDING: Final = [name for name, call in CALLS.items() if call.takes == "bytes"]
LISTING: Final = [name for name, call in CALLS.items() if call.takes == "xml"]


class Lake:
    """Signs and sends requests to a repository with an object `a` and an upload of `b`."""

    def __init__(self, server: Server, http: httpx.Client, bucket: str) -> None:
        self.url, self.http, self.bucket = server.url, http, bucket
        self.server = server
        self.key = server.keys["admin"]
        self.message = ""
        """Of the last error."""
        self.s3 = s3_client(server)
        self.s3.put_object(Bucket=bucket, Key="main/a", Body=b"old")
        self.upload = self.s3.create_multipart_upload(Bucket=bucket, Key="main/b")["UploadId"]

    def made(self, name: str) -> tuple[str, str, bytes, dict[str, str]]:
        """Method, place, body and headers of an operation's request."""
        call = CALLS[name]
        place = call.place.format(b=self.bucket, u=self.upload)
        headers = {"x_amz_copy_source": f"{self.bucket}/main/a"} if call.copies else {}
        return call.method, place, call.body, headers

    def _sign(self, signer: Any, method: str, place: str, body: bytes, names: Any) -> AWSRequest:
        named = {name.replace("_", "-"): value for name, value in names.items()}
        request = AWSRequest(method, self.url + place, named, data=body)
        signer.add_auth(request)
        return request

    def signed(
        self, method: str, place: str, body: bytes = b"", *, content_hash: str = "", **headers: str
    ) -> dict[str, str]:
        """The headers of a request, with its signature. Names have underscores."""
        signer = S3SigV4Auth(Credentials(*self.key.pair), "s3", "us-east-1")
        if content_hash:
            signer.payload = lambda _request: content_hash
        return dict(self._sign(signer, method, place, body, headers).headers.items())

    def presigned(self, method: str, place: str, **headers: str) -> str:
        """The place of a URL that is signed for a minute."""
        signer = S3SigV4QueryAuth(Credentials(*self.key.pair), "s3", "us-east-1", expires=60)
        return str(self._sign(signer, method, place, b"", headers).url).removeprefix(self.url)

    def chunked(self, place: str, kind: str, size: int, **headers: str) -> dict[str, str]:
        """The headers of a request whose body comes in chunks."""
        more = {"x_amz_decoded_content_length": str(size), "Content_Encoding": "aws-chunked"}
        return self.signed("PUT", place, b"", content_hash=kind, **more | headers)

    def in_chunks(self, place: str, parts: list[bytes]) -> tuple[dict[str, str], list[bytes]]:
        """The headers, and the signed chunks of the body."""
        headers = self.chunked(place, NO_TRAILER, sum(map(len, parts)))
        stamp, seed = headers["X-Amz-Date"], headers["Authorization"].rpartition("=")[2]
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        return headers, signed_body(signing_key(self.key.secret, scope), stamp, scope, seed, parts)

    def send(self, method: str, place: str, headers: dict[str, Any], content: Any = b"") -> Any:
        """One request; code and status of the error, or the status. HEAD has the status alone."""
        answer = self.http.request(method, self.url + place, headers=headers, content=content)
        assert "x-amz-request-id" in answer.headers
        if answer.status_code < 400 or method == "HEAD":
            return answer.status_code
        root = ElementTree.fromstring(answer.content)
        code = root.findtext("Code") or ""
        assert STATUS_OF_CODE[code] == answer.status_code
        self.message = root.findtext("Message") or ""
        assert self.message
        assert root.findtext("RequestId") == answer.headers["x-amz-request-id"]
        return code

    def ask(self, method: str, place: str, body: bytes = b"", **headers: str) -> Any:
        return self.send(method, place, self.signed(method, place, body, **headers), body)

    def read(self, place: str) -> httpx.Response:
        return self.http.get(self.url + place, headers=self.signed("GET", place))

    def require_unchanged(self) -> None:
        """Checks that no refused request did anything."""
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix="main/")["Contents"]
        assert [each["Key"] for each in found] == ["main/a"]
        assert self.s3.get_object(Bucket=self.bucket, Key="main/a")["Body"].read() == b"old"
        (upload,) = self.s3.list_multipart_uploads(Bucket=self.bucket)["Uploads"]
        assert upload["UploadId"] == self.upload
        where = {"Bucket": self.bucket, "Key": "main/b", "UploadId": self.upload}
        assert "Parts" not in self.s3.list_parts(**where)


@pytest.fixture
def ours(plain: Server, lake: lakefs.Repository) -> Iterator[Lake]:
    with httpx.Client(verify=False, timeout=60) as http:
        yield Lake(plain, http, str(lake.id))


def test_requests_that_prove_nothing(ours: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each operation: forged, signed with another secret, too old, and an expired URL."""
    assert TOPICS, "which fill the table of operations"
    assert set(CALLS) == set(ROLES)
    right, other = ours.key, Key(ours.key.access_key_id, ours.server.keys["reader"].secret)
    before = datetime.now(UTC) - timedelta(minutes=16)
    for name in CALLS:
        method, place, body, more = ours.made(name)
        forged = ours.signed(method, place, body, **more)
        last = "1" if forged["Authorization"].endswith("0") else "0"
        forged["Authorization"] = forged["Authorization"][:-1] + last
        ours.key = other
        by_other = ours.signed(method, place, body, **more)
        ours.key = right
        with monkeypatch.context() as patched:
            patched.setattr("botocore.auth.get_current_datetime", lambda: before)
            old = ours.signed(method, place, body, **more)
            presigned = ours.presigned(method, place, **more)
        named = {key.replace("_", "-"): value for key, value in more.items()}
        for at, headers, code in (
            (place, forged, "SignatureDoesNotMatch"),
            (place, by_other, "SignatureDoesNotMatch"),
            (place, old, "RequestTimeTooSkewed"),
            (presigned, named, "AccessDenied"),
        ):
            expected = 403 if method == "HEAD" else code
            assert ours.send(method, at, headers, body) == expected, (name, code)
    ours.require_unchanged()


def test_a_request_that_somebody_changed(ours: Lake) -> None:
    """`test_signing.py` has changes of all that is signed."""
    place = f"/{ours.bucket}/main/a"
    headers = ours.signed("PUT", place, b"data")
    header, key = headers["Authorization"], ours.key.access_key_id
    for change, content, code in (
        ({}, b"date", "XAmzContentSHA256Mismatch"),
        ({"Authorization": header.replace(key, "EBBTUNKNOWN")}, b"data", "InvalidAccessKeyId"),
        (
            {"Authorization": header.replace(key, "EBBT%00é").encode("latin-1")},
            b"data",
            "InvalidAccessKeyId",
        ),
    ):
        assert ours.send("PUT", place, {**headers, **change}, content) == code, change
    ours.require_unchanged()
    assert ours.send("PUT", place, headers, b"data") == 200


def test_a_revoked_key(ours: Lake) -> None:
    with Store.open(ours.server.directory, settings=ours.server.settings) as store:
        made = store.keys.create(Role.WRITER, name="s3")
        ours.key = Key(made.key.access_key_id, made.secret)
        assert ours.ask("GET", f"/{ours.bucket}?location") == 200
        store.keys.revoke(made.key.access_key_id)
    assert ours.ask("GET", f"/{ours.bucket}?location") == "InvalidAccessKeyId"


def test_keys_without_the_role(ours: Lake) -> None:
    """A role is for all repositories of a store: a reader writes to none of them."""
    ours.key = ours.server.keys["reader"]
    wanted = {name for name, role in ROLES.items() if not Role.READER.allows(role)}
    assert {"PutObject", "DeleteObjects", "CompleteMultipartUpload", "CopyObject"} <= wanted
    assert not wanted & {"GetObject", "ListObjects", "ListParts"}
    for name in ROLES:
        method, place, body, more = ours.made(name)
        is_refused = ours.ask(method, place, body, **more) == "AccessDenied"
        assert is_refused == (name in wanted), name
    ours.require_unchanged()


def test_requests_that_are_refused(ours: Lake) -> None:
    for method, place, code in (
        ("PATCH", "/{b}/main/a", "MethodNotAllowed"),
        ("POST", "/", "MethodNotAllowed"),
        ("PUT", "/{b}?versioning", "NotImplemented"),
        ("GET", "/{b}/main/no?partNumber=1", "NoSuchKey"),
        ("GET", "/{b}/main/%ff", "InvalidURI"),
        ("GET", "/{b}/main/%00", "InvalidURI"),
        ("GET", "/{b}?prefix=%00", "InvalidURI"),
        ("GET", "/{b}?prefix=a&prefix=b", "InvalidArgument"),
        ("GET", "/{b}?list-type=3", "InvalidArgument"),
        ("GET", "/{b}?max-keys=x", "InvalidArgument"),
        ("GET", "/{b}?encoding-type=x", "InvalidArgument"),
        ("GET", "/{b}?uploads&delimiter=/", "NotImplemented"),
        ("GET", "/{b}//main/a", "NoSuchKey"),
        ("PUT", "/{b}/main/a?uploadId=x", "InvalidArgument"),
        ("GET", "/api/v1/repositories", "NoSuchBucket"),
    ):
        assert ours.ask(method, place.format(b=ours.bucket)) == code, (method, place)
    refusals: tuple[tuple[dict[str, str], str], ...] = (
        ({"x_amz_storage_class": "GLACIER"}, "InvalidStorageClass"),
        ({"Content_MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "BadDigest"),
        ({"x_amz_checksum_crc32": "AAAAAA=="}, "BadDigest"),
        ({"x_amz_meta_a": "x" * 17_000}, "InvalidArgument"),
        ({"x_amz_copy_source": "x"}, "InvalidArgument"),
        ({"x_amz_copy_source": "b/main/a?versionId=1"}, "NotImplemented"),
        ({"x_amz_copy_source": "%ff/main/a"}, "InvalidURI"),
        ({"x_amz_copy_source": "b/main/a", "x_amz_metadata_directive": "X"}, "InvalidArgument"),
    )
    for headers, code in refusals:
        assert ours.ask("PUT", f"/{ours.bucket}/main/a", b"data", **headers) == code, headers
    for header, value in (
        ("x_amz_if_match_size", "many"),
        ("x_amz_if_match_last_modified_time", "yesterday"),
        ("x_amz_if_match_last_modified_time", "2026-01-01T00:00:00"),
    ):
        code = ours.ask("DELETE", f"/{ours.bucket}/main/a", b"", **{header: value})
        assert code == "InvalidArgument", value
    assert ours.ask("HEAD", f"/{ours.bucket}?list-type=2") == 200
    ours.require_unchanged()


def test_requests_go_where_their_signature_says(ours: Lake) -> None:
    """The same path is the API's, the pages' or a bucket's."""
    place = f"{ours.url}/{ours.bucket}/main/a"
    ours.ask("GET", f"/{ours.bucket}?location")
    with ours.server.http() as http, ours.server.http(None) as stranger:
        assert http.get("/repositories").status_code == 200
        assert http.get(place).status_code == 404
        assert stranger.get(place).status_code == 401
        assert 'route="s3:GetBucketLocation"' in http.get("/metrics").text


def test_bodies_in_signed_chunks(ours: Lake) -> None:
    """`test_payload.py` has each way to change them."""
    parts = [b"a" * 70_000, b"b" * 70_000]
    for name in SENDING:
        _, place, _, _ = ours.made(name)
        headers, chunks = ours.in_chunks(place, parts)
        swapped = b"".join([chunks[1], chunks[0], *chunks[2:]])
        assert ours.send("PUT", place, headers, swapped) == "SignatureDoesNotMatch"
        # A signed body belongs to its own request.
        other = f"/{ours.bucket}/main/other"
        elsewhere = ours.chunked(other, NO_TRAILER, 140_000)
        assert ours.send("PUT", other, elsewhere, b"".join(chunks)) == "SignatureDoesNotMatch"
    ours.require_unchanged()
    place = f"/{ours.bucket}/main/a"
    headers, chunks = ours.in_chunks(place, parts)
    assert ours.send("PUT", place, headers, b"".join(chunks)) == 200
    found = ours.read(place)
    assert found.content == b"".join(parts)
    assert found.headers["etag"] == f'"{hashlib.md5(found.content).hexdigest()}"'


def test_bodies_in_unsigned_chunks(ours: Lake) -> None:
    place = f"/{ours.bucket}/main/a"
    headers = ours.chunked(place, TRAILER, 9, x_amz_trailer="x-amz-checksum-crc32")
    body = b"".join(unsigned_body([b"12345", b"6789"], {"x-amz-checksum-crc32": "y/Q5Jg=="}))
    for old, new in ((b"6789", b"6780"), (b"y/Q5", b"y/Q6")):
        assert ours.send("PUT", place, headers, body.replace(old, new)) == "BadDigest"
    ours.require_unchanged()
    for sent in (body, iter([body[:7], body[7:]])):
        assert ours.send("PUT", place, headers, sent) == 200


def test_bodies_of_xml(ours: Lake) -> None:
    for name in LISTING:
        method, place, _, _ = ours.made(name)
        root = b"Delete" if name == "DeleteObjects" else b"CompleteMultipartUpload"
        outside = b'<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><%s>&a;</%s>'
        for body in (
            outside % (root, root),
            b"<%s>" % root,
            b"<Other/>",
            b"",
            b"\xff\xfe",
            b'<?xml version="1.0" encoding="no-such"?><%s/>' % root,
            b"<%s><Object/></%s>" % (root, root),
            b"<%s><Object><Key></Key></Object></%s>" % (root, root),
            b"<%s>" % root + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</%s>" % root,
        ):
            assert ours.ask(method, place, body) == "MalformedXML", body[:100]
        large = b"<%s>" % root + b" " * (4 * 2**20) + b"</%s>" % root
        assert ours.ask(method, place, large) == "EntityTooLarge"
    ours.require_unchanged()


def test_bodies_that_are_too_large(servers: Any) -> None:
    server: Server = servers("local", EBBTIDE_SERVER_UPLOAD_MAX="1000")
    with httpx.Client(verify=False, timeout=60) as http:
        ours = Lake(server, http, str(server.repository("large").id))
        for name in SENDING:
            _, place, _, _ = ours.made(name)
            assert ours.ask("PUT", place, b"a" * 1001) == "EntityTooLarge"
            headers = ours.chunked(place, TRAILER, 1001)
            assert ours.send("PUT", place, headers) == "EntityTooLarge"
            # The length of the body is not known before its end.
            headers = ours.signed("PUT", place, content_hash=UNSIGNED)
            sent = iter([b"a" * 600, b"a" * 600])
            assert ours.send("PUT", place, headers, sent) == "EntityTooLarge"
        ours.require_unchanged()


def test_hosts_of_buckets(servers: Any) -> None:
    server: Server = servers("local", EBBTIDE_S3_DOMAIN="s3.example")
    with httpx.Client(verify=False) as http:
        ours = Lake(server, http, str(server.repository("virtual-lake").id))
        for host, place, status in (
            ("virtual-lake.s3.example", "/main/a", 200),
            ("virtual-lake.S3.example:80", "/main/a", 200),
            ("s3.example", "/virtual-lake/main/a", 200),
            ("virtual-lake.elsewhere", "/virtual-lake/main/a", 200),
            ("no-lake.s3.example", "/main/a", 404),
        ):
            headers = ours.signed("GET", place, Host=host)
            assert http.get(server.url + place, headers=headers).status_code == status, host
