"""Requests that ask for what the gateway does not have: each is refused by name, and does nothing.

An answer without an error would be a promise to the client.
"""

from __future__ import annotations

from itertools import product
from typing import Final
from xml.etree import ElementTree

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.server.s3.call import OPERATIONS
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.support import UNSUPPORTED, require_conditions, require_operation
from tests.server.s3.test_refusals import CALLS, Lake
from tests.server.s3.test_refusals import ours as ours

CHANGES: Final = [name for name, call in CALLS.items() if call.method in ("PUT", "POST", "DELETE")]
WRITES: Final = ("PutObject", "CopyObject", "CompleteMultipartUpload")
UNSUPPORTED_HEADERS: Final = {
    "x_amz_tagging": "a=b",
    "x_amz_website_redirect_location": "/b",
    "x_amz_server_side_encryption": "aws:kms",
    "x_amz_server_side_encryption_customer_algorithm": "AES256",
    "x_amz_copy_source_server_side_encryption_customer_algorithm": "AES256",
    "x_amz_object_lock_mode": "GOVERNANCE",
    "x_amz_object_lock_legal_hold": "ON",
    "x_amz_write_offset_bytes": "3",
    "x_amz_rename_source": "main/a",
    "x_amz_expected_bucket_owner": "123456789012",
    "x_amz_source_expected_bucket_owner": "123456789012",
    "Content_Range": "bytes 0-2/3",
    "If_Modified_Since": "Thu, 01 Jan 2026 00:00:00 GMT",
    "If_Unmodified_Since": "Thu, 01 Jan 2026 00:00:00 GMT",
    "x_amz_if_match_initiated_time": "Thu, 01 Jan 2026 00:00:00 GMT",
}
CONDITIONS: Final = {
    "If_None_Match": ("*", WRITES),
    "If_Match": ('"x"', (*WRITES, "DeleteObject")),
    "x_amz_if_match_size": ("1", ("DeleteObject",)),
    "x_amz_copy_source_if_match": ('"x"', ("CopyObject", "UploadPartCopy")),
    "x_amz_copy_source_range": ("bytes=0-1", ("UploadPartCopy",)),
}


def refusal(ours: Lake, name: str, **headers: str) -> tuple[str, str]:
    """Code and message of the error for an operation with such headers."""
    method, place, body, more = ours.made(name)
    signed = ours.signed(method, place, body, **more | headers)
    answer = ours.http.request(method, ours.url + place, headers=signed, content=body)
    assert answer.status_code >= 400, (name, headers)
    error = ElementTree.fromstring(answer.content)
    return error.findtext("Code") or "", error.findtext("Message") or ""


def test_headers_that_promise_too_much(ours: Lake) -> None:
    for header, value in UNSUPPORTED_HEADERS.items():
        for name in CHANGES:
            code, message = refusal(ours, name, **{header: value})
            assert code == "NotImplemented", (name, header)
            assert header.replace("_", "-").lower() in message
    ours.require_unchanged()


def test_conditions_that_an_operation_does_not_check(ours: Lake) -> None:
    for header, (value, checking) in CONDITIONS.items():
        for name in set(CHANGES) - {*checking}:
            code, message = refusal(ours, name, **{header: value})
            assert code == "NotImplemented", (name, header)
            assert message.startswith(f"{name} does not check {header.replace('_', '-').lower()}: ")
    ours.require_unchanged()


def test_every_operation_checks_its_conditions_or_has_none() -> None:
    """An operation that this table does not know has none, and says so."""
    names = {operation.name for operation in OPERATIONS.values()}
    for header, (_, checking) in CONDITIONS.items():
        assert names >= {*checking}
        for name in checking:
            require_conditions(name, "PUT", {header.replace("_", "-").lower(): "x"})


def test_if_none_match_has_one_value(ours: Lake) -> None:
    for name, value in product(("PutObject", "CopyObject"), ('"x"', '"x", *', "")):
        code, message = refusal(ours, name, If_None_Match=value)
        assert code == "NotImplemented"
        assert f"If-None-Match: {value}" in message
        assert "its only value is *" in message
    ours.require_unchanged()


def test_access_control_lists(ours: Lake) -> None:
    for acl in ("public-read", "public-read-write", "authenticated-read", "x", ""):
        code, message = refusal(ours, "PutObject", x_amz_acl=acl)
        assert code == "AccessControlListNotSupported"
        assert f"x-amz-acl: {acl}" in message
    code, message = refusal(ours, "PutObject", x_amz_grant_read='uri="http://x/AllUsers"')
    assert (code, "x-amz-grant-read" in message) == ("AccessControlListNotSupported", True)
    ours.require_unchanged()
    # Some lists give nobody a right.
    for acl in ("private", "bucket-owner-read", "bucket-owner-full-control"):
        place = f"/{ours.bucket}/main/new"
        assert ours.ask("PUT", place, b"1", x_amz_acl=acl, x_amz_request_payer="requester") == 200


def test_checksums_that_nobody_would_compare(ours: Lake) -> None:
    for header, value in (
        ("x_amz_checksum_xxhash64", "AAAAAAAAAAA="),
        ("x_amz_checksum_md5", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("x_amz_sdk_checksum_algorithm", "XXHASH3"),
        ("x_amz_trailer", "x-amz-checksum-sha512"),
    ):
        for name in ("PutObject", "UploadPart", "CompleteMultipartUpload", "DeleteObjects"):
            code, message = refusal(ours, name, **{header: value})
            assert code == "InvalidRequest"
            assert "this server has no checksum" in message
    ours.require_unchanged()
    part = (
        b"<Part><PartNumber>1</PartNumber><ETag>x</ETag><ChecksumXXHASH3>A</ChecksumXXHASH3></Part>"
    )
    body = b"<CompleteMultipartUpload>" + part + b"</CompleteMultipartUpload>"
    place = f"/{ours.bucket}/main/b?uploadId={ours.upload}"
    assert ours.ask("POST", place, body) == "InvalidRequest"


def test_queries_that_choose_another_operation(ours: Lake) -> None:
    """One that this server does not know must not write or delete the object itself."""
    for name in (*sorted(UNSUPPORTED), "annotation", "x"):
        for method in ("PUT", "POST", "DELETE"):
            for place in (f"/{ours.bucket}", f"/{ours.bucket}/main/a"):
                assert ours.ask(method, f"{place}?{name}") == "NotImplemented", (method, name)
        if name in UNSUPPORTED:
            assert ours.ask("GET", f"/{ours.bucket}/main/a?{name}") == "NotImplemented", name
    ours.require_unchanged()


def test_what_clients_add_to_a_query() -> None:
    require_operation("PUT", {"x-id": "PutObject", "X-Amz-Date": "", "x-amz-acl": "private"}, {})
    require_operation("GET", {"metadata": "true"}, {})
    with pytest.raises(S3Error, match="does not have 'x'"):
        require_operation("DELETE", {"x": ""}, {})


def presigned(ours: Lake, query: str) -> str:
    """A URL that puts an object, with more in its query, as some clients sign."""
    request = AWSRequest("PUT", f"{ours.url}/{ours.bucket}/main/new?{query}")
    keys = Credentials(ours.key.access_key_id, ours.key.secret)
    S3SigV4QueryAuth(keys, "s3", "us-east-1", expires=60).add_auth(request)
    return str(request.url)


def test_headers_in_the_query_of_a_signed_url(ours: Lake) -> None:
    """AWS's SDK for JavaScript moves all of its headers there, and S3 takes them from there."""
    for query, status in (
        ("x-amz-meta-color=r%C3%B6t&x-amz-acl=private", 200),
        ("x-amz-acl=public-read", 400),
        ("x-amz-tagging=a%3Db", 501),
        ("x-amz-storage-class=GLACIER", 400),
        ("x-amz-checksum-crc32=AAAAAA%3D%3D", 400),
    ):
        answer = ours.http.put(presigned(ours, query), content=b"data")
        assert answer.status_code == status, (query, answer.text)
    place = f"/{ours.bucket}/main/new"
    found = ours.http.head(ours.url + place, headers=ours.signed("HEAD", place))
    assert found.headers["x-amz-meta-color"] == "=?UTF-8?B?csO2dA==?="


def test_the_clocks_in_the_error(ours: Lake) -> None:
    place = f"/{ours.bucket}/main/a"
    headers = ours.signed("GET", place) | {"X-Amz-Date": "20200101T000000Z"}
    answer = ours.http.get(ours.url + place, headers=headers)
    message = ElementTree.fromstring(answer.content).findtext("Message") or ""
    assert message.startswith("the request is dated 20200101T000000Z, and the server's time is 2")
    assert "they may differ by 15 minutes" in message
