"""Login and logout, and the route of the static files."""

from __future__ import annotations

from starlette.responses import HTMLResponse, RedirectResponse, Response

from ebbtide.errors import Denied, EbbtideError, InvalidInput, NotFound
from ebbtide.server.pages.assets import assets
from ebbtide.server.pages.guarding import ROOT, drop_cookie, set_cookie
from ebbtide.server.pages.routing import LOGIN, Pages
from ebbtide.server.pages.themes import THEMES, remember_theme
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role

pages = Pages()

FOREVER = "public, max-age=31536000, immutable"


@pages.add("GET", f"/{LOGIN}", None)
def show_login(visit: Visit) -> Response:
    """Shows the login form. A visitor who is logged in is redirected to the next page."""
    if visit.session is not None:
        return RedirectResponse(next_place(visit.query("next")), status_code=303)
    return login_form(visit, next_page=next_place(visit.query("next")))


@pages.add("POST", f"/{LOGIN}", None)
def log_in(visit: Visit) -> Response:
    """Starts a session. An earlier session of the same browser ends."""
    next_page = next_place(visit.form("next"))
    access_key_id = visit.form("access_key_id").strip()
    try:
        session = visit.store.sessions.start(access_key_id, visit.form("secret").strip())
    except Denied as error:
        return login_form(
            visit, next_page=next_page, error=error, access_key_id=access_key_id, status=401
        )
    if visit.session is not None:
        visit.store.sessions.end(visit.session.token)
    response = RedirectResponse(next_page, status_code=303)
    set_cookie(visit.request, response, session)
    return response


@pages.add("POST", "/logout", Role.NONE)
def log_out(visit: Visit) -> Response:
    """Ends the session. A person who logged in by the issuer is led there, to log out there too."""
    assert visit.session is not None
    visit.store.sessions.end(visit.session.token)
    url = visit.session.logout_url
    visit.session = None
    response: Response
    if url is None:
        response = visit.to(LOGIN, notice="logged_out")
    else:
        # A page, not a redirect: browsers let forms lead to no other site (`form-action`).
        response = visit.page("onward.html", text="You are logged out here.", url=url)
    drop_cookie(visit.request, response)
    return response


@pages.add("GET", "/static/{digest:segment}/{name:segment}", None)
def asset(visit: Visit) -> Response:
    """Returns a static file. Browsers may cache it for ever: a changed file has another URL."""
    found = assets().get(visit.segment("name"))
    if found is None or found.digest != visit.segment("digest"):
        raise NotFound("route_not_found", "there is no such file")
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": FOREVER})


def login_form(
    visit: Visit,
    *,
    next_page: str,
    error: EbbtideError | None = None,
    access_key_id: str = "",
    status: int = 200,
) -> HTMLResponse:
    """Returns the page with the form for an access key, and with a link to the issuer if the server
    has one. An error tells why a login failed."""
    return visit.page(
        "login.html",
        status=status,
        next_page=next_page,
        error=error,
        access_key_id=access_key_id,
        issuer=None if visit.provider is None else visit.provider.options.host,
    )


def next_place(next_page: str) -> str:
    """Returns the page to show after the login: one of the pages, and nothing outside them."""
    is_ours = next_page == ROOT or next_page.startswith((f"{ROOT}/", f"{ROOT}?"))
    is_plain = next_page.isascii() and next_page.isprintable() and "\\" not in next_page
    return next_page if is_ours and is_plain else ROOT


@pages.add("POST", "/theme", None)
def choose_theme(visit: Visit) -> Response:
    """Remembers the theme in a cookie, and shows the page again."""
    theme = visit.form("theme")
    if theme not in THEMES:
        raise InvalidInput("invalid_argument", f"choose one of the themes {', '.join(THEMES)}")
    response = RedirectResponse(next_place(visit.form("next")), status_code=303)
    remember_theme(visit.request, response, theme)
    return response
