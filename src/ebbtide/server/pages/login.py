"""Login and logout, by an access key or by the issuer, and the route of the static files.

A browser sends no cookie of the session on a navigation that another site began. So the page after
the issuer's answer is a page of this server, which leads on.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ebbtide.errors import Denied, EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.server.errors import STATUS
from ebbtide.server.oidc.options import CALLBACK_PATH
from ebbtide.server.pages.browser import (
    ROOT,
    THEMES,
    assets,
    drop_cookie,
    remember_theme,
    set_cookie,
)
from ebbtide.server.pages.routes import LOGIN, Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.settings import is_loopback_name
from ebbtide.store.access.access_keys import Role
from ebbtide.store.access.sessions import PersonLogin

if TYPE_CHECKING:
    from ebbtide.server.oidc.provider import FinishedLogin, Provider


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


logger = logging.getLogger(__name__)

FLOW_COOKIE: Final = "ebbtide_login"
FLOW_PATH: Final = f"/ui/{LOGIN}/oidc"
_HOST: Final = re.compile(r"[A-Za-z0-9.]+(:[0-9]{1,5})?|\[[0-9a-fA-F:.]+\](:[0-9]{1,5})?")


@pages.add("GET", f"/{LOGIN}/oidc", None)
def begin_login(visit: Visit) -> Response:
    """Redirects to the issuer. The browser keeps what the login was begun with."""
    provider = _provider(visit)
    next_page = next_place(visit.query("next"))
    try:
        redirect_url = _redirect_url(visit.request, provider)
        url, kept = provider.begin(redirect_url, next_page, visit.now())
    except (Failed, InvalidInput) as error:
        return _refusal(visit, error, next_page)
    response = RedirectResponse(url, status_code=303)
    response.set_cookie(
        FLOW_COOKIE,
        kept,
        path=FLOW_PATH,
        secure=_is_tls(visit.request),
        httponly=True,
        # The issuer's redirect is a navigation from another site, which must carry it.
        samesite="lax",
    )
    return response


@pages.add("GET", f"/{LOGIN}/oidc/callback", None)
def finish_login(visit: Visit) -> Response:
    """Starts a session for the person whom the issuer names, and leads on. An earlier session of
    the same browser ends."""
    provider = _provider(visit)
    answer = {name: visit.query(name) for name in visit.request.query_params}
    try:
        kept = visit.request.cookies.get(FLOW_COOKIE)
        login = provider.finish(kept, answer, visit.now())
        session = visit.store.sessions.start_of(login.person, _resolved(visit, login))
    except (Denied, Failed) as error:
        return _without_flow(visit, _refusal(visit, error, next_place("")))
    if visit.session is not None:
        visit.store.sessions.end(visit.session.token)
    visit.session, visit.role = session, session.key.role
    text = "You are logged in."
    response: Response = visit.page("onward.html", text=text, url=login.next_page)
    set_cookie(visit.request, response, session)
    return _without_flow(visit, response)


def _provider(visit: Visit) -> Provider:
    if visit.provider is None:
        raise NotFound("route_not_found", "this server has no issuer of logins")
    return visit.provider


def _redirect_url(request: Request, provider: Provider) -> str:
    """Returns the address that the issuer sends the browser back to.

    The header Host is what the client says. So it counts only if it is a loopback address: no one
    else can be there. Raises InvalidInput `invalid_setting`.
    """
    if provider.options.redirect_url is not None:
        return provider.options.redirect_url
    host = request.headers.get("host", "")
    is_here = _HOST.fullmatch(host) and is_loopback_name(urlsplit(f"//{host}").hostname)
    if not is_here:
        raise InvalidInput(
            "invalid_setting",
            "the operator must set EBBTIDE_OIDC_REDIRECT_URL: only browsers on the server's "
            "machine can log in by the issuer without it",
            setting="oidc_redirect_url",
        )
    return f"{request.url.scheme}://{host}{CALLBACK_PATH}"


def _resolved(visit: Visit, login: FinishedLogin) -> PersonLogin:
    """Returns the login with the ids of the live repositories whose names the rules have."""
    found: dict[str, Role] = {}
    for name, role in login.given.repositories.items():
        try:
            found[visit.store.catalog.get(name).info.repository_id] = role
        except NotFound:
            continue
    issuer = login.person.issuer
    return PersonLogin(issuer, login.given.role, found, login.logout_url)


def _refusal(visit: Visit, error: EbbtideError, next_page: str) -> Response:
    """Returns the login page with the reason, which the log has too if the operator must act."""
    status = STATUS[error.kind]
    if status >= 500:
        logger.error("%s: %s", error.kind, error.message)
    return login_form(visit, next_page=next_page, error=error, status=status)


def _without_flow(visit: Visit, response: Response) -> Response:
    """Deletes the cookie of the login, which counts once."""
    response.delete_cookie(
        FLOW_COOKIE, path=FLOW_PATH, secure=_is_tls(visit.request), httponly=True, samesite="lax"
    )
    return response


def _is_tls(request: Request) -> bool:
    return request.url.scheme == "https"
