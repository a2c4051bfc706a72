"""What the pages remember of a browser: its theme."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.pages.login import next_place
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.themes import THEMES, remember_theme
from ebbtide.server.pages.visit import Visit

pages = Pages()


@pages.add("POST", "/theme", None)
def choose_theme(visit: Visit) -> Response:
    """Remembers the theme in a cookie, and shows the page again."""
    theme = visit.form("theme")
    if theme not in THEMES:
        raise InvalidInput("invalid_argument", f"choose one of the themes {', '.join(THEMES)}")
    response = RedirectResponse(next_place(visit.form("next")), status_code=303)
    remember_theme(visit.request, response, theme)
    return response
