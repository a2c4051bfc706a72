"""A login by the issuer, from the first redirect to the person: the authorization code flow of
OpenID Connect, with PKCE (RFC 7636), a state and a nonce.

What a login was begun with stays with the browser, sealed. So any server of the store can finish
it. Not for: cookies and pages (`pages.oidc`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ebbtide.errors import Denied, EbbtideError, Failed
from ebbtide.server.oidc.issuer import Issuer
from ebbtide.server.oidc.options import OidcOptions
from ebbtide.server.oidc.roles import GivenRoles, claim_of
from ebbtide.server.oidc.tokens import verified_claims
from ebbtide.store.access.access_keys import NAME_BYTES_MAX
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.access.sessions import Person
from ebbtide.store.names import check_text
from ebbtide.text import shown

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
