"""Requests that ask for what the gateway does not have: each is refused by name, and does nothing.

An answer without an error would be a promise to the client.
"""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from ebbtide.doors.s3.errors import S3Error
from ebbtide.doors.s3.gateway import UNSUPPORTED, require_conditions, require_operation
from tests.doors.s3.test_refusals import CALLS, Lake
from tests.doors.s3.test_refusals import ours as ours

CHANGES: Final = {
    name: call.method for name, call in CALLS.items() if call.method in ("PUT", "POST", "DELETE")
}
WRITES: Final = ("PutObject", "CopyObject", "CompleteMultipartUpload")
UNSUPPORTED_HEADERS: Final = (
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-write-offset-bytes",
    "x-amz-rename-source",
    "x-amz-expected-bucket-owner",
    "x-amz-source-expected-bucket-owner",
)
CONDITIONS: Final = {
    "if-none-match": WRITES,
    "if-match": (*WRITES, "DeleteObject"),
    "x-amz-if-match-size": ("DeleteObject",),
    "x-amz-copy-source-if-match": ("CopyObject", "UploadPartCopy"),
    "x-amz-copy-source-range": ("UploadPartCopy",),
    "content-range": (),
    "if-modified-since": (),
    "if-unmodified-since": (),
    "x-amz-if-match-initiated-time": (),
}


def refusal(ours: Lake, name: str, **headers: str) -> tuple[str, str]:
    """Code and message of the error for an operation with such headers."""
    method, place, body, more = ours.made(name)
    return str(ours.ask(method, place, body, **more | headers)), ours.message


def test_headers_and_queries_that_promise_too_much() -> None:
    """A name in a query that this server does not know must not write or delete the object."""
    for header in UNSUPPORTED_HEADERS:
        with pytest.raises(S3Error, match=f"does not have '{header}'") as refused:
            require_operation("PUT", {}, {header: "a"})
        assert refused.value.code == "NotImplemented"
    asked = [*product((*UNSUPPORTED, "annotation", "x"), CHANGES.values())]
    asked += [(name, "GET") for name in UNSUPPORTED]
    for name, method in asked:
        with pytest.raises(S3Error, match=f"does not have '{name}'") as refused:
            require_operation(method, {name: ""}, {})
        assert refused.value.code == "NotImplemented"
    # What clients add.
    require_operation("PUT", {"x-id": "PutObject", "X-Amz-Date": "", "x-amz-acl": "private"}, {})
    require_operation("GET", {"metadata": "true"}, {})


def test_conditions_that_an_operation_does_not_check() -> None:
    for header, checking in CONDITIONS.items():
        assert CHANGES.keys() >= {*checking}
        for name, method in CHANGES.items():
            if name in checking:
                require_conditions(name, method, {header: "x"})
                continue
            with pytest.raises(S3Error) as refused:
                require_conditions(name, method, {header: "x"})
            assert refused.value.code == "NotImplemented"
            assert refused.value.message.startswith(f"{name} does not check {header}: ")


def test_each_operation_refuses_what_it_does_not_have(ours: Lake) -> None:
    """The tests above have each header and each name."""
    for name in CHANGES:
        for header in ("x_amz_tagging", "x_amz_if_match_initiated_time"):
            code, message = refusal(ours, name, **{header: "a"})
            assert (code, header.replace("_", "-") in message) == ("NotImplemented", True), name
        method, place, _, _ = ours.made(name)
        more = "&x" if "?" in place else "?x"
        assert ours.ask(method, place + more) == "NotImplemented", name
    assert ours.ask("GET", f"/{ours.bucket}/main/a?acl") == "NotImplemented"
    ours.require_unchanged()


def test_if_none_match_has_one_value(ours: Lake) -> None:
    for name, value in product(("PutObject", "CopyObject"), ('"x"', '"x", *', "")):
        code, message = refusal(ours, name, If_None_Match=value)
        assert code == "NotImplemented"
        assert f"If-None-Match: {value}" in message
        assert "its only value is *" in message
    ours.require_unchanged()


def test_access_control_lists(ours: Lake) -> None:
    for acl in ("public-read", "x", ""):
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
        for name in ("PutObject", "DeleteObjects"):
            code, message = refusal(ours, name, **{header: value})
            assert code == "InvalidRequest"
            assert "this server has no checksum" in message
    part = "<PartNumber>1</PartNumber><ETag>x</ETag><ChecksumXXHASH3>A</ChecksumXXHASH3>"
    body = f"<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>"
    place = f"/{ours.bucket}/main/b?uploadId={ours.upload}"
    assert ours.ask("POST", place, body.encode()) == "InvalidRequest"
    ours.require_unchanged()


def test_headers_in_the_query_of_a_signed_url(ours: Lake) -> None:
    """AWS's SDK for JavaScript moves all of its headers there, and S3 takes them from there."""
    place = f"/{ours.bucket}/main/new"
    for query, status in (
        ("x-amz-meta-color=r%C3%B6t&x-amz-acl=private", 200),
        ("x-amz-acl=public-read", 400),
        ("x-amz-tagging=a%3Db", 501),
        ("x-amz-storage-class=GLACIER", 400),
        ("x-amz-checksum-crc32=AAAAAA%3D%3D", 400),
    ):
        url = ours.url + ours.presigned("PUT", f"{place}?{query}")
        answer = ours.http.put(url, content=b"data")
        assert answer.status_code == status, (query, answer.text)
    found = ours.http.get(ours.url + ours.presigned("GET", place))
    assert (found.content, found.headers["x-amz-meta-color"]) == (b"data", "=?UTF-8?B?csO2dA==?=")
