"""Headers, cookies and static files of the pages, and checks of a form's origin.

The URL of a static file contains the hash of its content. Browsers can therefore cache it for ever,
and never use an old version. A cookie remembers the theme: light, dark, or as the system prefers.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
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


SYSTEM: Final = "system"
THEMES: Final = (SYSTEM, "light", "dark")
THEME_COOKIE: Final = "ebbtide_theme"
_YEAR: Final = timedelta(days=365)


def theme_of(request: Request) -> str:
    """Returns the theme that the browser's cookie names; SYSTEM without one, or for any other
    text."""
    chosen = request.cookies.get(THEME_COOKIE)
    return chosen if chosen in THEMES else SYSTEM


def remember_theme(request: Request, response: Response, theme: str) -> None:
    """Sets the cookie for a year. SYSTEM deletes it. The cookie holds no secret, so that links from
    other sites may carry it."""
    is_tls = request.url.scheme == "https"
    if theme == SYSTEM:
        response.delete_cookie(
            THEME_COOKIE, path=ROOT, secure=is_tls, httponly=True, samesite="lax"
        )
        return
    response.set_cookie(
        THEME_COOKIE,
        theme,
        path=ROOT,
        max_age=int(_YEAR.total_seconds()),
        secure=is_tls,
        httponly=True,
        samesite="lax",
    )


MEDIA_TYPES: Final = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HASH_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    name: str
    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """The hash of the content: the first HASH_LENGTH hexadecimal digits of its SHA-256."""
        return hashlib.sha256(self.content).hexdigest()[:HASH_LENGTH]

    @property
    def url(self) -> str:
        """The URL path of the file."""
        return f"{ROOT}/static/{self.digest}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """Returns all static files, by name."""
    folder = files("ebbtide.server.pages") / "static"
    return {
        name: Asset(name, (folder / name).read_bytes(), media_type)
        for name, media_type in MEDIA_TYPES.items()
    }
