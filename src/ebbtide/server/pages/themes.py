"""The theme of the pages: light, dark, or as the system prefers. A cookie remembers the choice."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.server.pages.guarding import ROOT

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
