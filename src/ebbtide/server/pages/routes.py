"""Pages with the role that each needs.

As with the API routes, every page has a role. A form that was not sent from a page of the same
login is refused before its function is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.errors import Denied, EbbtideError
from ebbtide.server.pages.browser import FORM_TOKEN, ROOT, check_form, check_origin
from ebbtide.server.pages.html import link
from ebbtide.server.pages.visit import Upload, Visit, raw_path
from ebbtide.server.uploads import FormBody, is_form, receive_form
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import Role

PageFunction = Callable[[Visit], Response]
LOGIN: Final = "login"


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One page, or the action of a form. A `role` of None opens it to everybody. With `uploads`,
    the form can contain a file, which the function finds in the visit. If the function raises an
    error that the sender of the form can correct, `again` shows the page of the form with it."""

    method: str
    path: str
    role: Role | None
    function: PageFunction
    uploads: bool = False
    again: PageFunction | None = None

    @property
    def path_format(self) -> str:
        """The name of the page in the server's metrics."""
        return (ROOT + self.path).replace(":segment", "")

    def route(self) -> Route:
        """Returns the route for the application."""
        return Route(ROOT + self.path, _guarded(self), methods=[self.method])

    def answer(self, visit: Visit) -> Response:
        """Returns the page, or the page of the form with the error."""
        try:
            return self.function(visit)
        except EbbtideError as error:
            if self.again is None:
                raise
            visit.refuse(error)
            return self.again(visit)


class Pages:
    """The pages of one topic."""

    def __init__(self) -> None:
        self.routes: list[PageRoute] = []

    def add(
        self,
        method: str,
        path: str,
        role: Role | None,
        *,
        uploads: bool = False,
        again: PageFunction | None = None,
    ) -> Callable[[PageFunction], PageFunction]:
        """Registers a function as a page."""

        def register(function: PageFunction) -> PageFunction:
            self.routes.append(PageRoute(method, path, role, function, uploads, again))
            return function

        return register


def _guarded(route: PageRoute) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        request.scope["route"] = route
        visit = Visit(request)
        request.state.visit = visit
        await run_in_threadpool(visit.identify)
        if route.method == "POST":
            check_origin(request)
        if route.role is not None:
            if visit.session is None:
                return _to_login(request)
            await run_in_threadpool(visit.require, route.role)
        if route.uploads and is_form(request.headers.get("content-type")):
            return await _with_upload(route, visit)
        if route.method == "POST":
            await visit.read_form()
            if visit.session is not None:
                check_form(visit.session, visit.form(FORM_TOKEN))
        return await run_in_threadpool(route.answer, visit)

    return guarded


async def _with_upload(route: PageRoute, visit: Visit) -> Response:
    """Calls the function with the fields and the file of a form. The fields come before the file,
    so that a forged form is refused before any byte of its file is read."""
    form = FormBody(visit.request.headers["content-type"], with_fields=True)

    def work(content: Content) -> Response:
        visit.take(form.fields, Upload(form.filename, form.content_type, content))
        assert visit.session is not None  # pages that take files need a role
        check_form(visit.session, visit.form(FORM_TOKEN))
        return route.answer(visit)

    return await receive_form(visit.request, visit.served, form, work)


def _to_login(request: Request) -> Response:
    """Redirects a request for a page to the login. Raises Denied `key_invalid` for a form, and
    for a request of the pages' script."""
    if request.method not in ("GET", "HEAD") or request.headers.get("accept") == "application/json":
        raise Denied("key_invalid", "you are not logged in any more: log in, and try again")
    place = raw_path(request) + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(link(LOGIN, next=place if place != ROOT else None), status_code=303)
