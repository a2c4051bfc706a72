"""The issuer: its document, its keys, and the exchange of a code for an ID token.

Everything is fetched when a login needs it, so that the server starts while the issuer is down. The
document is by OpenID Connect Discovery 1.0, section 3. An answer is JSON of limited size, within a
limited time, from an address that nobody on the way can change. Not for: the ID token's content
(`provider`).
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from threading import BoundedSemaphore
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from ebbtide.errors import Denied, Failed
from ebbtide.redirects import NoRedirect
from ebbtide.server.oidc.options import OidcOptions
from ebbtide.settings import tls_address
from ebbtide.text import readable, shown

DOCUMENT_PATH: Final = "/.well-known/openid-configuration"
DOCUMENT_SECONDS_MAX: Final = 300
"""How long the issuer's document is remembered. The keys are fetched for each login."""


@dataclass(frozen=True, slots=True)
class IssuerDocument:
    """The issuer's addresses, and how a client with a secret names itself when it asks for
    tokens."""

    authorization: str
    token: str
    keys: str
    end_session: str | None
    secret_in_form: bool
    names_itself: bool
    """Whether its answers to browsers name the issuer (RFC 9207)."""


class Issuer:
    """The issuer of the settings. Thread-safe. `clock` is in seconds.

    At most `conversations_max` requests to it are under way at a time. If it hangs, other visitors
    still find threads.
    """

    def __init__(
        self,
        options: OidcOptions,
        *,
        conversations_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._free = BoundedSemaphore(conversations_max)
        self._clock = clock
        self._remembered: tuple[float, IssuerDocument] | None = None

    def document(self) -> IssuerDocument:
        """Returns the issuer's document. Raises Failed `issuer_error`."""
        remembered = self._remembered
        if remembered is not None and self._clock() < remembered[0]:
            return remembered[1]
        with self._conversation():
            status, found = fetch_json(self._options.issuer.rstrip("/") + DOCUMENT_PATH)
        document = self._understood(status, found)
        self._remembered = (self._clock() + DOCUMENT_SECONDS_MAX, document)
        return document

    def redeem(self, code: str, *, verifier: str, redirect_url: str) -> str:
        """Returns the ID token for a code (OpenID Connect Core 1.0, section 3.1.3; RFC 7636).

        Raises Denied `login_refused` if the issuer refuses the code, as it does if the code was
        used before, and Failed `issuer_error`.
        """
        document = self.document()
        options = self._options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "client_id": options.client_id,
            "code_verifier": verifier,
        }
        authorization = None
        if options.client_secret is not None and document.secret_in_form:
            form["client_secret"] = options.client_secret
        elif options.client_secret is not None:
            authorization = _basic(options.client_id, options.client_secret)
        with self._conversation():
            status, found = fetch_json(document.token, form=form, authorization=authorization)
        token = found.get("id_token")
        if status == 400 and found.get("error") == "invalid_grant":
            raise Denied(
                "login_refused", "the issuer refused the code of this login: it works only once"
            )
        if status != 200 or not isinstance(token, str):
            said = shown(str(found.get("error", "no ID token")))
            raise Failed(
                "issuer_error",
                f"the issuer answered the exchange of a code with status {status}: {said}",
            )
        return token

    def keys(self) -> list[dict[str, Any]]:
        """Returns the issuer's keys, as in RFC 7517. Raises Failed `issuer_error`."""
        address = self.document().keys
        with self._conversation():
            status, found = fetch_json(address)
        keys = found.get("keys")
        if status != 200 or not isinstance(keys, list):
            raise Failed(
                "issuer_error", f"the issuer answered with status {status}, and without keys"
            )
        return [key for key in keys if isinstance(key, dict)]

    @contextmanager
    def _conversation(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise Failed(
                "issuer_error", "too many logins wait for the issuer: try again in a minute"
            )
        try:
            yield
        finally:
            self._free.release()

    def _understood(self, status: int, found: dict[str, Any]) -> IssuerDocument:
        if status != 200 or found.get("issuer") != self._options.issuer:
            named = shown(str(found.get("issuer")))
            raise Failed(
                "issuer_error",
                f"the document of the issuer {self._options.issuer} has status {status} and is of "
                f"the issuer {named}: the two must be equal",
            )
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        is_listed = isinstance(methods, list)
        return IssuerDocument(
            authorization=_address(found, "authorization_endpoint"),
            token=_address(found, "token_endpoint"),
            keys=_address(found, "jwks_uri"),
            end_session=_address(found, "end_session_endpoint")
            if "end_session_endpoint" in found
            else None,
            secret_in_form=is_listed
            and "client_secret_post" in methods
            and "client_secret_basic" not in methods,
            # Every other value, such as a text, asks for the check rather than against it.
            names_itself=found.get("authorization_response_iss_parameter_supported")
            not in (None, False, "false"),
        )


def _address(found: dict[str, Any], name: str) -> str:
    try:
        return tls_address(str(found.get(name)))
    except ValueError as error:
        raise Failed(
            "issuer_error", f"the issuer's document has no usable {name}: {error}"
        ) from None


def _basic(client_id: str, secret: str) -> str:
    """Returns the header for a client with a secret (RFC 6749, section 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


SILENCE_SECONDS_MAX: Final = 5
TOTAL_SECONDS_MAX: Final = 10
ANSWER_BYTES_MAX: Final = 1 << 20
_PART_BYTES: Final = 1 << 14


def fetch_json(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    authorization: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, dict[str, Any]]:
    """Gets a document, or posts a form. Returns the status and the JSON object of the answer.

    An answer with an error's status counts, if it is a JSON object too. `clock` is in seconds.
    Raises Failed `issuer_error` if there is no such answer within the limits.
    """
    headers = {"Accept": "application/json", "User-Agent": f"ebbtide/{version('ebbtide')}"}
    if authorization is not None:
        headers["Authorization"] = authorization
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    until = clock() + TOTAL_SECONDS_MAX
    try:
        try:
            answer = urllib.request.build_opener(NoRedirect).open(
                request, timeout=SILENCE_SECONDS_MAX
            )
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            status = int(answer.status)
            body = _read(url, answer, until, clock)
    except urllib.error.URLError as error:
        raise _unusable(url, str(error.reason)) from None
    except (OSError, HTTPException, UnicodeError) as error:
        raise _unusable(url, str(error) or type(error).__name__) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _unusable(url, f"it answered with status {status}, and no JSON object")
    return status, found


def _read(
    url: str,
    answer: HTTPResponse | urllib.error.HTTPError,
    until: float,
    clock: Callable[[], float],
) -> bytes:
    """Reads the body of an answer part by part, so that neither its size nor its pace matters."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(_PART_BYTES):
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise _unusable(url, f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        if clock() > until:
            raise _unusable(url, f"its answer took more than {TOTAL_SECONDS_MAX} seconds")
        parts.append(part)
    return b"".join(parts)


def _unusable(url: str, reason: str) -> Failed:
    return Failed(
        "issuer_error", readable(f"the issuer of logins cannot be used at {url}: {reason}")
    )
