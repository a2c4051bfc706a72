"""A login by the issuer, from the first redirect to the person: the authorization code flow of
OpenID Connect, with PKCE (RFC 7636), a state and a nonce.

The values of a login stay with the browser, sealed, so that any server of the store can finish it.
ID tokens are checked by OpenID Connect Core 1.0, section 3.1.3.7. Only signatures by a private key
of the issuer count. A token without a signature, or with one that a published key can make, is
refused. Not for: cookies and pages (`pages.login`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import jwt

from ebbtide.errors import Denied, EbbtideError, Failed
from ebbtide.server.oidc.issuer import Issuer
from ebbtide.server.oidc.options import GivenRoles, OidcOptions, claim_of
from ebbtide.store.access.access_keys import NAME_BYTES_MAX
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.access.sessions import Person
from ebbtide.store.names import check_text
from ebbtide.text import readable, shown

FLOW_TIME: Final = timedelta(minutes=10)
"""How long a person may take at the issuer."""
HINT_LENGTH_MAX: Final = 4096
LOGGED_OUT_PATH: Final = "/ui/login?notice=logged_out"
_RANDOM_BYTES: Final = 32
_BOUND_TO: Final = "login by an issuer"


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """What a login was begun with. `expires_at` is in seconds since 1970."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_url: str
    next_page: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class FinishedLogin:
    """A person whom the issuer has authenticated, and the roles by the rules of the settings."""

    person: Person
    given: GivenRoles
    next_page: str
    logout_url: str | None = field(repr=False)


class Provider:
    """Logs people in by the issuer of the settings."""

    def __init__(self, options: OidcOptions, issuer: Issuer, box: SecretBox) -> None:
        self.options = options
        self._issuer = issuer
        self._box = box

    def begin(self, redirect_url: str, next_page: str, now: datetime) -> tuple[str, str]:
        """Returns the address at the issuer to send a browser to, and the text that the browser
        keeps meanwhile. Raises Failed `issuer_error` or `secret_key_missing`."""
        document = self._issuer.document()
        begun = BegunLogin(
            state=_random(),
            nonce=_random(),
            verifier=_random(),
            redirect_url=redirect_url,
            next_page=next_page,
            expires_at=(now + FLOW_TIME).timestamp(),
        )
        asked = {
            "response_type": "code",
            "client_id": self.options.client_id,
            "scope": self.options.scopes,
            "redirect_uri": redirect_url,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": _challenge(begun.verifier),
            "code_challenge_method": "S256",
        }
        return _with_query(document.authorization, asked), self._kept(begun)

    def finish(self, kept: str | None, answer: Mapping[str, str], now: datetime) -> FinishedLogin:
        """Returns the person whom the issuer's answer is about. `kept` is the text of `begin`, from
        the same browser.

        Raises Denied `login_refused` if the answer does not belong to this login or gives no role,
        Failed `issuer_error`.
        """
        begun = self._begun(kept, now)
        if begun is None or not hmac.compare_digest(
            begun.state.encode(), answer.get("state", "").encode("utf-8", "surrogatepass")
        ):
            raise Denied(
                "login_refused",
                "this browser has begun no such login, or more than ten minutes ago: begin again",
            )
        self._check_issuer(answer)
        if "error" in answer:
            raise Denied("login_refused", f"the issuer says {shown(answer['error'])}")
        if not answer.get("code"):
            raise Denied("login_refused", "the issuer's answer has no code")
        token = self._issuer.redeem(
            answer["code"], verifier=begun.verifier, redirect_url=begun.redirect_url
        )
        claims = verified_claims(
            token,
            self._issuer.keys(),
            issuer=self.options.issuer,
            client_id=self.options.client_id,
            nonce=begun.nonce,
        )
        given = self.options.rules.given_by(claims)
        if given is None:
            raise Denied(
                "login_refused",
                f"you are logged in at {self.options.host}, but nothing in the claim "
                f"{shown(self.options.rules.claim)} gives you a role here: ask an admin",
            )
        person = Person(self.options.issuer, claims["sub"], self._name(claims))
        logout_url = self._logout_url(token, begun.redirect_url)
        return FinishedLogin(person, given, begun.next_page, logout_url)

    def _kept(self, begun: BegunLogin) -> str:
        sealed = self._box.seal(json.dumps(asdict(begun)).encode(), bound_to=_BOUND_TO)
        return base64.urlsafe_b64encode(sealed).decode()

    def _begun(self, kept: str | None, now: datetime) -> BegunLogin | None:
        """Returns what a browser kept, or None if it is missing, forged or too old."""
        try:
            sealed = base64.b64decode((kept or "").encode(), altchars=b"-_", validate=True)
            found = json.loads(self._box.open(sealed, bound_to=_BOUND_TO)) if sealed else None
        except (binascii.Error, ValueError):
            return None
        except Failed as error:
            if error.kind != "secret_key_wrong":
                raise
            return None
        begun = None if found is None else BegunLogin(**found)
        return None if begun is None or begun.expires_at <= now.timestamp() else begun

    def _check_issuer(self, answer: Mapping[str, str]) -> None:
        """Refuses the answer of another issuer (RFC 9207)."""
        is_expected = self._issuer.document().names_itself or "iss" in answer
        if is_expected and answer.get("iss") != self.options.issuer:
            raise Denied("login_refused", "the answer is not of the issuer of this server")

    def _name(self, claims: Mapping[str, Any]) -> str:
        """Returns the name that actions record; the subject if the claim has no usable text."""
        for name in (claim_of(claims, self.options.name_claim), claims["sub"]):
            try:
                if isinstance(name, str) and name.strip() and name.isprintable():
                    check_text("the name", name, bytes_max=NAME_BYTES_MAX)
                    return name
            except EbbtideError:
                continue
        return ""

    def _logout_url(self, token: str, redirect_url: str) -> str | None:
        """Returns the address that ends the login at the issuer, and leads back here (OpenID
        Connect RP-Initiated Logout 1.0)."""
        address = self._issuer.document().end_session
        if address is None:
            return None
        here = urlsplit(redirect_url)
        asked = {
            "client_id": self.options.client_id,
            "post_logout_redirect_uri": f"{here.scheme}://{here.netloc}{LOGGED_OUT_PATH}",
        }
        if len(token) <= HINT_LENGTH_MAX:
            asked["id_token_hint"] = token
        return _with_query(address, asked)


def _random() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _with_query(address: str, asked: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"


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
    if not (isinstance(found, str) and hmac.compare_digest(_bytes_of(found), _bytes_of(nonce))):
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


def _bytes_of(text: str) -> bytes:
    """Returns a text from JSON as bytes, even if UTF-8 has none for it."""
    return text.encode("utf-8", "surrogatepass")
