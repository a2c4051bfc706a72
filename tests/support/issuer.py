"""An issuer of OpenID Connect on the loopback address, with keys of its own.

It logs everybody in at once, as the person that the test sets. A test can replace each of its
answers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.support.answers import Handler, http_server

CLIENT_ID: Final = "ebbtide pages"
CLIENT_SECRET: Final = "s3cret: of the pages"

RSA_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY: Final = ec.generate_private_key(ec.SECP256R1())

Claims = dict[str, Any]
Sign = Callable[[Claims], str]
Answer = tuple[int, bytes]


def by_rsa(claims: Claims) -> str:
    return jwt.encode(claims, RSA_KEY, algorithm="RS256", headers={"kid": "rsa"})


def by_ec(claims: Claims) -> str:
    return jwt.encode(claims, EC_KEY, algorithm="ES256", headers={"kid": "ec"})


def by_nobody(claims: Claims) -> str:
    return (_signed({"alg": "none", "typ": "JWT"}, claims) + b".").decode()


def by_public_key(claims: Claims) -> str:
    """By a hash whose secret is the public key, which everybody has."""
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = _signed({"alg": "HS256", "typ": "JWT", "kid": "rsa"}, claims)
    return (signed + b"." + _base64(hmac.digest(public, signed, "sha256"))).decode()


def by_another_key(claims: Claims) -> str:
    return jwt.encode(claims, OTHER_KEY, algorithm="RS256", headers={"kid": "rsa"})


def public_keys() -> list[dict[str, Any]]:
    rsa_key = RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)
    ec_key = ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True)
    return [
        {**rsa_key, "kid": "rsa", "use": "sig", "alg": "RS256"},
        {**ec_key, "kid": "ec", "use": "sig"},
        {**rsa_key, "kid": "rsa", "use": "enc"},
    ]


def _signed(header: Claims, claims: Claims) -> bytes:
    """The part of a token that a signature is over."""
    return b".".join(_base64(json.dumps(each).encode()) for each in (header, claims))


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@dataclass(slots=True)
class TestIssuer:
    """The issuer, as a test sets it. `extra` are claims besides those that every token has, or in
    their place; None leaves a claim out. `answers` replace answers, by path. `asked` has the paths
    of the requests so far."""

    __test__ = False

    url: str
    extra: dict[str, Any] = field(default_factory=lambda: {"groups": ["readers"]})
    sign: Sign = by_rsa
    document: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Callable[[], Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    secret: str | None = CLIENT_SECRET
    logged_out: list[dict[str, str]] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?tenant=a",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/logout",
            **self.document,
        }

    def authorize(self, asked: Mapping[str, str]) -> str:
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["client_id"] == CLIENT_ID and "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = dict(asked)
        answer = {"code": code, "state": asked["state"]}
        if self.document.get("authorization_response_iss_parameter_supported"):
            answer["iss"] = self.url
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def redeem(self, form: Mapping[str, str], header: str | None) -> tuple[int, dict[str, Any]]:
        if not self._is_client(form, header):
            return 401, {"error": "invalid_client"}
        begun = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if (
            begun is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != begun["redirect_uri"]
            or _base64(digest).decode() != begun["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "248289761001",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": begun["nonce"],
            "email": "ada@example.org",
            **self.extra,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return 200, {"id_token": self.sign(claims), "access_token": "a", "token_type": "Bearer"}

    def _is_client(self, form: Mapping[str, str], header: str | None) -> bool:
        if self.secret is None:
            return header is None and form["client_id"] == CLIENT_ID
        if self.document.get("token_endpoint_auth_methods_supported") == ["client_secret_post"]:
            return header is None and form["client_secret"] == self.secret
        pair = f"{quote_plus(CLIENT_ID)}:{quote_plus(self.secret)}".encode()
        return header == f"Basic {base64.b64encode(pair).decode()}" and "client_secret" not in form


class _Handler(Handler, BaseHTTPRequestHandler):
    issuer: TestIssuer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = dict(parse_qsl(parts.query))
        if self._replaced(parts.path):
            return
        if parts.path == "/.well-known/openid-configuration":
            self._json(200, self.issuer.described())
        elif parts.path == "/keys":
            self._json(200, {"keys": public_keys()})
        elif parts.path == "/authorize":
            self._send(302, self.issuer.authorize(asked).encode())
        elif parts.path == "/logout":
            self.issuer.logged_out.append(asked)
            self._send(302, asked["post_logout_redirect_uri"].encode())
        else:
            self._json(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self._replaced(self.path):
            form = dict(parse_qsl(body))
            self._json(*self.issuer.redeem(form, self.headers["Authorization"]))

    def _replaced(self, path: str) -> bool:
        self.issuer.asked.append(path)
        if path not in self.issuer.answers:
            return False
        self._send(*self.issuer.answers[path]())
        return True

    def _json(self, status: int, content: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(content).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.answer(status, body, **({"Location": body.decode()} if status == 302 else {}))


@contextmanager
def issuing(host: str = "127.0.0.1") -> Iterator[TestIssuer]:
    """Yields an issuer. Its URL has this name of the loopback address."""
    issuer = TestIssuer("")
    with http_server(type("Serving", (_Handler,), {"issuer": issuer})) as port:
        issuer.url = f"http://{host}:{port}"
        yield issuer
