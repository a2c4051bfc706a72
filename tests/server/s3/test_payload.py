"""Bodies: chunks, hashes, checksums, and each way in which they can be wrong."""

from __future__ import annotations

import base64
import hashlib
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from ebbtide.server.s3 import checksums
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.payload import (
    LINE_BYTES_MAX,
    SIGNED_CHUNKS,
    SIGNED_TRAILER,
    UNSIGNED_TRAILER,
    Payload,
)
from ebbtide.server.s3.signing import UNSIGNED, ScopeKey, signing_key
from tests.server.s3.chunked import signed_body, unsigned_body
from tests.support.randomized import randomized

STAMP: Final = "20130524T000000Z"
SCOPE: Final = "20130524/us-east-1/s3/aws4_request"
KEY: Final = signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", SCOPE)
"""The key of Amazon's examples."""
DATA: Final = b"a" * 66560
PARTS: Final = (DATA[:65536], DATA[65536:])
TRAILING: Final = {"x-amz-trailer": "x-amz-checksum-crc32c"}


def payload(content_hash: str, seed: str = "0" * 64, **headers: str) -> Payload:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Payload(content_hash, ScopeKey(KEY, STAMP, SCOPE, seed), named, 10**6)


def chunked(content_hash: str, size: int, **headers: str) -> Payload:
    return payload(content_hash, x_amz_decoded_content_length=str(size), **headers)


def read(found: Payload, raw: bytes) -> bytes:
    found.check()
    data = found.read(raw)
    assert isinstance(data, bytes)
    return data


def refused(found: Payload, raw: bytes) -> str:
    with pytest.raises(S3Error) as error:
        read(found, raw)
    return error.value.code


def test_the_example_of_signed_chunks() -> None:
    """From "Transferring payload in multiple chunks"."""
    seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    first = "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
    second = "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
    last = "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"
    body = b"".join(
        (
            f"10000;chunk-signature={first}\r\n".encode(),
            PARTS[0],
            f"\r\n400;chunk-signature={second}\r\n".encode(),
            PARTS[1],
            f"\r\n0;chunk-signature={last}\r\n\r\n".encode(),
        )
    )
    found = payload(SIGNED_CHUNKS, seed, x_amz_decoded_content_length="66560")
    assert read(found, body) == DATA


def test_the_example_of_a_signed_trailer() -> None:
    """From "Transferring payload with trailing headers"."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    first = "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"
    second = "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"
    last = "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"
    trailer = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    body = b"".join(
        (
            f"10000;chunk-signature={first}\r\n".encode(),
            PARTS[0],
            f"\r\n400;chunk-signature={second}\r\n".encode(),
            PARTS[1],
            f"\r\n0;chunk-signature={last}\r\nx-amz-checksum-crc32c:sOO8/Q==\r\n".encode(),
            f"x-amz-trailer-signature:{trailer}\r\n\r\n".encode(),
        )
    )
    found = payload(
        SIGNED_TRAILER,
        seed,
        x_amz_decoded_content_length="66560",
        x_amz_trailer="x-amz-checksum-crc32c",
    )
    assert read(found, body) == DATA
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
        if kind == UNSIGNED_TRAILER:
            body = b"".join(unsigned_body(parts, trailers))
        else:
            more = trailers if kind == SIGNED_TRAILER else None
            body = b"".join(signed_body(KEY, STAMP, SCOPE, "0" * 64, parts, more))
        found = chunked(kind, len(data))
        if kind != SIGNED_CHUNKS:
            found = chunked(kind, len(data), x_amz_trailer="x-amz-checksum-crc32")
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
        assert found.found == ({} if kind == SIGNED_CHUNKS else {"crc32": crc})


def swapped(chunks: list[bytes]) -> list[bytes]:
    return [chunks[1], chunks[0], *chunks[2:]]


def repeated(chunks: list[bytes]) -> list[bytes]:
    return [chunks[0], *chunks]


def dropped(chunks: list[bytes]) -> list[bytes]:
    return chunks[1:]


def changed(chunks: list[bytes]) -> list[bytes]:
    return [chunks[0].replace(b"bb", b"bc"), *chunks[1:]]


@pytest.mark.parametrize("change", [swapped, repeated, dropped, changed])
@pytest.mark.parametrize("kind", [SIGNED_CHUNKS, SIGNED_TRAILER])
def test_changed_chunks_are_refused(
    change: Callable[[list[bytes]], list[bytes]], kind: str
) -> None:
    trailers: dict[str, str] | None = {} if kind == SIGNED_TRAILER else None
    chunks = signed_body(KEY, STAMP, SCOPE, "0" * 64, [b"aabb", b"ccdd"], trailers)
    assert read(chunked(kind, 8), b"".join(chunks)) == b"aabbccdd"
    assert refused(chunked(kind, 8), b"".join(change(chunks))) == "SignatureDoesNotMatch"


def test_a_body_of_another_request_is_refused() -> None:
    body = b"".join(signed_body(KEY, STAMP, SCOPE, "1" * 64, [b"a"]))
    assert refused(chunked(SIGNED_CHUNKS, 1), body) == "SignatureDoesNotMatch"


def test_a_changed_trailer_is_refused() -> None:
    trailers = {"x-amz-checksum-crc32c": "AAAAAA=="}
    body = b"".join(signed_body(KEY, STAMP, SCOPE, "0" * 64, [], trailers))
    found = chunked(SIGNED_TRAILER, 0, x_amz_trailer="x-amz-checksum-crc32c")
    assert read(found, body) == b""
    found = chunked(SIGNED_TRAILER, 0, x_amz_trailer="x-amz-checksum-crc32c")
    assert refused(found, body.replace(b"AAAAAA", b"AAAAAB")) == "SignatureDoesNotMatch"
    without = body[: body.index(b"x-amz-trailer-signature")] + b"\r\n"
    found = chunked(SIGNED_TRAILER, 0, x_amz_trailer="x-amz-checksum-crc32c")
    assert refused(found, without) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "IncompleteBody"),
        (b"1\r\na", "IncompleteBody"),
        (b"5\r\na", "IncompleteBody"),
        (b"1\r\na\r\n", "IncompleteBody"),
        (b"1\r\na\r\n0\r\n", "IncompleteBody"),
        (b"1\r\nab\r\n0\r\n\r\n", "InvalidRequest"),
        (b"x\r\na\r\n0\r\n\r\n", "InvalidRequest"),
        (b"-1\r\na\r\n0\r\n\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\nx\r\n\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\n\r\nmore", "InvalidRequest"),
        (b"1\r\na\r\n0\r\n" + b"a:b\r\n" * 20 + b"\r\n", "InvalidRequest"),
        (b"1\r\na\r\n0\r\na:b\r\na:c\r\n\r\n", "InvalidRequest"),
        (b"0" * (LINE_BYTES_MAX + 2), "InvalidRequest"),
        (b"2\r\nab\r\n0\r\n\r\n", "IncompleteBody"),
        (b"0\r\n\r\n", "IncompleteBody"),
    ],
)
def test_broken_chunks(body: bytes, code: str) -> None:
    assert refused(chunked(UNSIGNED_TRAILER, 1), body) == code


def test_trailers_only_where_they_belong() -> None:
    body = b"".join(signed_body(KEY, STAMP, SCOPE, "0" * 64, [b"a"], {"a": "b"}))
    assert refused(chunked(SIGNED_CHUNKS, 1), body) == "InvalidRequest"
    plain = b"".join(unsigned_body([b"a"], {}))
    assert refused(chunked(SIGNED_CHUNKS, 1), plain) == "InvalidRequest"
    found = chunked(UNSIGNED_TRAILER, 1, x_amz_trailer="x-amz-checksum-sha1")
    assert refused(found, plain) == "InvalidRequest"


def test_the_hash_of_a_whole_body() -> None:
    right = hashlib.sha256(b"data").hexdigest()
    assert read(payload(right), b"data") == b"data"
    assert read(payload(right.upper()), b"data") == b"data"
    assert read(payload(UNSIGNED), b"data") == b"data"
    assert refused(payload(right), b"date") == "XAmzContentSHA256Mismatch"
    assert refused(payload("x"), b"data") == "InvalidArgument"
    assert refused(payload("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"), b"") == "NotImplemented"
    assert refused(payload(SIGNED_CHUNKS), b"") == "MissingContentLength"


def test_lengths() -> None:
    assert refused(payload(UNSIGNED, content_length="5"), b"data") == "IncompleteBody"
    assert refused(payload(UNSIGNED, content_length="1000001"), b"") == "EntityTooLarge"
    assert refused(payload(UNSIGNED), bytes(1_000_001)) == "EntityTooLarge"


def test_md5() -> None:
    right = base64.b64encode(hashlib.md5(b"data", usedforsecurity=False).digest()).decode()
    assert read(payload(UNSIGNED, content_md5=right), b"data") == b"data"
    assert refused(payload(UNSIGNED, content_md5=right), b"date") == "BadDigest"
    for wrong in ("", "x", "AAAA", "ä"):
        assert refused(payload(UNSIGNED, content_md5=wrong), b"data") == "InvalidDigest"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # The check values of the algorithms, for "123456789".
        ("crc32", bytes.fromhex("cbf43926")),
        ("crc32c", bytes.fromhex("e3069283")),
        ("crc64nvme", bytes.fromhex("ae8b14860a799888")),
        ("sha1", hashlib.sha1(b"123456789", usedforsecurity=False).digest()),
        ("sha256", hashlib.sha256(b"123456789").digest()),
    ],
)
def test_each_checksum(name: str, value: bytes) -> None:
    text = base64.b64encode(value).decode()
    header = {f"x_amz_checksum_{name}": text}
    found = payload(UNSIGNED, **header)
    assert read(found, b"123456789") == b"123456789"
    assert found.found == {name: text}
    assert refused(payload(UNSIGNED, **header), b"123456788") == "BadDigest"
    found = chunked(UNSIGNED_TRAILER, 9, x_amz_trailer=f"X-Amz-Checksum-{name}")
    body = b"".join(unsigned_body([b"12345", b"6789"], {f"x-amz-checksum-{name}": text}))
    assert read(found, body) == b"123456789"
    assert name in checksums.ALGORITHMS


def test_unknown_checksums_are_left_alone() -> None:
    """Their headers say more than values: the algorithm, or the type of a checksum."""
    found = payload(UNSIGNED, x_amz_checksum_algorithm="CRC32", x_amz_checksum_type="COMPOSITE")
    assert read(found, b"data") == b"data"
