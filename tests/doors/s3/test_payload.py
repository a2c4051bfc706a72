"""Bodies: chunks, hashes, checksums, and each way in which they can be wrong."""

from __future__ import annotations

import base64
import hashlib
import random
import zlib
from collections.abc import Iterator
from typing import Final

import pytest

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import S3Error
from ebbtide.doors.s3.payload import (
    LINE_BYTES_MAX,
    SIGNED_CHUNKS,
    SIGNED_TRAILER,
    UNSIGNED_TRAILER,
    Payload,
)
from ebbtide.doors.s3.signatures import UNSIGNED, ScopeKey, signing_key
from tests.doors.s3.chunked import signed_body, unsigned_body
from tests.support.randomized import randomized

STAMP: Final = "20130524T000000Z"
SCOPE: Final = "20130524/us-east-1/s3/aws4_request"
KEY: Final = signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", SCOPE)
"""The key of Amazon's example."""
SEED: Final = "0" * 64


def payload(content_hash: str, seed: str = SEED, **headers: str) -> Payload:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Payload(content_hash, ScopeKey(KEY, STAMP, SCOPE, seed), named, 10**6)


def chunked(content_hash: str, size: int, trailer: str = "", seed: str = SEED) -> Payload:
    """A body of so many bytes, which announces a trailer."""
    announced = {"x_amz_trailer": trailer} if trailer else {}
    return payload(content_hash, seed, x_amz_decoded_content_length=str(size), **announced)


def signed(
    parts: list[bytes], trailers: dict[str, str] | None = None, seed: str = SEED
) -> list[bytes]:
    return signed_body(KEY, STAMP, SCOPE, seed, parts, trailers)


def read(found: Payload, raw: bytes) -> bytes:
    found.check()
    data = found.read(raw)
    assert isinstance(data, bytes)
    return data


def refused(found: Payload, raw: bytes) -> str:
    with pytest.raises(S3Error) as error:
        read(found, raw)
    return error.value.code


def test_the_example_of_the_documentation() -> None:
    """From "Transferring payload in multiple chunks with trailing headers"."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    first = "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"
    second = "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"
    last = "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"
    trailer = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    body = (
        f"10000;chunk-signature={first}\r\n{'a' * 65_536}\r\n"
        f"400;chunk-signature={second}\r\n{'a' * 1_024}\r\n0;chunk-signature={last}\r\n"
        f"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{trailer}\r\n\r\n"
    )
    found = chunked(SIGNED_TRAILER, 66_560, "x-amz-checksum-crc32c", seed)
    assert read(found, body.encode()) == b"a" * 66_560
    assert found.found == {"crc32c": "sOO8/Q=="}


@randomized("chunked bodies")
def test_any_chunks_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        parts = [rng.randbytes(rng.randint(1, 300)) for _ in range(rng.randrange(5))]
        data = b"".join(parts)
        crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        trailers = {"x-amz-checksum-crc32": crc}
        kind = rng.choice([SIGNED_CHUNKS, SIGNED_TRAILER, UNSIGNED_TRAILER])
        has_trailers = kind != SIGNED_CHUNKS
        if kind == UNSIGNED_TRAILER:
            body = b"".join(unsigned_body(parts, trailers))
        else:
            body = b"".join(signed(parts, trailers if has_trailers else None))
        found = chunked(kind, len(data), "x-amz-checksum-crc32" * has_trailers)
        found.check()

        def pieces(body: bytes = body) -> Iterator[bytes]:
            left = body
            while left:
                size = rng.choice([1, 2, 7, 100, 5000])
                yield left[:size]
                left = left[size:]

        decoded = found.read(pieces())
        assert not isinstance(decoded, bytes)
        assert b"".join(decoded) == data
        assert found.found == ({"crc32": crc} if has_trailers else {})


def test_changed_chunks_are_refused() -> None:
    """Chunks that are exchanged, repeated, left out, changed, or of another request."""
    for kind in (SIGNED_CHUNKS, SIGNED_TRAILER):
        trailers: dict[str, str] | None = {} if kind == SIGNED_TRAILER else None
        parts = [b"aabb", b"ccdd"]
        first, second, *others = chunks = signed(parts, trailers)
        assert read(chunked(kind, 8), b"".join(chunks)) == b"aabbccdd"
        for wrong in (
            [second, first, *others],
            [first, *chunks],
            chunks[1:],
            [first.replace(b"bb", b"bc"), second, *others],
            signed(parts, trailers, seed="1" * 64),
        ):
            assert refused(chunked(kind, 8), b"".join(wrong)) == "SignatureDoesNotMatch", wrong


def test_a_changed_trailer_is_refused() -> None:
    name = "x-amz-checksum-crc32c"
    body = b"".join(signed([], {name: "AAAAAA=="}))
    assert read(chunked(SIGNED_TRAILER, 0, name), body) == b""
    without = body[: body.index(b"x-amz-trailer-signature")] + b"\r\n"
    for wrong in (body.replace(b"AAAAAA", b"AAAAAB"), without):
        assert refused(chunked(SIGNED_TRAILER, 0, name), wrong) == "SignatureDoesNotMatch"


def test_broken_chunks() -> None:
    for body, code in (
        (b"", "IncompleteBody"),
        (b"5\r\na", "IncompleteBody"),
        (b"1\r\na\r\n0\r\n", "IncompleteBody"),
        (b"1\r\nab\r\n0\r\n\r\n", "InvalidRequest"),
        (b"x\r\na\r\n0\r\n\r\n", "InvalidRequest"),
        (b"-1\r\na\r\n0\r\n\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\nx\r\n\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\n\r\nmore", "InvalidRequest"),
        (b"1\r\na\r\n0\r\n" + b"a:b\r\n" * 20 + b"\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\na:b\r\na:c\r\n\r\n", "InvalidRequest"),
        (b"0" * (LINE_BYTES_MAX + 2), "InvalidRequest"),
        (b"0\r\n\r\n", "IncompleteBody"),
    ):
        assert refused(chunked(UNSIGNED_TRAILER, 1), body) == code, body


def test_trailers_only_where_they_belong() -> None:
    body = b"".join(signed([b"a"], {"a": "b"}))
    assert refused(chunked(SIGNED_CHUNKS, 1), body) == "InvalidRequest"
    plain = b"".join(unsigned_body([b"a"], {}))
    assert refused(chunked(SIGNED_CHUNKS, 1), plain) == "InvalidRequest"
    assert refused(chunked(UNSIGNED_TRAILER, 1, "x-amz-checksum-sha1"), plain) == "InvalidRequest"


def test_the_hash_of_a_whole_body() -> None:
    right = hashlib.sha256(b"data").hexdigest()
    assert read(payload(right), b"data") == b"data"
    assert read(payload(right.upper()), b"data") == b"data"
    assert read(payload(UNSIGNED), b"data") == b"data"
    assert refused(payload(right), b"date") == "XAmzContentSHA256Mismatch"
    assert refused(payload("x"), b"data") == "InvalidArgument"
    assert refused(payload("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"), b"") == "NotImplemented"
    assert refused(payload(SIGNED_CHUNKS), b"") == "MissingContentLength"


def test_lengths_and_md5() -> None:
    assert refused(payload(UNSIGNED, content_length="5"), b"data") == "IncompleteBody"
    assert refused(payload(UNSIGNED, content_length="1000001"), b"") == "EntityTooLarge"
    assert refused(payload(UNSIGNED), bytes(1_000_001)) == "EntityTooLarge"
    right = base64.b64encode(hashlib.md5(b"data", usedforsecurity=False).digest()).decode()
    assert read(payload(UNSIGNED, content_md5=right), b"data") == b"data"
    assert refused(payload(UNSIGNED, content_md5=right), b"date") == "BadDigest"
    for wrong in ("", "x", "AAAA", "ä"):
        assert refused(payload(UNSIGNED, content_md5=wrong), b"data") == "InvalidDigest"


def test_each_checksum() -> None:
    """The check values of the algorithms, for "123456789"."""
    values = {
        "crc32": bytes.fromhex("cbf43926"),
        "crc32c": bytes.fromhex("e3069283"),
        "crc64nvme": bytes.fromhex("ae8b14860a799888"),
        "sha1": hashlib.sha1(b"123456789", usedforsecurity=False).digest(),
        "sha256": hashlib.sha256(b"123456789").digest(),
    }
    assert values.keys() == checksums.ALGORITHMS.keys()
    for name, value in values.items():
        text = base64.b64encode(value).decode()
        header = {f"x_amz_checksum_{name}": text}
        found = payload(UNSIGNED, **header)
        assert read(found, b"123456789") == b"123456789"
        assert found.found == {name: text}
        assert refused(payload(UNSIGNED, **header), b"123456788") == "BadDigest"
        body = b"".join(unsigned_body([b"12345", b"6789"], {f"x-amz-checksum-{name}": text}))
        found = chunked(UNSIGNED_TRAILER, 9, f"X-Amz-Checksum-{name}")
        assert read(found, body) == b"123456789"


def test_unknown_checksums_are_left_alone() -> None:
    """Their headers say more than values: the algorithm, or the type of a checksum."""
    found = payload(UNSIGNED, x_amz_checksum_algorithm="CRC32", x_amz_checksum_type="COMPOSITE")
    assert read(found, b"data") == b"data"
