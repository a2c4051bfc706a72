"""Each operation of the gateway refuses a request that is forged, too old or changed, that has the
wrong key, or whose body does harm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import lakefs
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.server.s3.call import OPERATIONS
from ebbtide.server.s3.gateway import TOPICS
from ebbtide.server.s3.signing import signing_key
from ebbtide.store.access.keys import Role
from tests.server.s3.chunked import signed_body
from tests.server.s3.conftest import s3_client
from tests.server.s3.test_raw import BOMB, Raw, chunked_headers
from tests.support.server import Server

STREAMED: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
DELETE: Final = b"<Delete><Object><Key>main/a</Key></Object></Delete>"


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


class Lake(Raw):
    """A client on a repository with an object `a`, and an upload in parts of `b`."""

    def __init__(self, server: Server, http: httpx.Client, bucket: str) -> None:
        super().__init__(server, http)
        self.server = server
        self.bucket = bucket
        s3 = s3_client(server)
        s3.put_object(Bucket=bucket, Key="main/a", Body=b"old")
        self.upload = s3.create_multipart_upload(Bucket=bucket, Key="main/b")["UploadId"]

    def made(self, name: str) -> tuple[str, str, bytes, dict[str, str]]:
        """Method, place, body and headers of an operation's request."""
        call = CALLS[name]
        place = call.place.format(b=self.bucket, u=self.upload)
        headers = {"x_amz_copy_source": f"{self.bucket}/main/a"} if call.copies else {}
        return call.method, place, call.body, headers

    def code(self, method: str, place: str, headers: dict[str, Any], body: bytes) -> Any:
        """Sends a request. HEAD has no code, but the status."""
        if method == "HEAD":
            return self.http.head(self.url + place, headers=headers).status_code
        return self.send(method, place, headers, body)

    def require_unchanged(self) -> None:
        """Checks that no refused request did anything."""
        s3 = s3_client(self.server)
        found = s3.list_objects_v2(Bucket=self.bucket, Prefix="main/")["Contents"]
        assert [each["Key"] for each in found] == ["main/a"]
        assert s3.get_object(Bucket=self.bucket, Key="main/a")["Body"].read() == b"old"
        (upload,) = s3.list_multipart_uploads(Bucket=self.bucket)["Uploads"]
        assert upload["UploadId"] == self.upload
        where = {"Bucket": self.bucket, "Key": "main/b", "UploadId": self.upload}
        assert "Parts" not in s3.list_parts(**where)


@pytest.fixture
def ours(plain: Server, lake: lakefs.Repository) -> Iterator[Lake]:
    with httpx.Client(verify=False, timeout=60) as http:
        yield Lake(plain, http, str(lake.id))


def refused(code: str, method: str) -> Any:
    """A refusal as a client sees it: HEAD has the status alone."""
    return 403 if method == "HEAD" else code


def test_every_operation_has_a_call() -> None:
    assert TOPICS
    assert set(CALLS) == set(ROLES)


def test_forged_requests(ours: Lake) -> None:
    for name in CALLS:
        method, place, body, more = ours.made(name)
        headers = ours.signed(method, place, body, **more)
        last = headers["Authorization"][-1]
        headers["Authorization"] = headers["Authorization"][:-1] + ("0" if last != "0" else "1")
        code = ours.code(method, place, headers, body)
        assert code == refused("SignatureDoesNotMatch", method), name
    ours.require_unchanged()


def test_the_secret_of_another_key(ours: Lake) -> None:
    key = ours.key
    ours.key = type(key)(key.access_key_id, ours.server.keys["reader"].secret)
    for name in CALLS:
        method, place, body, more = ours.made(name)
        headers = ours.signed(method, place, body, **more)
        code = ours.code(method, place, headers, body)
        assert code == refused("SignatureDoesNotMatch", method), name
    ours.require_unchanged()


def test_requests_that_are_too_old(ours: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.now(UTC) - timedelta(minutes=16)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: before)
    for name in CALLS:
        method, place, body, more = ours.made(name)
        headers = ours.signed(method, place, body, **more)
        code = ours.code(method, place, headers, body)
        assert code == refused("RequestTimeTooSkewed", method), name
    ours.require_unchanged()


def test_presigned_urls_that_have_expired(ours: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.now(UTC) - timedelta(minutes=2)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: before)
    keys = Credentials(ours.key.access_key_id, ours.key.secret)
    for name in CALLS:
        method, place, body, more = ours.made(name)
        named = {key.replace("_", "-"): value for key, value in more.items()}
        request = AWSRequest(method, ours.url + place, named)
        S3SigV4QueryAuth(keys, "s3", "us-east-1", expires=60).add_auth(request)
        url = urlsplit(request.url)
        code = ours.code(method, f"{url.path}?{url.query}", named, body)
        assert code == refused("AccessDenied", method), name
    ours.require_unchanged()


def test_keys_without_the_role(ours: Lake) -> None:
    """A role is for all repositories of a store: a reader writes to none of them."""
    ours.key = ours.server.keys["reader"]
    wanted = {name: role for name, role in ROLES.items() if not Role.READER.allows(role)}
    assert {"PutObject", "DeleteObjects", "CompleteMultipartUpload", "CopyObject"} <= set(wanted)
    for name in wanted:
        method, place, body, more = ours.made(name)
        assert ours.ask(method, place, body, **more) == "AccessDenied", name
    ours.require_unchanged()


@pytest.mark.parametrize("name", SENDING)
def test_changed_and_repeated_chunks(ours: Lake, name: str) -> None:
    _, place, _, _ = ours.made(name)
    parts = [b"a" * 70_000, b"b" * 70_000]

    def begun(size: int) -> tuple[dict[str, str], list[bytes]]:
        headers = chunked_headers(ours, place, STREAMED, size)
        stamp, seed = headers["X-Amz-Date"], headers["Authorization"].rpartition("=")[2]
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        key = signing_key(ours.key.secret, scope)
        return headers, signed_body(key, stamp, scope, seed, parts)

    headers, chunks = begun(140_000)
    longer, same = begun(210_000)
    changed = chunks[0].replace(b"a" * 70_000, b"a" * 69_999 + b"b")
    for sent, body in (
        (headers, [changed, *chunks[1:]]),
        (headers, [chunks[1], chunks[0], *chunks[2:]]),
        (longer, [same[0], *same]),
    ):
        code = ours.send("PUT", place, sent, b"".join(body))
        assert code == "SignatureDoesNotMatch"
    # A signed body belongs to its own request.
    elsewhere = chunked_headers(ours, f"/{ours.bucket}/main/other", STREAMED, 140_000)
    code = ours.send("PUT", f"/{ours.bucket}/main/other", elsewhere, b"".join(chunks))
    assert code == "SignatureDoesNotMatch"
    ours.require_unchanged()


@pytest.mark.parametrize("name", LISTING)
def test_bodies_of_xml(ours: Lake, name: str) -> None:
    method, place, _, _ = ours.made(name)
    root = {"DeleteObjects": b"Delete"}.get(name, name.removesuffix("Upload").encode() + b"Upload")
    bomb = BOMB.replace(b"Delete", root)
    outside = b'<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><%s>&a;</%s>' % (root, root)
    for body in (bomb, outside, b"<%s>" % root, b"<Other/>", b""):
        assert ours.ask(method, place, body) == "MalformedXML"
    deep = b"<%s>" % root + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</%s>" % root
    assert ours.ask(method, place, deep) == "MalformedXML"
    large = b"<%s>" % root + b" " * (4 * 2**20) + b"</%s>" % root
    assert ours.ask(method, place, large) == "EntityTooLarge"
    ours.require_unchanged()


@pytest.mark.parametrize("name", SENDING)
def test_bodies_that_are_too_large(servers: Any, name: str) -> None:
    server: Server = servers("local", EBBTIDE_SERVER_UPLOAD_MAX="1000")
    bucket = str(server.repository(f"large-{name.lower()}").id)
    with httpx.Client(verify=False, timeout=60) as http:
        ours = Lake(server, http, bucket)
        _, place, _, _ = ours.made(name)
        assert ours.ask("PUT", place, b"a" * 1001) == "EntityTooLarge"
        headers = chunked_headers(ours, place, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", 1001)
        assert ours.send("PUT", place, headers, b"") == "EntityTooLarge"
        # The length of the body is not known before its end.
        request = AWSRequest("PUT", ours.url + place, {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
        signer = S3SigV4Auth(
            Credentials(ours.key.access_key_id, ours.key.secret), "s3", "us-east-1"
        )
        signer.payload = lambda _request: "UNSIGNED-PAYLOAD"
        signer.add_auth(request)
        sent = iter([b"a" * 600, b"a" * 600])
        code = ours.send("PUT", place, dict(request.headers.items()), sent)
        assert code == "EntityTooLarge"
        ours.require_unchanged()
