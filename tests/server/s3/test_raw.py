"""Requests that no client would send: signed by botocore, and then changed."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
import lakefs
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.server.s3.errors import STATUS_OF_CODE
from ebbtide.server.s3.signing import signing_key
from tests.server.s3.chunked import signed_body, unsigned_body
from tests.support.server import Key, Server

BOMB: Final = (
    b'<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(
        f'<!ENTITY {name} "{f"&{before};" * 10}">'.encode()
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + b"]><Delete><Object><Key>&i;</Key></Object></Delete>"
)


class Raw:
    """A client that signs what it is given, and sends what it is given."""

    def __init__(self, server: Server, http: httpx.Client) -> None:
        self.url = server.url
        self.http = http
        self.key = server.keys["admin"]

    def signed(self, method: str, place: str, body: bytes = b"", **headers: str) -> dict[str, str]:
        """The headers of a request, with its signature. Names have underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = AWSRequest(method, self.url + place, named, data=body)
        keys = Credentials(self.key.access_key_id, self.key.secret)
        S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
        return dict(request.headers.items())

    def send(self, method: str, place: str, headers: dict[str, Any], content: Any = b"") -> Any:
        """One request; code and status of the error, or the status."""
        answer = self.http.request(method, self.url + place, headers=headers, content=content)
        assert "x-amz-request-id" in answer.headers
        if answer.status_code < 400:
            return answer.status_code
        root = ElementTree.fromstring(answer.content)
        code = root.findtext("Code") or ""
        assert STATUS_OF_CODE[code] == answer.status_code
        assert root.findtext("Message")
        assert root.findtext("RequestId") == answer.headers["x-amz-request-id"]
        return code

    def ask(self, method: str, place: str, body: bytes = b"", **headers: str) -> Any:
        """Signs a request and sends it."""
        return self.send(method, place, self.signed(method, place, body, **headers), body)


@pytest.fixture
def raw(plain: Server) -> Iterator[Raw]:
    with httpx.Client(verify=False, timeout=60) as http:
        yield Raw(plain, http)


@pytest.fixture
def lake_name(lake: lakefs.Repository) -> str:
    return str(lake.id)


def test_a_request_that_somebody_changed(raw: Raw, lake_name: str) -> None:
    place = f"/{lake_name}/main/a"
    headers = raw.signed("PUT", place, b"data")
    assert raw.send("PUT", place, headers, b"data") == 200
    assert raw.send("PUT", place, headers, b"date") == "XAmzContentSHA256Mismatch"
    assert raw.send("PUT", place + "b", headers, b"data") == "SignatureDoesNotMatch"
    assert raw.send("PUT", place + "?acl", headers, b"data") == "SignatureDoesNotMatch"
    assert raw.send("POST", place, headers, b"data") == "SignatureDoesNotMatch"
    more = headers | {"x-amz-meta-a": "b"}
    assert raw.send("PUT", place, more, b"data") == "AccessDenied"
    old = headers | {"X-Amz-Date": "20200101T000000Z"}
    assert raw.send("PUT", place, old, b"data") == "RequestTimeTooSkewed"
    header = headers["Authorization"]
    other = header.replace(raw.key.access_key_id, "EBBTUNKNOWN")
    unknown = raw.send("PUT", place, headers | {"Authorization": other}, b"data")
    assert unknown == "InvalidAccessKeyId"
    odd = header.replace(raw.key.access_key_id, "EBBT%00é")
    unknown = raw.send(
        "PUT",
        place,
        headers | {"Authorization": odd.encode("latin-1")},
        b"data",
    )
    assert unknown == "InvalidAccessKeyId"
    assert raw.send("GET", place, {"Authorization": "AWS4-HMAC-SHA256"}) == (
        "AuthorizationHeaderMalformed"
    )


def test_a_revoked_key(raw: Raw, plain: Server, lake_name: str) -> None:
    made = plain.command("key", "create", "--role", "writer", "--name", "s3", "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    key = found["access_key_id"]
    raw.key = Key(key, found["secret_access_key"])
    assert raw.ask("GET", f"/{lake_name}?location") == 200
    assert plain.command("key", "revoke", key, "--yes").returncode == 0
    assert raw.ask("GET", f"/{lake_name}?location") == "InvalidAccessKeyId"


def test_requests_that_are_refused(raw: Raw, lake_name: str) -> None:
    for method, place, code in (
        ("GET", "/{b}?acl", "NotImplemented"),
        ("PUT", "/{b}?versioning", "NotImplemented"),
        ("POST", "/{b}", "MethodNotAllowed"),
        ("PATCH", "/{b}/main/a", "MethodNotAllowed"),
        ("OPTIONS", "/{b}/main/a", "MethodNotAllowed"),
        ("POST", "/", "MethodNotAllowed"),
        ("POST", "/{b}/main/a?select&select-type=2", "NotImplemented"),
        ("GET", "/{b}/main/a?versionId=1", "NotImplemented"),
        ("GET", "/{b}/main/a?partNumber=1", "NoSuchKey"),
        ("GET", "/{b}/main/%ff", "InvalidURI"),
        ("GET", "/{b}/main/%00", "InvalidURI"),
        ("GET", "/{b}?prefix=%00", "InvalidURI"),
        ("GET", "/{b}?prefix=a&prefix=b", "InvalidArgument"),
        ("GET", "/{b}?list-type=3", "InvalidArgument"),
        ("GET", "/{b}?max-keys=x", "InvalidArgument"),
        ("GET", "/{b}?encoding-type=x", "InvalidArgument"),
        ("GET", "/{b}?uploads&delimiter=/", "NotImplemented"),
        ("GET", "/{b}/main/..%2fa", "NoSuchKey"),
        ("GET", "/{b}//main/a", "NoSuchKey"),
        ("PUT", "/{b}/main/a?uploadId=x", "InvalidArgument"),
        ("PUT", "/{b}/main/a?uploadId=x&partNumber=1", "NoSuchUpload"),
        ("DELETE", "/{b}/main/a?uploadId=x", "NoSuchUpload"),
        ("GET", "/api/v1/repositories", "NoSuchBucket"),
        ("GET", "/no-such-bucket-/main/a", "NoSuchBucket"),
    ):
        assert raw.ask(method, place.format(b=lake_name)) == code, (method, place)


def test_writes_that_are_refused(raw: Raw, lake_name: str) -> None:
    refusals: tuple[tuple[dict[str, str], str], ...] = (
        ({"x_amz_storage_class": "GLACIER"}, "InvalidStorageClass"),
        ({"x_amz_server_side_encryption": "AES256"}, "NotImplemented"),
        ({"x_amz_tagging": "a=b"}, "NotImplemented"),
        ({"x_amz_object_lock_mode": "GOVERNANCE"}, "NotImplemented"),
        ({"Content_MD5": "x"}, "InvalidDigest"),
        ({"Content_MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "BadDigest"),
        ({"x_amz_checksum_crc32": "AAAAAA=="}, "BadDigest"),
        ({"x_amz_meta_a": "x" * 17_000}, "InvalidArgument"),
        ({"If_Match": "x", "If_None_Match": "*"}, "InvalidArgument"),
        ({"x_amz_copy_source": "x"}, "InvalidArgument"),
        ({"x_amz_copy_source": "b/main/a?versionId=1"}, "NotImplemented"),
        ({"x_amz_copy_source": "%ff/main/a"}, "InvalidURI"),
        ({"x_amz_copy_source": "b/main/a", "x_amz_metadata_directive": "X"}, "InvalidArgument"),
    )
    for headers, code in refusals:
        assert raw.ask("PUT", f"/{lake_name}/main/a", b"data", **headers) == code, headers
    assert raw.ask("HEAD", f"/{lake_name}?list-type=2") == 200
    assert raw.ask("GET", f"/{lake_name}/main/a") == "NoSuchKey"


def test_bodies_that_are_no_lists(raw: Raw, lake_name: str) -> None:
    for body in (
        b"x",
        b"<Delete>",
        b"<Delete><Object/></Delete>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b'<?xml version="1.0" encoding="no-such"?><Delete/>',
        b"\xff\xfe",
    ):
        assert raw.ask("POST", f"/{lake_name}?delete", body) == "MalformedXML", body


def test_requests_go_where_their_signature_says(raw: Raw, plain: Server, lake_name: str) -> None:
    """The same path is the API's, the pages' or a bucket's."""
    with plain.http() as http:
        assert http.get(plain.url + "/api/v1/repositories").status_code == 200
        assert http.get(plain.url + f"/{lake_name}/main/a").status_code == 404
    with plain.http(None) as http:
        assert http.get(plain.url + f"/{lake_name}/main/a").status_code == 401
    with plain.http() as http:
        text = http.get("/metrics").text
    raw.ask("GET", f"/{lake_name}?location")
    with plain.http() as http:
        assert 'route="s3:GetBucketLocation"' in http.get("/metrics").text, text


def test_the_rest_of_a_refused_body_is_no_request(plain: Server, raw: Raw, lake_name: str) -> None:
    """A client that waits for `100 Continue` and is refused sends no body. Its next bytes are a
    request of its own, or are not read at all."""
    url = urlsplit(plain.url)
    place = f"/{lake_name}/nobody/a"
    headers = raw.signed("PUT", place, b"d", Content_Length="1", Expect="100-continue")
    headers |= {"Host": url.netloc, "X-Amz-Date": "20200101T000000Z"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        connection.sendall(f"PUT {place} HTTP/1.1\r\n{head}\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"connection: close" in answer.lower()


def chunked_headers(raw: Raw, place: str, kind: str, size: int, **more: str) -> dict[str, str]:
    """Signs a request whose body comes in chunks. botocore signs the hash that a header gives."""
    request = AWSRequest(
        "PUT",
        raw.url + place,
        {
            "X-Amz-Content-SHA256": kind,
            "x-amz-decoded-content-length": str(size),
            "Content-Encoding": "aws-chunked",
        }
        | {name.replace("_", "-"): value for name, value in more.items()},
    )
    keys = Credentials(raw.key.access_key_id, raw.key.secret)
    signer = S3SigV4Auth(keys, "s3", "us-east-1")
    signer.payload = lambda _request: kind
    signer.add_auth(request)
    return dict(request.headers.items())


def test_bodies_in_signed_chunks(raw: Raw, lake_name: str) -> None:
    for size in (0, 5, 3_000_000):
        place, data = f"/{lake_name}/main/a", bytes(size)
        headers = chunked_headers(raw, place, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", size)
        seed = headers["Authorization"].rpartition("=")[2]
        stamp = headers["X-Amz-Date"]
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        parts = [data[start : start + 65_536] for start in range(0, size, 65_536)]
        key = signing_key(raw.key.secret, scope)
        chunks = signed_body(key, stamp, scope, seed, parts)
        assert raw.send("PUT", place, headers, b"".join(chunks)) == 200
        found = raw.http.get(raw.url + place, headers=raw.signed("GET", place))
        assert found.content == data
        assert found.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
        if size > 100_000:
            wrong = b"".join([chunks[1], chunks[0], *chunks[2:]])
            assert raw.send("PUT", place + "2", headers, wrong) == "SignatureDoesNotMatch"
            assert raw.send("PUT", place, headers, wrong) == "SignatureDoesNotMatch"
            assert raw.send("PUT", place, headers, b"".join(chunks[:-2])) == "IncompleteBody"
            found = raw.http.get(raw.url + place, headers=raw.signed("GET", place))
            assert found.content == data


def test_bodies_in_unsigned_chunks(raw: Raw, lake_name: str) -> None:
    place = f"/{lake_name}/main/a"
    kind, trailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", {"x-amz-checksum-crc32": "y/Q5Jg=="}
    headers = chunked_headers(raw, place, kind, 9, x_amz_trailer="x-amz-checksum-crc32")
    body = b"".join(unsigned_body([b"12345", b"6789"], trailer))
    assert raw.send("PUT", place, headers, body) == 200
    assert raw.send("PUT", place, headers, body.replace(b"6789", b"6780")) == "BadDigest"
    assert raw.send("PUT", place, headers, body.replace(b"y/Q5", b"y/Q6")) == "BadDigest"
    sent = iter([body[:7], body[7:]])
    assert raw.send("PUT", place, headers, sent) == 200


def test_hosts_of_buckets(servers: Any) -> None:
    server: Server = servers("local", EBBTIDE_S3_DOMAIN="s3.example")
    lake = server.repository("virtual-lake")
    lake.branch("main").object("a").upload(b"1", mode="wb")
    with httpx.Client(verify=False) as http:
        client = Raw(server, http)
        for host, place, status in (
            ("virtual-lake.s3.example", "/main/a", 200),
            ("virtual-lake.S3.example:80", "/main/a", 200),
            ("s3.example", "/virtual-lake/main/a", 200),
            ("virtual-lake.elsewhere", "/virtual-lake/main/a", 200),
            ("no-lake.s3.example", "/main/a", 404),
        ):
            headers = client.signed("GET", place, Host=host)
            assert http.get(server.url + place, headers=headers).status_code == status, host
