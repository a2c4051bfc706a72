"""Locators: made for committed objects and for uploads, and read by anybody who has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from ebbtide.model import EPOCH
from ebbtide.server.api import downloads
from ebbtide.server.api.base import OCTETS, Segment, Text, Wire
from ebbtide.server.api.objects import PathQuery
from ebbtide.server.api.routes import PREFIX, Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.server.uploads import receive_body
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.locators import Locators, Signed


class LocatorAnswer(Wire):
    """A locator and its object. Until `expires_at` the bytes can be read at `url` without an access
    key, and new content of collections can be made with the locator."""

    locator: str
    url: str
    expires_at: datetime
    size_bytes: int
    checksum: str
    content_type: str

    @classmethod
    def of(cls, found: Signed, locators_url: str) -> LocatorAnswer:
        """Makes the answer for a locator. Clients read locators below `locators_url`."""
        return cls(
            locator=found.locator,
            url=found.url or f"{locators_url}/{found.locator}",
            expires_at=found.expires_at,
            size_bytes=found.entry.size_bytes,
            checksum=found.entry.checksum,
            content_type=found.entry.content_type or OCTETS,
        )


routes = Routes("locators")

RefQuery = Annotated[Text, Query()]

_LOCATORS: Final = "/locators"
_NO_STORE: Final = {"Cache-Control": "no-store"}
"""Forbids caching: the right to read ends when the locator expires, and a cache does not know
when."""


@routes.add("POST", "/repositories/{repository:segment}/locators", Role.READER, status=201)
def create_locator(
    request: Request, repository: Segment, ref: RefQuery, path: PathQuery, served: ServedDep
) -> LocatorAnswer:
    """Creates a locator for a committed object."""
    signed = served.repository(repository).locators.sign_path(ref, path)
    return LocatorAnswer.of(signed, locators_url(request))


@routes.add(
    "POST", "/repositories/{repository:segment}/uploads", Role.WRITER, status=201, streamed=True
)
async def upload(request: Request, repository: Segment, served: ServedDep) -> LocatorAnswer:
    """Uploads an object for a collection that is made afterwards. The body is the object itself, or
    a form with the part `content`.

    If no collection has taken the object when the locator expires, the object is deleted.
    """

    def put(data: Content, content_type: str | None) -> LocatorAnswer:
        signed = served.repository(repository).locators.upload(data, content_type=content_type)
        return LocatorAnswer.of(signed, locators_url(request))

    return await receive_body(request, served, put)


@routes.add("GET", _LOCATORS + "/{token:segment}", None, response_class=StreamingResponse)
def read_locator(
    token: Segment, served: ServedDep, options: downloads.DownloadOptionsDep
) -> Response:
    """Returns the bytes of a locator's object, or a range of them. The route is public: the
    locator's signature is the permission to read."""
    answer = downloads.answer(_located(token, served), options)
    answer.headers.update(_NO_STORE)
    return answer


@routes.add("HEAD", _LOCATORS + "/{token:segment}", None, response_class=Response)
def head_locator(
    token: Segment, served: ServedDep, options: downloads.DownloadOptionsDep
) -> Response:
    """Returns the headers of a locator's object without its bytes."""
    answer = downloads.head(_located(token, served), options)
    answer.headers.update(_NO_STORE)
    return answer


def locators_url(request: Request) -> str:
    """Returns the URL under which the client can read locators from this server."""
    return f"{str(request.base_url).rstrip('/')}{PREFIX}{_LOCATORS}"


@dataclass(frozen=True, slots=True)
class _Located:
    """An object as its locator describes it. The locator is checked again when the object is
    read."""

    locators: Locators
    token: str
    entry: Entry

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        return self.locators.read(self.token, start=start, end=end).pieces


def _located(token: str, served: Served) -> _Located:
    locators = served.store.repository_of_locator(token).locators
    return _Located(locators, token, locators.get(token).entry("object", mtime=EPOCH))
