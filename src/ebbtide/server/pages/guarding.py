"""Protects the pages: security headers, cookies, and checks of a form's origin."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Denied
from ebbtide.server import auth
from ebbtide.server.auth import is_foreign, names_no_origin
from ebbtide.store.access.sessions import Session

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
"""Allows only scripts and styles that are files of the package: a script in a name cannot run."""

HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # With a stricter policy browsers do not send the origin of a form.
    (b"referrer-policy", b"same-origin"),
)


def set_cookie(request: Request, response: Response, session: Session) -> None:
    """Sets the session's cookie for the pages' paths."""
    auth.set_cookie(request, response, session, name=COOKIE, path=ROOT)


def drop_cookie(request: Request, response: Response) -> None:
    """Deletes the session's cookie."""
    response.delete_cookie(
        COOKIE,
        path=ROOT,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def check_origin(request: Request) -> None:
    """Refuses a form from another site. The headers `Sec-Fetch-Site` and `Origin` say which site
    a form comes from.

    Raises Denied `request_forged`, also if the browser sends neither header.
    """
    if names_no_origin(request.headers) or is_foreign(request.headers):
        raise Denied(
            "request_forged",
            "the form was not sent from a page of this server: reload the page and send it "
            "again (a proxy in front must pass on the headers Host and Origin)",
        )


def check_form(session: Session, token: str) -> None:
    """Checks the token of a form. Raises Denied `request_forged` if the form was not made for this
    session."""
    if not hmac.compare_digest(session.form_token.encode(), token.encode()):
        raise Denied(
            "request_forged",
            "the form belongs to another login: reload the page, and send it again",
        )
