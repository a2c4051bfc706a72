"""The pages as an application in front of the API routes, with its own paths, sessions and
errors."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.errors import EbbtideError, quarantine_fields
from ebbtide.prices import Prices
from ebbtide.server.errors import STATUS, BreakingOff
from ebbtide.server.pages import (
    candidates,
    collections,
    commits,
    diffs,
    explanations,
    files,
    holds,
    login,
    looks,
    policies,
    purges,
    refs,
    repositories,
    runs,
    schedules,
    trash,
    trends,
)
from ebbtide.server.pages.browser import HEADERS, ROOT, theme_of
from ebbtide.server.pages.candidates import ChartsKept
from ebbtide.server.pages.html import render
from ebbtide.server.pages.routes import PageRoute
from ebbtide.server.pages.trends import Figures
from ebbtide.server.pages.visit import Visit

logger = logging.getLogger(__name__)

TOPICS: Final = (
    login,
    repositories,
    files,
    commits,
    diffs,
    explanations,
    refs,
    collections,
    policies,
    looks,
    holds,
    # Before `runs`, whose paths have the id of a run where these have a word.
    trends,
    schedules,
    runs,
    candidates,
    trash,
    purges,
)


def page_routes() -> list[PageRoute]:
    """Returns the routes of all pages."""
    return [route for topic in TOPICS for route in topic.pages.routes]


def make_pages(state: Any) -> Starlette:  # the state of the server's application
    """Returns the application of the pages. `state` holds the store and the jobs."""
    pages = Starlette(
        routes=[route.route() for route in page_routes()],
        exception_handlers={
            EbbtideError: _ebbtide_error,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
        # A file whose bytes cannot be read to their end: the browser must notice.
        middleware=[Middleware(BreakingOff)],
    )
    state.figures = Figures()
    state.charts = ChartsKept()
    state.prices = Prices.of(state.store.settings)
    pages.state = state
    return pages


class PagesInFront:
    """Sends requests for pages to the pages, and all other requests to the API. Adds the pages'
    security headers.

    A browser that opens the server's root is redirected to the pages.
    """

    def __init__(self, app: ASGIApp, *, pages: ASGIApp) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or forwards it."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == ROOT or path.startswith(f"{ROOT}/"):
            await self._pages(scope, receive, _with_headers(send))
        elif path == "/" and _is_browser(scope):
            await RedirectResponse(ROOT, status_code=303)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_browser(scope: Scope) -> bool:
    accepted = Request(scope).headers.get("accept", "")
    return scope["method"] in ("GET", "HEAD") and "text/html" in accepted


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            # A file of a user brings its own policy, which is stricter than that of a page.
            added = [(b"cache-control", b"no-store"), *HEADERS]
            given += [(name, value) for name, value in added if name not in names]
            message = {**message, "headers": given}
        await send(message)

    return sending


def _ebbtide_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EbbtideError)
    status = STATUS[error.kind]
    if status >= 500:
        logger.error("%s: %s", error.kind, error.message)
    request.app.state.store.tell(error)
    return _error_page(request, status, error.kind, error.message, error)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        return _error_page(request, error.status_code, "route_not_found", "There is no such page.")
    return _error_page(request, error.status_code, "invalid_argument", str(error.detail))


def _unexpected(request: Request, _error: Exception) -> Response:
    # The traceback is in the server's log. Visitors do not need to see it.
    text = "a defect in this program: the server's log says more"
    return _error_page(request, 500, "internal", text)


def _error_page(
    request: Request, status: int, kind: str, message: str, error: EbbtideError | None = None
) -> Response:
    if request.headers.get("accept") == "application/json":
        more = {} if error is None else quarantine_fields(error)
        return JSONResponse({"kind": kind, "message": message, **more}, status_code=status)
    visit = getattr(request.state, "visit", None)
    if isinstance(visit, Visit) and visit.session is not None:
        return visit.page(
            "error.html",
            status=status,
            code=status,
            kind=kind,
            message=message,
            error=error,
            sections=(),
        )
    theme = theme_of(request)
    page = render("stranger.html", code=status, kind=kind, message=message, theme=theme)
    return HTMLResponse(page, status)
