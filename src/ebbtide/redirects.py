"""Requests by urllib that follow no redirect. Not for: the requests of obstore."""

from __future__ import annotations

from http.client import HTTPMessage
from typing import IO
from urllib.request import HTTPRedirectHandler, Request


class NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as an error: what is sent is only for the address that was asked for."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Returns None, so that the redirect is an error."""
