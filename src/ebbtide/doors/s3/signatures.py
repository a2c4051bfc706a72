"""Signatures of version 4: reads them from requests, and computes what they should be.

Source: "Authenticating Requests (AWS Signature Version 4)" in the API reference of Amazon S3. Not
for: the body of a request (`payload`), or looking keys up (`gateway`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from ebbtide.doors.s3.errors import S3Error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
SKEW_MAX: Final = timedelta(minutes=15)
"""How far the date of a request may be from the server's time."""
EXPIRES_SECONDS_MAX: Final = 7 * 24 * 3600
"""The longest time for which a presigned URL can be valid."""

_EMPTY_HASH: Final = hashlib.sha256(b"").hexdigest()
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_STAMP_FORM: Final = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,9}", re.ASCII)
_UNRESERVED: Final = "-_.~"
_MINUTE: Final = timedelta(minutes=1)
_QUERY_NAMES: Final = (
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)
SIGNING_NAMES: Final = frozenset(
    (*_QUERY_NAMES, "X-Amz-Algorithm", "X-Amz-Content-Sha256", "X-Amz-Security-Token")
)
"""All names in a query that belong to its signature."""

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class S3Signature:
    """The signature of a request, as the client sent it.

    `scope` is `DATE/REGION/s3/aws4_request`, and `stamp` the request's time as it is signed.
    `payload_hash` describes the body: its SHA-256, or a name such as UNSIGNED-PAYLOAD.
    """

    access_key_id: str
    scope: str
    stamp: str
    signed_headers: tuple[str, ...]
    value: str
    payload_hash: str
    is_presigned: bool


@dataclass(frozen=True, slots=True)
class SignedParts:
    """The parts of a request that a signature covers: `path` and `query` are as they were sent, and
    `headers` have names in lower case."""

    method: str
    path: str
    query: str
    headers: Pairs


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """The key that signs within one scope, at one time. `seed` is the signature of the request."""

    key: bytes = field(repr=False)
    stamp: str
    scope: str
    seed: str

    def chunk(self, previous: str, chunk_hash: str) -> str:
        """Returns the signature of a chunk of the body, which follows on `previous`."""
        return self._sign("AWS4-HMAC-SHA256-PAYLOAD", previous, _EMPTY_HASH, chunk_hash)

    def trailer(self, previous: str, trailer_hash: str) -> str:
        """Returns the signature of the trailing headers, which follows on the last chunk's."""
        return self._sign("AWS4-HMAC-SHA256-TRAILER", previous, trailer_hash)

    def _sign(self, *lines: str) -> str:
        name, *others = lines
        text = "\n".join((name, self.stamp, self.scope, *others))
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def is_signed(query: bytes, authorization: str | None) -> bool:
    """Whether a request has a signature of version 4, right or wrong."""
    if authorization is not None and authorization.startswith(ALGORITHM):
        return True
    return any(pair.partition(b"=")[0] == b"X-Amz-Algorithm" for pair in query.split(b"&"))


def read_signature(parts: SignedParts, query: Mapping[str, str], *, now: datetime) -> S3Signature:
    """Returns the signature of a request, from its header or its query. Checks its form, its date,
    and that it covers the headers that matter.

    Raises S3Error.
    """
    headers = dict(parts.headers)
    authorization = headers.get("authorization")
    if authorization is None:
        found = _from_query(query, headers, now=now)
    elif "X-Amz-Algorithm" in query:
        raise S3Error("InvalidArgument", "sign a request in its header or its query, not in both")
    else:
        found = _from_header(authorization, headers, now=now)
    if "host" not in found.signed_headers:
        raise S3Error("AccessDenied", "the header host must be signed")
    unsigned = {
        name for name in headers if name.startswith("x-amz-") and name not in found.signed_headers
    }
    if unsigned:
        raise S3Error(
            "AccessDenied", f"these headers must be signed: {', '.join(sorted(unsigned))}"
        )
    return found


def verify(parts: SignedParts, found: S3Signature, secret: str) -> ScopeKey:
    """Checks a signature against a secret. Returns the key for the chunks of the body. Raises
    S3Error `SignatureDoesNotMatch`."""
    key = signing_key(secret, found.scope)
    is_right = False
    # Clients sign the path and the query as they send them, or in the one form that S3 specifies.
    for path, query in (
        (quote(unquote_to_bytes(parts.path), safe="/" + _UNRESERVED), canonical_query(parts.query)),
        (parts.path, sorted_query(parts.query)),
    ):
        canonical = canonical_request(
            parts.method, path, query, parts.headers, found.signed_headers, found.payload_hash
        )
        expected = sign(key, found.stamp, found.scope, canonical)
        is_right |= hmac.compare_digest(expected, found.value)
    if not is_right:
        raise S3Error(
            "SignatureDoesNotMatch",
            "the signature is not the one of this request: check the secret, and that no proxy "
            "changes the path, the query or the header Host",
        )
    return ScopeKey(key, found.stamp, found.scope, found.value)


def signing_key(secret: str, scope: str) -> bytes:
    """Returns the key that a secret has in a scope."""
    key = f"AWS4{secret}".encode("utf-8", "surrogatepass")
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def sign(key: bytes, stamp: str, scope: str, canonical: str) -> str:
    """Returns the signature of a canonical request, in hexadecimal digits."""
    # Headers are bytes, which are read as Latin-1.
    digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    text = "\n".join((ALGORITHM, stamp, scope, digest))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def canonical_request(
    method: str,
    path: str,
    query: str,
    headers: Pairs,
    signed_headers: Iterable[str],
    payload_hash: str,
) -> str:
    """Returns the text that is signed. `path` and `query` are canonical already."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(" ".join(value.split()))
    lines = [f"{name}:{','.join(values.get(name, ()))}\n" for name in signed_headers]
    return "\n".join((method, path, query, "".join(lines), ";".join(signed_headers), payload_hash))


def canonical_query(query: str) -> str:
    """Returns the query with each name and value decoded and encoded again, sorted, without the
    signature itself."""
    pairs = [
        (_encoded(name), _encoded(value))
        for name, value in split_query(query)
        if name != b"X-Amz-Signature"
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def sorted_query(query: str) -> str:
    """Returns the query as it was sent, sorted, without the signature itself."""
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    kept = sorted(pair for pair in pairs if pair[0] != "X-Amz-Signature")
    return "&".join(f"{name}={value}" for name, value in kept)


def split_query(query: str) -> list[tuple[bytes, bytes]]:
    """Returns the decoded names and values of a query, in their order."""
    found = []
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.replace("+", " ").partition("=")
            found.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return found


def _encoded(text: bytes) -> str:
    return quote(text, safe=_UNRESERVED)


def _from_header(authorization: str, headers: Mapping[str, str], *, now: datetime) -> S3Signature:
    fields: dict[str, str] = {}
    for part in authorization.removeprefix(ALGORITHM).split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in fields:
            raise _malformed("the header Authorization cannot be understood")
        fields[name] = value
    if not authorization.startswith(ALGORITHM + " ") or set(fields) != {
        "Credential",
        "SignedHeaders",
        "Signature",
    }:
        raise _malformed("the header Authorization cannot be understood")
    at, stamp = _date_of(headers)
    if abs(now - at) > SKEW_MAX:
        raise S3Error(
            "RequestTimeTooSkewed",
            f"the request is dated {at:{_STAMP}}, and the server's time is {now:{_STAMP}}: they "
            f"may differ by {SKEW_MAX // _MINUTE} minutes; set the clock of the client or the "
            "server",
        )
    payload_hash = headers.get("x-amz-content-sha256")
    if payload_hash is None:
        raise S3Error("InvalidRequest", "the header x-amz-content-sha256 is missing")
    access_key_id, scope = _credential(fields["Credential"], stamp, "AuthorizationHeaderMalformed")
    return S3Signature(
        access_key_id=access_key_id,
        scope=scope,
        stamp=stamp,
        signed_headers=_names(fields["SignedHeaders"]),
        value=_value(fields["Signature"]),
        payload_hash=payload_hash,
        is_presigned=False,
    )


def _from_query(
    query: Mapping[str, str], headers: Mapping[str, str], *, now: datetime
) -> S3Signature:
    code = "AuthorizationQueryParametersError"
    if query.get("X-Amz-Algorithm") != ALGORITHM:
        raise S3Error(code, f"X-Amz-Algorithm must be {ALGORITHM}")
    missing = [name for name in _QUERY_NAMES if name not in query]
    if missing:
        raise S3Error(code, f"the query has no {', '.join(missing)}")
    stamp, lasts = query["X-Amz-Date"], query["X-Amz-Expires"]
    at = _instant(stamp, code)
    if not _SECONDS.fullmatch(lasts) or not 1 <= int(lasts) <= EXPIRES_SECONDS_MAX:
        raise S3Error(code, f"X-Amz-Expires is from 1 to {EXPIRES_SECONDS_MAX} seconds")
    if at - now > SKEW_MAX:
        raise S3Error(
            "AccessDenied",
            f"the URL is valid from {stamp} on, and the server's time is {now:{_STAMP}}",
        )
    until = at + timedelta(seconds=int(lasts))
    if until < now:
        raise S3Error(
            "AccessDenied",
            f"the URL expired at {until:{_STAMP}}, and the server's time is {now:{_STAMP}}: sign a "
            "new one",
        )
    access_key_id, scope = _credential(query["X-Amz-Credential"], stamp, code)
    given = headers.get("x-amz-content-sha256", query.get("X-Amz-Content-Sha256"))
    return S3Signature(
        access_key_id=access_key_id,
        scope=scope,
        stamp=stamp,
        signed_headers=_names(query["X-Amz-SignedHeaders"]),
        value=_value(query["X-Amz-Signature"]),
        payload_hash=UNSIGNED if given is None else given,
        is_presigned=True,
    )


def _date_of(headers: Mapping[str, str]) -> tuple[datetime, str]:
    """Returns the date of a request, and its text as it is signed."""
    stamp = headers.get("x-amz-date")
    if stamp is not None:
        return _instant(stamp, "AccessDenied"), stamp
    try:
        at = parsedate_to_datetime(headers.get("date", "")).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise S3Error("AccessDenied", "the request has no valid x-amz-date or Date") from None
    return at, at.strftime(_STAMP)


def _instant(stamp: str, code: str) -> datetime:
    try:
        if _STAMP_FORM.fullmatch(stamp):
            return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
    except ValueError:
        pass
    raise S3Error(code, "write the request's date as 20260301T123000Z")


def _credential(text: str, stamp: str, code: str) -> tuple[str, str]:
    """Returns the id of the key, and the scope. An id may hold slashes."""
    access_key_id, *parts = text.rsplit("/", 4)
    if len(parts) != 4 or parts[2:] != ["s3", "aws4_request"] or not all((access_key_id, *parts)):
        raise S3Error(code, "write the credential as KEY/DATE/REGION/s3/aws4_request")
    if parts[0] != stamp[:8]:
        raise S3Error(code, "the date of the credential is not the date of the request")
    return access_key_id, "/".join(parts)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if list(names) != sorted(set(names)) or text != text.lower():
        raise _malformed("the names of signed headers must be in lower case, sorted and unique")
    return names


def _value(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise S3Error("SignatureDoesNotMatch", "a signature has 64 hexadecimal digits")
    return text


def _malformed(message: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", message)
