"""The site that a browser's request comes from. Not for: the tokens of forms (`pages.guarding`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers


def is_foreign(headers: Headers) -> bool:
    """Whether the headers `Sec-Fetch-Site` and `Origin` say that a page of another site sent the
    request. Programs that are no browsers send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_own_site = site in (None, "same-origin")
    is_own_origin = origin is None or _host_of(origin) == headers.get("host", "").lower()
    return not (is_own_site and is_own_origin)


def names_no_origin(headers: Headers) -> bool:
    """Whether the request has neither of the two headers."""
    return headers.get("sec-fetch-site") is None and headers.get("origin") is None


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
