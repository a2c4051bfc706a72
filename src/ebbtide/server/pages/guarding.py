"""What keeps the pages to those who may see them: headers, cookies, and where a form came from."""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Denied
from ebbtide.store.sessions import Session

ROOT: Final = "/ui"
COOKIE: Final = "ebbtide_session"
FORM_TOKEN: Final = "form_token"

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
"""No script or style but the files of the package: what a name smuggles into a page is text."""

HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # With a stricter one browsers no longer say where a form came from.
    (b"referrer-policy", b"same-origin"),
)


def set_cookie(request: Request, response: Response, session: Session) -> None:
    """Let the browser hold the session: not for scripts, for other sites' requests, or for paths
    other than the pages'; and not over plain HTTP where it came by TLS."""
    response.set_cookie(
        COOKIE,
        session.token,
        path=ROOT,
        expires=session.expires_at,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def drop_cookie(request: Request, response: Response) -> None:
    """Let the browser forget the session."""
    response.delete_cookie(
        COOKIE,
        path=ROOT,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def check_origin(request: Request) -> None:
    """Refuse a form of another site, by what the browser says of where it comes from.

    Raises Denied `request_forged`, also where the browser says nothing.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_own_site = site in (None, "same-origin")
    is_own_origin = origin is None or _host_of(origin) == request.headers.get("host", "").lower()
    if not (is_own_site and is_own_origin) or (site is None and origin is None):
        raise Denied(
            "request_forged",
            "the form was not sent from a page of this server: open the page anew and send it "
            "there (a proxy in front must pass the headers Host and Origin on)",
        )


def check_form(session: Session, token: str) -> None:
    """Raises Denied `request_forged` for a form that the session was not given."""
    if not hmac.compare_digest(session.form_token.encode(), token.encode()):
        raise Denied(
            "request_forged",
            "the form is not of this login: open the page anew, and send it there",
        )


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
