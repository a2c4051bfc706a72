"""Checks ID tokens (OpenID Connect Core 1.0, section 3.1.3.7).

Only signatures by a private key of the issuer count. A token without a signature, or with one that
a published key can make, is refused. Not for: the roles in a token (`roles`).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from ebbtide.errors import Denied
from ebbtide.text import readable

KEY_TYPES: Final[Mapping[str, str]] = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}
"""The accepted algorithms, with the type of their keys."""
LEEWAY_SECONDS: Final = 60
"""How far the clocks of the issuer and of this server may be apart."""
SUBJECT_LENGTH_MAX: Final = 255
_NEEDED: Final = ("iss", "sub", "aud", "exp", "iat")


def verified_claims(
    token: str, keys: Sequence[Mapping[str, Any]], *, issuer: str, client_id: str, nonce: str
) -> dict[str, Any]:
    """Returns the claims of an ID token that the issuer made for this login.

    `keys` are the issuer's, as in RFC 7517. `nonce` is the one that the login was begun with.
    Raises Denied `login_refused`, with the reason.
    """
    try:
        header = jwt.get_unverified_header(token)
        claims: dict[str, Any] = jwt.decode(
            token,
            _key_of(header, keys),
            algorithms=[header["alg"]],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": list(_NEEDED)},
        )
    except jwt.PyJWTError as error:
        raise _refused(str(error)) from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        # Values of a wrong type, in the token or in a key.
        raise _refused(f"it cannot be read ({type(error).__name__})") from None
    _check_party(claims, client_id)
    found = claims.get("nonce")
    if not (isinstance(found, str) and hmac.compare_digest(_bytes(found), _bytes(nonce))):
        raise _refused("its nonce is of another login")
    subject = claims["sub"]
    if not 0 < len(subject) <= SUBJECT_LENGTH_MAX:
        raise _refused("its subject is empty or too long")
    return claims


def _key_of(header: Mapping[str, Any], keys: Sequence[Mapping[str, Any]]) -> jwt.PyJWK:
    """Returns the key that the header of a token names. Raises Denied `login_refused`."""
    algorithm = str(header.get("alg"))
    if algorithm not in KEY_TYPES:
        raise _refused(f"it is signed by {algorithm}, which is not accepted")
    fitting = [
        key
        for key in keys
        if key.get("kty") == KEY_TYPES[algorithm]
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and ("kid" not in header or key.get("kid") == header["kid"])
    ]
    if len(fitting) != 1:
        raise _refused(f"{len(fitting)} keys of the issuer fit its signature")
    return jwt.PyJWK(dict(fitting[0]), algorithm=algorithm)


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    """Checks that the token was made for this server alone."""
    audience, party = claims["aud"], claims.get("azp")
    is_single = not isinstance(audience, list) or len(audience) == 1
    if party != client_id and not (party is None and is_single):
        raise _refused("it was made for another client")


def _refused(reason: str) -> Denied:
    text = reason[:1].lower() + reason[1:]
    return Denied("login_refused", readable(f"the issuer's ID token is refused: {text}"))


def _bytes(text: str) -> bytes:
    """Returns a text from JSON as bytes, even if UTF-8 has none for it."""
    return text.encode("utf-8", "surrogatepass")
