"""Signed tokens: what the store promised to whoever holds one. Not for what a promise means.

A token is `<key id>.<payload>.<mac>`: the payload as JSON and the HMAC-SHA256 over key id and
payload, both in base64url without padding (RFC 4648, section 5). The newest key signs; each that is
still there verifies.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key, and the id by which tokens name it."""

    key_id: str
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SigningKey:
        """A new one."""
        return cls(new_id(), secrets.token_bytes(KEY_BYTES))


def sign(key: SigningKey, payload: Mapping[str, Any]) -> str:
    """A token that carries `payload` (JSON-ready)."""
    body = _encode(json.dumps(payload, separators=(",", ":")).encode())
    return f"{key.key_id}.{body}.{_mac(key, body)}"


def verify(keys: Mapping[str, bytes], token: str) -> dict[str, Any]:
    """What a token carries. `keys` are secrets by key id.

    Raises InvalidInput `token_invalid` for anything that no key of the store has signed.
    """
    key_id, _, rest = token.partition(".")
    body, _, mac = rest.partition(".")
    secret = keys.get(key_id)
    if secret is None or not mac.isascii():
        raise _invalid()
    if not hmac.compare_digest(_mac(SigningKey(key_id, secret), body), mac):
        raise _invalid()
    try:
        payload: dict[str, Any] = json.loads(_decode(body))
    except (binascii.Error, ValueError):
        raise _invalid() from None
    return payload


def _mac(key: SigningKey, body: str) -> str:
    signed = f"{key.key_id}.{body}".encode("utf-8", "surrogatepass")
    return _encode(hmac.digest(key.secret, signed, "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _invalid() -> InvalidInput:
    return InvalidInput("token_invalid", "this store has signed no such token: ask for a new one")
