"""A writer of `aws-chunked` bodies, for tests; written apart from the reader."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

EMPTY: Final = hashlib.sha256(b"").hexdigest()


def mac(key: bytes, *lines: str) -> str:
    return hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def signed_body(
    key: bytes,
    stamp: str,
    scope: str,
    seed: str,
    parts: Iterable[bytes],
    trailers: Mapping[str, str] | None = None,
) -> list[bytes]:
    """The chunks of a body in order, then its end."""
    previous, found = seed, []
    for part in (*parts, b""):
        digest = hashlib.sha256(part).hexdigest()
        previous = mac(key, "AWS4-HMAC-SHA256-PAYLOAD", stamp, scope, previous, EMPTY, digest)
        head = f"{len(part):x};chunk-signature={previous}\r\n".encode()
        found.append(head + part + (b"\r\n" if part else b""))
    if trailers is not None:
        text = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        digest = hashlib.sha256(text.encode()).hexdigest()
        final = mac(key, "AWS4-HMAC-SHA256-TRAILER", stamp, scope, previous, digest)
        found.append(text.replace("\n", "\r\n").encode())
        found.append(f"x-amz-trailer-signature:{final}\r\n".encode())
    return [*found, b"\r\n"]


def unsigned_body(parts: Iterable[bytes], trailers: Mapping[str, str]) -> list[bytes]:
    """The same without signatures."""
    found = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts if part]
    ends = [f"{name}:{value}\r\n".encode() for name, value in trailers.items()]
    return [*found, b"0\r\n", *ends, b"\r\n"]
