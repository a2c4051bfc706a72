"""The body of a signed request: decodes chunks, and checks hashes, checksums and length.

Works in the thread that stores the bytes. The last error comes before the end of the iteration, so
that the store publishes nothing.

Sources: "Signature calculations for the authorization header: transferring payload in multiple
chunks", "… including trailing headers", and "Checking object integrity", in the documentation of
Amazon S3.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import S3Error
from ebbtide.doors.s3.signatures import UNSIGNED, ScopeKey
from ebbtide.storage import Content
from ebbtide.storage.base import SizedPieces, chunks

SIGNED_CHUNKS: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
LINE_BYTES_MAX: Final = 8192
TRAILERS_MAX: Final = 16

_SHA256: Final = re.compile("[0-9a-fA-F]{64}")
_LENGTH: Final = re.compile(r"\d{1,15}", re.ASCII)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:;chunk-signature=([0-9a-f]{64}))?")
_TRAILER_SIGNATURE: Final = "x-amz-trailer-signature"


@dataclass(slots=True)
class Payload:
    """The body of one request, as its headers describe it. It is read once.

    `found` has, after the last byte, the checksums that the client sent, by algorithm.
    """

    content_hash: str
    key: ScopeKey
    headers: Mapping[str, str]
    bytes_max: int
    found: dict[str, str] = field(default_factory=dict)
    _trailers: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Checks what the headers alone can show. Raises S3Error."""
        if self._is_chunked:
            if not _LENGTH.fullmatch(self.headers.get("x-amz-decoded-content-length", "")):
                raise S3Error("MissingContentLength", "x-amz-decoded-content-length is missing")
        elif self.content_hash.startswith("STREAMING-"):
            raise S3Error("NotImplemented", f"this server does not know {self.content_hash}")
        elif self.content_hash != UNSIGNED and not _SHA256.fullmatch(self.content_hash):
            raise S3Error("InvalidArgument", "x-amz-content-sha256 is no SHA-256")
        self._algorithms()
        self._md5()
        if self.length is not None and self.length > self.bytes_max:
            raise self._too_large()

    @property
    def length(self) -> int | None:
        """The number of decoded bytes that the client declares, or None."""
        name = "x-amz-decoded-content-length" if self._is_chunked else "content-length"
        text = self.headers.get(name, "")
        return int(text) if _LENGTH.fullmatch(text) else None

    def read(self, raw: Content) -> Content:
        """Returns the decoded bytes of a body. Bytes become bytes, and pieces become pieces.

        Raises S3Error, and the errors that `raw` raises.
        """
        if isinstance(raw, bytes):
            return b"".join(self._checked(self._decoded(iter((raw,)))))
        pieces = self._checked(self._decoded(chunks(raw)))
        return pieces if self.length is None else SizedPieces(pieces, self.length)

    @property
    def _is_chunked(self) -> bool:
        return self.content_hash in (SIGNED_CHUNKS, SIGNED_TRAILER, UNSIGNED_TRAILER)

    def _algorithms(self) -> list[str]:
        """Returns the names of the checksums that the client sends."""
        names = {
            name.removeprefix(checksums.PREFIX)
            for name in (*self.headers, *self._announced())
            if name.startswith(checksums.PREFIX)
        }
        return sorted(names & checksums.ALGORITHMS.keys())

    def _announced(self) -> list[str]:
        return [name.strip().lower() for name in self.headers.get("x-amz-trailer", "").split(",")]

    def _md5(self) -> bytes | None:
        text = self.headers.get("content-md5")
        if text is None:
            return None
        try:
            digest = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            digest = b""
        if len(digest) != 16:
            raise S3Error("InvalidDigest", "the header Content-MD5 is no MD5 in base64")
        return digest

    def _decoded(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        if not self._is_chunked:
            return raw
        signer = None if self.content_hash == UNSIGNED_TRAILER else self.key
        has_trailers = self.content_hash != SIGNED_CHUNKS
        return _Chunks(raw, signer).read(self._trailers, has_trailers=has_trailers)

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        sums = {name: checksums.ALGORITHMS[name]() for name in self._algorithms()}
        md5 = None if self._md5() is None else hashlib.md5(usedforsecurity=False)
        whole = hashlib.sha256() if _SHA256.fullmatch(self.content_hash) else None
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > self.bytes_max:
                raise self._too_large()
            for each in (md5, whole, *sums.values()):
                if each is not None:
                    each.update(piece)
            yield piece
        if self.length is not None and size != self.length:
            raise S3Error("IncompleteBody", f"the body has {size} bytes, not {self.length}")
        if whole is not None and whole.hexdigest() != self.content_hash.lower():
            raise S3Error(
                "XAmzContentSHA256Mismatch", "the body's SHA-256 is not x-amz-content-sha256"
            )
        if md5 is not None and md5.digest() != self._md5():
            raise S3Error("BadDigest", "the body's MD5 is not Content-MD5")
        for name, summing in sums.items():
            self._compare(name, checksums.encoded(summing))

    def _compare(self, algorithm: str, computed: str) -> None:
        header = checksums.PREFIX + algorithm
        given = self._trailers.get(header, self.headers.get(header))
        if given is None:
            raise S3Error("InvalidRequest", f"the trailer {header} was announced, but not sent")
        if given != computed:
            raise S3Error("BadDigest", f"the body's checksum is not the one in {header}")
        self.found[algorithm] = computed

    def _too_large(self) -> S3Error:
        return S3Error("EntityTooLarge", f"the request has more than {self.bytes_max} bytes")


class _Chunks:
    """The decoder of `aws-chunked`."""

    def __init__(self, raw: Iterator[bytes], signer: ScopeKey | None) -> None:
        self._raw = raw
        self._held = b""
        self._at = 0
        """How many of the held bytes were read. Most chunks are shorter than a piece."""
        self._signer = signer
        self._previous = "" if signer is None else signer.seed

    def read(self, trailers: dict[str, str], *, has_trailers: bool) -> Iterator[bytes]:
        """Yields the bytes of all chunks, then puts the trailing headers into `trailers`."""
        while True:
            size, signature = self._head()
            digest = hashlib.sha256()
            remaining = size
            while remaining:
                piece = self._some(remaining)
                remaining -= len(piece)
                digest.update(piece)
                yield piece
            if self._signer is not None:
                expected = self._signer.chunk(self._previous, digest.hexdigest())
                self._require(expected, signature)
            if not size:
                break
            if self._line() != b"":
                raise _broken()
        lines = self._trailing()
        if lines and not has_trailers:
            raise _broken()
        trailers.update(self._verified(lines, has_trailers=has_trailers))
        if self._at < len(self._held) or any(self._raw):
            raise _broken()

    def _head(self) -> tuple[int, str]:
        match = _CHUNK.fullmatch(self._line())
        if match is None or (self._signer is not None and match[2] is None):
            raise _broken()
        return int(match[1], 16), (match[2] or b"").decode()

    def _trailing(self) -> list[tuple[str, str]]:
        """Returns the names and values of the trailing headers, up to the empty line."""
        found: list[tuple[str, str]] = []
        while line := self._line():
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or len(found) == TRAILERS_MAX:
                raise _broken()
            found.append((name.strip().lower(), value.strip()))
        return found

    def _verified(self, lines: list[tuple[str, str]], *, has_trailers: bool) -> dict[str, str]:
        trailers = dict(lines)
        if len(trailers) != len(lines):
            raise _broken()
        given = trailers.pop(_TRAILER_SIGNATURE, "")
        if self._signer is not None and has_trailers:
            text = "".join(f"{name}:{value}\n" for name, value in trailers.items())
            digest = hashlib.sha256(text.encode("latin-1")).hexdigest()
            self._require(self._signer.trailer(self._previous, digest), given)
        return trailers

    def _require(self, expected: str, given: str) -> None:
        if not hmac.compare_digest(expected.encode(), given.encode("latin-1")):
            raise S3Error(
                "SignatureDoesNotMatch",
                "the signature of a chunk is wrong: the body was changed, or its chunks are not in "
                "order",
            )
        self._previous = expected

    def _line(self) -> bytes:
        """Returns the bytes up to the next CRLF."""
        while (end := self._held.find(b"\r\n", self._at)) < 0:
            if len(self._held) - self._at > LINE_BYTES_MAX:
                raise _broken()
            self._take_more()
        line = self._held[self._at : end]
        if len(line) > LINE_BYTES_MAX:
            raise _broken()
        self._at = end + 2
        return line

    def _some(self, size_max: int) -> bytes:
        """Returns between 1 and `size_max` bytes."""
        while self._at == len(self._held):
            self._take_more()
        taken = self._held[self._at : self._at + size_max]
        self._at += len(taken)
        return taken

    def _take_more(self) -> None:
        piece = next(self._raw, None)
        if piece is None:
            raise S3Error("IncompleteBody", "the body ended within its chunks")
        self._held = self._held[self._at :] + piece
        self._at = 0


def _broken() -> S3Error:
    return S3Error("InvalidRequest", "the body's chunks cannot be understood")


def sent_checksums(payload: Payload) -> dict[str, str]:
    """Returns, as headers, the checksums that the client sent with a body."""
    found = {checksums.PREFIX + name: value for name, value in payload.found.items()}
    return found | ({"x-amz-checksum-type": "FULL_OBJECT"} if found else {})
