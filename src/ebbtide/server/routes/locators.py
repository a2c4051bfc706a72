"""Locators: given for what is committed and for uploads, and read by whoever holds one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from ebbtide.model import EPOCH
from ebbtide.server import downloads
from ebbtide.server.routes.objects import PathQuery, RangeHeader
from ebbtide.server.routing import PREFIX, Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.server.uploads import receive_body
from ebbtide.server.wire.base import Segment, Text
from ebbtide.server.wire.locators import LocatorAnswer
from ebbtide.storage import Content
from ebbtide.store.content.entries import Entry
from ebbtide.store.keys import Role
from ebbtide.store.locators import Locators

routes = Routes("locators")

RefQuery = Annotated[Text, Query()]

_LOCATORS: Final = "/locators"
_NO_STORE: Final = {"Cache-Control": "no-store"}
"""Whoever may read ends with the locator, which a cache on the way knows nothing of."""


@routes.add("POST", "/repositories/{repository:segment}/locators", Role.READER, status=201)
def create_locator(
    request: Request, repository: Segment, ref: RefQuery, path: PathQuery, served: ServedDep
) -> LocatorAnswer:
    """A locator for an object that is committed."""
    signed = served.repository(repository).locators.sign_path(ref, path)
    return LocatorAnswer.of(signed, locators_url(request))


@routes.add(
    "POST", "/repositories/{repository:segment}/uploads", Role.WRITER, status=201, streamed=True
)
async def upload(request: Request, repository: Segment, served: ServedDep) -> LocatorAnswer:
    """Upload what is to be a file of a collection that is made afterwards: the body itself, or the
    part `content` of a form. What no collection took is collected after the locator's end."""

    def put(data: Content, content_type: str | None) -> LocatorAnswer:
        signed = served.repository(repository).locators.upload(data, content_type=content_type)
        return LocatorAnswer.of(signed, locators_url(request))

    return await receive_body(request, served, put)


@routes.add("GET", _LOCATORS + "/{token:segment}", None, response_class=StreamingResponse)
def read_locator(
    token: Segment,
    served: ServedDep,
    range: RangeHeader = None,
    if_none_match: RangeHeader = None,
) -> Response:
    """The bytes of a locator's object, or a range of them. Open to all: the signature says that
    whoever holds it may read."""
    answer = downloads.answer(_located(token, served), range, if_none_match)
    answer.headers.update(_NO_STORE)
    return answer


@routes.add("HEAD", _LOCATORS + "/{token:segment}", None, response_class=Response)
def head_locator(token: Segment, served: ServedDep, range: RangeHeader = None) -> Response:
    """What `read_locator` would say, without the bytes."""
    answer = downloads.head(_located(token, served), range)
    answer.headers.update(_NO_STORE)
    return answer


def locators_url(request: Request) -> str:
    """Where this server, as the client knows it, reads locators."""
    return f"{str(request.base_url).rstrip('/')}{PREFIX}{_LOCATORS}"


@dataclass(frozen=True, slots=True)
class _Located:
    """An object as its locator tells of it. It is looked at again when it is read."""

    locators: Locators
    token: str
    entry: Entry

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        return self.locators.read(self.token, start=start, end=end).pieces


def _located(token: str, served: Served) -> _Located:
    locators = served.store.repository_of_locator(token).locators
    return _Located(locators, token, locators.get(token).entry("object", mtime=EPOCH))
