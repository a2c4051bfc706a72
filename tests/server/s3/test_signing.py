"""Signatures of version 4, against botocore's own signer."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.signing import (
    SKEW_MAX,
    S3Signature,
    SignedParts,
    is_signed,
    read_signature,
    split_query,
    verify,
)
from tests.support.randomized import randomized

CASES: Final = 400
HOST: Final = "lake.example:8000"
TEXT: Final = string.ascii_letters + string.digits + " /-_.~!*'()+&=,;:@$?#%[]äß€😀\u200b"


def drawn_text(rng: random.Random, size_max: int, alphabet: str = TEXT) -> str:
    return "".join(rng.choices(alphabet, k=rng.randrange(size_max)))


def drawn_query(rng: random.Random) -> str:
    """A query as clients write it: in S3's form, with values or without, in any order."""
    pairs = [
        (quote(drawn_text(rng, 8) or "a", safe="-_.~"), quote(drawn_text(rng, 12), safe="-_.~"))
        for _ in range(rng.randrange(5))
    ]
    return "&".join(f"{name}={value}" for name, value in pairs)


def drawn_request(rng: random.Random, *, is_presigned: bool) -> AWSRequest:
    key = quote(drawn_text(rng, 30), safe=rng.choice(["/~", "/-_.~", "/!*'()-_.~"]))
    query = drawn_query(rng)
    url = f"http://{HOST}/lake/{key}" + (f"?{query}" if query else "")
    headers = {
        f"x-amz-meta-{drawn_text(rng, 8, string.ascii_lowercase)}": drawn_text(
            rng, 20, string.ascii_letters + "  ,=/\t"
        )
        for _ in range(rng.randrange(4))
    }
    if rng.random() < 0.5:
        headers["Content-Type"] = "text/plain;  charset=utf-8"
    method = rng.choice(["GET", "PUT", "HEAD", "POST", "DELETE"])
    # botocore takes the body of a request to presign for a form.
    data = {} if is_presigned else {"data": rng.randbytes(rng.randrange(20))}
    return AWSRequest(method, url, headers, **data)


def received(request: AWSRequest) -> tuple[SignedParts, dict[str, str]]:
    """What a server sees of a request, and its query."""
    url = urlsplit(request.url)
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    if not any(name == "host" for name, _ in headers):
        headers.append(("host", HOST))
    query = {name.decode(): value.decode() for name, value in split_query(url.query)}
    return SignedParts(request.method, url.path, url.query, headers), query


def drawn_secret(rng: random.Random) -> Credentials:
    return Credentials(
        "EBBT" + drawn_text(rng, 20, string.ascii_uppercase),
        drawn_text(rng, 40, string.ascii_letters + "/+-_") or "s",
    )


def checked(request: AWSRequest, secret: str, now: datetime) -> S3Signature:
    parts, query = received(request)
    found = read_signature(parts, query, now=now)
    verify(parts, found, secret)
    return found


def signed_now(signer: Any, request: AWSRequest) -> datetime:
    signer.add_auth(request)
    return datetime.now(UTC)


@randomized("signed requests")
@pytest.mark.parametrize("is_presigned", [False, True])
def test_botocore_signs_what_is_accepted(seed: int, is_presigned: bool) -> None:
    rng = random.Random(seed)
    for _ in range(CASES):
        keys, request = drawn_secret(rng), drawn_request(rng, is_presigned=is_presigned)
        region = rng.choice(["us-east-1", "eu-central-1", "auto"])
        if is_presigned:
            signer: Any = S3SigV4QueryAuth(keys, "s3", region, expires=rng.randint(60, 600))
        else:
            signer = S3SigV4Auth(keys, "s3", region)
        now = signed_now(signer, request)
        found = checked(request, keys.secret_key, now)
        assert found.access_key_id == keys.access_key
        assert found.is_presigned is is_presigned
        with pytest.raises(S3Error) as refused:
            checked(request, keys.secret_key + "x", now)
        assert refused.value.code == "SignatureDoesNotMatch"


def with_method(parts: SignedParts, _rng: random.Random) -> SignedParts:
    return SignedParts("PATCH", parts.path, parts.query, parts.headers)


def with_path(parts: SignedParts, _rng: random.Random) -> SignedParts:
    return SignedParts(parts.method, parts.path + "x", parts.query, parts.headers)


def with_query(parts: SignedParts, rng: random.Random) -> SignedParts:
    more = rng.choice(["a", "acl", "x=1", "uploadId="])
    return SignedParts(parts.method, parts.path, f"{parts.query}&{more}", parts.headers)


def with_header(parts: SignedParts, rng: random.Random) -> SignedParts:
    """A signed header with another value, or one more of it."""
    headers = list(parts.headers)
    place = headers.index(next(each for each in headers if each[0] == "host"))
    if rng.random() < 0.5:
        headers[place] = ("host", "elsewhere")
    else:
        headers.append(("host", "elsewhere"))
    return SignedParts(parts.method, parts.path, parts.query, headers)


@randomized("changed requests")
@pytest.mark.parametrize("change", [with_method, with_path, with_query, with_header])
@pytest.mark.parametrize("is_presigned", [False, True])
def test_a_changed_request_is_refused(
    seed: int, change: Callable[[SignedParts, random.Random], SignedParts], is_presigned: bool
) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        keys, request = drawn_secret(rng), drawn_request(rng, is_presigned=is_presigned)
        maker: Any = S3SigV4QueryAuth if is_presigned else S3SigV4Auth
        now = signed_now(maker(keys, "s3", "r"), request)
        parts, query = received(request)
        changed = change(parts, rng)
        found = read_signature(changed, query, now=now)
        with pytest.raises(S3Error) as refused:
            verify(changed, found, keys.secret_key)
        assert refused.value.code == "SignatureDoesNotMatch"


KEYS: Final = Credentials("EBBTKEY", "secret")


def request_now(signer: Any = None, **headers: str) -> tuple[SignedParts, dict[str, str], datetime]:
    request = AWSRequest("GET", f"http://{HOST}/lake/main/a", headers)
    now = signed_now(signer or S3SigV4Auth(KEYS, "s3", "r"), request)
    return *received(request), now


@pytest.mark.parametrize("sign", [1, -1])
def test_a_request_lasts_a_quarter_of_an_hour(sign: int) -> None:
    parts, query, now = request_now()
    read_signature(parts, query, now=now + sign * (SKEW_MAX - timedelta(seconds=2)))
    with pytest.raises(S3Error) as refused:
        read_signature(parts, query, now=now + sign * (SKEW_MAX + timedelta(seconds=2)))
    assert refused.value.code == "RequestTimeTooSkewed"


def test_a_presigned_url_lasts_as_it_says() -> None:
    parts, query, now = request_now(S3SigV4QueryAuth(KEYS, "s3", "r", expires=60))
    for seconds, message in ((58, None), (62, "expired at"), (-1000, "is valid from")):
        at = now + timedelta(seconds=seconds)
        if message is None:
            verify(parts, read_signature(parts, query, now=at), "secret")
        else:
            with pytest.raises(S3Error, match=message):
                read_signature(parts, query, now=at)


def test_headers_of_amazon_and_the_host_must_be_signed() -> None:
    parts, query, now = request_now()
    more = SignedParts("GET", parts.path, "", [*parts.headers, ("x-amz-acl", "public-read")])
    with pytest.raises(S3Error, match="x-amz-acl"):
        read_signature(more, query, now=now)
    header = dict(parts.headers)["authorization"].replace("host;", "")
    without = [(n, header if n == "authorization" else v) for n, v in parts.headers]
    with pytest.raises(S3Error, match="host must be signed"):
        read_signature(SignedParts("GET", parts.path, "", without), query, now=now)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("/s3/", "/ec2/", "AuthorizationHeaderMalformed"),
        ("aws4_request", "aws4", "AuthorizationHeaderMalformed"),
        ("Credential=EBBTKEY/", "Credential=", "AuthorizationHeaderMalformed"),
        ("Credential=EBBTKEY/", "Credential=EBBTKEY/2", "AuthorizationHeaderMalformed"),
        ("SignedHeaders=host;", "SignedHeaders=x-amz-date;host;", "AuthorizationHeaderMalformed"),
        ("SignedHeaders=host;", "SignedHeaders=Host;", "AuthorizationHeaderMalformed"),
        ("Signature=", "Signature=Z", "SignatureDoesNotMatch"),
        ("Signature=", "Signatur=", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
        ("Signature=", "Signature=a,Signature=", "AuthorizationHeaderMalformed"),
        (", ", " ", "AuthorizationHeaderMalformed"),
    ],
)
def test_malformed_headers(old: str, new: str, code: str) -> None:
    parts, query, now = request_now()
    header = dict(parts.headers)["authorization"]
    changed = header.replace(old, new)
    assert changed != header
    headers = [(n, changed if n == "authorization" else v) for n, v in parts.headers]
    with pytest.raises(S3Error) as refused:
        read_signature(SignedParts("GET", parts.path, "", headers), query, now=now)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA1"),
        ("X-Amz-Date", "2026"),
        ("X-Amz-Date", "20269999T999999Z"),
        ("X-Amz-Expires", "0"),
        ("X-Amz-Expires", "604801"),
        ("X-Amz-Expires", "-1"),
        ("X-Amz-Expires", "٣"),
        ("X-Amz-Credential", "EBBTKEY"),
        ("X-Amz-Credential", None),
        ("X-Amz-Signature", None),
    ],
)
def test_malformed_queries(name: str, value: str | None) -> None:
    parts, query, now = request_now(S3SigV4QueryAuth(KEYS, "s3", "r"))
    changed = {key: text for key, text in query.items() if key != name}
    if value is not None:
        changed[name] = value
    with pytest.raises(S3Error) as refused:
        read_signature(parts, changed, now=now)
    assert refused.value.code == "AuthorizationQueryParametersError"


def test_one_place_for_a_signature() -> None:
    parts, _, now = request_now()
    with pytest.raises(S3Error, match="not in both"):
        read_signature(parts, {"X-Amz-Algorithm": "AWS4-HMAC-SHA256"}, now=now)


def test_dates_in_the_header_date() -> None:
    """Old clients send no x-amz-date."""
    parts, query, now = request_now()
    headers = [(n, v) for n, v in parts.headers if n != "x-amz-date"]
    with pytest.raises(S3Error, match="no valid x-amz-date"):
        read_signature(SignedParts("GET", parts.path, "", headers), query, now=now)
    headers.append(("date", now.strftime("%a, %d %b %Y %H:%M:%S GMT")))
    found = read_signature(SignedParts("GET", parts.path, "", headers), query, now=now)
    assert found.stamp == now.strftime("%Y%m%dT%H%M%SZ")


@pytest.mark.parametrize(
    ("query", "authorization", "expected"),
    [
        (b"", None, False),
        (b"", "Basic eDp5", False),
        (b"", "AWS4-HMAC-SHA256 x", True),
        (b"", "AWS4-HMAC-SHA256", True),
        (b"a=X-Amz-Algorithm", None, False),
        (b"a&X-Amz-Algorithm=1", None, True),
        (b"X-Amz-Algorithm", "Basic eDp5", True),
    ],
)
def test_which_requests_are_signed(query: bytes, authorization: str | None, expected: bool) -> None:
    assert is_signed(query, authorization) is expected
