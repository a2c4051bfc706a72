"""Signatures of version 4, against botocore's own signer."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.doors.s3.errors import S3Error
from ebbtide.doors.s3.signatures import (
    SKEW_MAX,
    SignedParts,
    is_signed,
    read_signature,
    split_query,
    verify,
)
from tests.support.randomized import randomized

REQUESTS: Final = 40
HOST: Final = "lake.example:8000"
TEXT: Final = string.ascii_letters + string.digits + " /-_.~!*'()+&=,;:@$?#%[]äß€😀\u200b"
KEYS: Final = Credentials("EBBTKEY", "secret")
MALFORMED: Final = "AuthorizationHeaderMalformed"

Received = tuple[SignedParts, dict[str, str], datetime]
"""What a server sees of a request, its query, and when it was signed."""


def drawn_text(rng: random.Random, size_max: int, alphabet: str = TEXT) -> str:
    return "".join(rng.choices(alphabet, k=rng.randrange(size_max)))


def drawn_request(rng: random.Random, *, is_presigned: bool) -> AWSRequest:
    """Its query is in S3's form, with values or without, in any order."""
    key = quote(drawn_text(rng, 30), safe=rng.choice(["/~", "/-_.~", "/!*'()-_.~"]))
    pairs = [
        (quote(drawn_text(rng, 8) or "a", safe="-_.~"), quote(drawn_text(rng, 12), safe="-_.~"))
        for _ in range(rng.randrange(5))
    ]
    query = "&".join(f"{name}={value}" for name, value in pairs)
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
    return AWSRequest(
        method, f"http://{HOST}/lake/{key}" + f"?{query}" * bool(query), headers, **data
    )


def sign(signer: Any, request: AWSRequest) -> Received:
    signer.add_auth(request)
    url = urlsplit(request.url)
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    if not any(name == "host" for name, _ in headers):
        headers.append(("host", HOST))
    query = {name.decode(): value.decode() for name, value in split_query(url.query)}
    return SignedParts(request.method, url.path, url.query, headers), query, datetime.now(UTC)


def refusal(parts: SignedParts, query: dict[str, str], now: datetime) -> S3Error:
    """The error of a request that the secret of KEYS signed, and somebody changed."""
    with pytest.raises(S3Error) as refused:
        verify(parts, read_signature(parts, query, now=now), KEYS.secret_key)
    return refused.value


def changes(parts: SignedParts) -> list[SignedParts]:
    """Another method, path, query, a signed header with another value, and one more of it."""
    more = ("host", "elsewhere")
    queries = [f"{parts.query}&{each}" for each in ("a", "acl", "x=1", "uploadId=")]
    return [
        replace(parts, method="PATCH"),
        replace(parts, path=parts.path + "x"),
        *(replace(parts, query=query) for query in queries),
        replace(parts, headers=[more if each[0] == "host" else each for each in parts.headers]),
        replace(parts, headers=[*parts.headers, more]),
    ]


@randomized("signed requests")
def test_botocore_signs_what_is_accepted(seed: int) -> None:
    """And nothing else: no other secret's signature, and that of no other request."""
    rng = random.Random(seed)
    for _ in range(REQUESTS):
        key_id = "EBBT" + drawn_text(rng, 20, string.ascii_uppercase)
        secret = drawn_text(rng, 40, string.ascii_letters + "/+-_") or "s"
        region = rng.choice(["us-east-1", "eu-central-1", "auto"])
        for is_presigned in (False, True):
            signer: Any = S3SigV4QueryAuth if is_presigned else S3SigV4Auth
            more = {"expires": rng.randint(60, 600)} if is_presigned else {}
            signing = signer(Credentials(key_id, secret), "s3", region, **more)
            parts, query, now = sign(signing, drawn_request(rng, is_presigned=is_presigned))
            found = read_signature(parts, query, now=now)
            verify(parts, found, secret)
            assert (found.access_key_id, found.is_presigned) == (key_id, is_presigned)
            wrong = [(parts, secret + "x")] + [(each, secret) for each in changes(parts)]
            for changed, other in wrong:
                with pytest.raises(S3Error) as refused:
                    verify(changed, read_signature(changed, query, now=now), other)
                assert refused.value.code == "SignatureDoesNotMatch", changed


def request_now(signer: Any = None) -> Received:
    request = AWSRequest("GET", f"http://{HOST}/lake/main/a")
    return sign(signer or S3SigV4Auth(KEYS, "s3", "r"), request)


def with_header(
    parts: SignedParts, change: Callable[[str], str | None], name: str = "authorization"
) -> SignedParts:
    """A header changed, or left out."""
    changed = [(each, change(text) if each == name else text) for each, text in parts.headers]
    return replace(parts, headers=[(each, text) for each, text in changed if text is not None])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_request_lasts_a_quarter_of_an_hour(sign: int) -> None:
    parts, query, now = request_now()
    read_signature(parts, query, now=now + sign * (SKEW_MAX - timedelta(seconds=2)))
    late = refusal(parts, query, now + sign * (SKEW_MAX + timedelta(seconds=2)))
    assert late.code == "RequestTimeTooSkewed"
    stamp = dict(parts.headers)["x-amz-date"]
    assert f"the request is dated {stamp}, and the server's time is 2" in late.message
    assert "they may differ by 15 minutes" in late.message


def test_a_presigned_url_lasts_as_it_says() -> None:
    parts, query, now = request_now(S3SigV4QueryAuth(KEYS, "s3", "r", expires=60))
    verify(parts, read_signature(parts, query, now=now + timedelta(seconds=58)), "secret")
    for seconds, message in ((62, "expired at"), (-1000, "is valid from")):
        assert message in refusal(parts, query, now + timedelta(seconds=seconds)).message


def test_headers_of_amazon_and_the_host_must_be_signed() -> None:
    parts, query, now = request_now()
    more = replace(parts, headers=[*parts.headers, ("x-amz-acl", "public-read")])
    assert "x-amz-acl" in refusal(more, query, now).message
    without = with_header(parts, lambda text: text.replace("host;", ""))
    assert "host must be signed" in refusal(without, query, now).message


def test_malformed_headers() -> None:
    parts, query, now = request_now()
    for old, new, code in (
        ("/s3/", "/ec2/", MALFORMED),
        ("aws4_request", "aws4", MALFORMED),
        ("Credential=EBBTKEY/", "Credential=", MALFORMED),
        ("Credential=EBBTKEY/", "Credential=EBBTKEY/2", MALFORMED),
        ("SignedHeaders=host;", "SignedHeaders=x-amz-date;host;", MALFORMED),
        ("SignedHeaders=host;", "SignedHeaders=Host;", MALFORMED),
        ("Signature=", "Signature=Z", "SignatureDoesNotMatch"),
        ("Signature=", "Signatur=", MALFORMED),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256", MALFORMED),
        ("Signature=", "Signature=a,Signature=", MALFORMED),
        (", ", " ", MALFORMED),
    ):
        changed = with_header(parts, lambda text: text.replace(old, new))  # noqa: B023
        assert changed != parts
        assert refusal(changed, query, now).code == code, (old, new)


def test_malformed_queries() -> None:
    parts, query, now = request_now(S3SigV4QueryAuth(KEYS, "s3", "r"))
    for name, value in (
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
    ):
        changed = {key: text for key, text in (query | {name: value}).items() if text is not None}
        code = refusal(parts, changed, now).code
        assert code == "AuthorizationQueryParametersError", (name, value)
    parts, _, now = request_now()
    assert "not in both" in refusal(parts, {"X-Amz-Algorithm": "AWS4-HMAC-SHA256"}, now).message


def test_dates_in_the_header_date() -> None:
    """Old clients send no x-amz-date."""
    parts, query, now = request_now()
    undated = with_header(parts, lambda _text: None, "x-amz-date")
    assert "no valid x-amz-date" in refusal(undated, query, now).message
    date = ("date", now.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    found = read_signature(replace(undated, headers=[*undated.headers, date]), query, now=now)
    assert found.stamp == now.strftime("%Y%m%dT%H%M%SZ")


def test_which_requests_are_signed() -> None:
    for query, authorization, expected in (
        (b"", None, False),
        (b"", "Basic eDp5", False),
        (b"", "AWS4-HMAC-SHA256", True),
        (b"a=X-Amz-Algorithm", None, False),
        (b"a&X-Amz-Algorithm=1", None, True),
        (b"X-Amz-Algorithm", "Basic eDp5", True),
    ):
        assert is_signed(query, authorization) is expected, (query, authorization)
