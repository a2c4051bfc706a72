"""One file of a branch, tag or commit: its facts, what it contains, and its download.

A file is content of a user. It is sent with a policy that lets nothing in it run, and never under a
type that a browser would interpret, except images that are recognized by their bytes.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response, StreamingResponse

from ebbtide.errors import NotFound
from ebbtide.server.api import downloads
from ebbtide.server.pages.files import crumbs_of
from ebbtide.server.pages.previewing import HEAD_BYTES, image_type, preview, read_range
from ebbtide.server.pages.ref_choices import choices_of
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import without_checksums
from ebbtide.store.objects.objects import Readable
from ebbtide.text import shown

pages = Pages()

_OBJECT: Final = "/repositories/{repository:segment}/object"
OCTETS: Final = "application/octet-stream"
CONTENT_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every answer that has the bytes of a user's file."""


@pages.add("GET", _OBJECT, Role.READER)
def show_object(visit: Visit) -> Response:
    """Shows a file (`path`) at a ref (`ref`)."""
    repository, path = visit.repository(), visit.query("path")
    ref = visit.query("ref") or repository.info.default_branch
    found = repository.objects.open(ref, path)
    prefix = path[: path.rfind("/") + 1]
    return visit.page(
        "object.html",
        name=repository.info.name,
        ref=ref,
        path=path,
        prefix=prefix,
        file_name=path[len(prefix) :] or path,
        crumbs=crumbs_of(prefix),
        choices=choices_of(repository),
        entry=found.entry,
        metadata=without_checksums(found.entry.metadata),
        preview=preview(found),
    )


@pages.add("GET", _OBJECT + "/content", Role.READER)
def send_object(visit: Visit) -> Response:
    """Sends a file, or a range of it, for saving. With `as=image`, sends an image for the page that
    shows it."""
    path, headers = visit.query("path"), visit.request.headers
    found = visit.repository().objects.open(visit.query("ref"), path)
    if visit.query("as") == "image":
        return _image(found)
    options = downloads.DownloadOptions(
        headers.get("range"), headers.get("if-none-match"), headers.get("if-modified-since")
    )
    answer = downloads.answer(found, options, path)
    answer.headers.update(CONTENT_HEADERS)
    answer.headers["Content-Type"] = OCTETS
    answer.headers["Content-Disposition"] = downloads.attachment(path)
    return answer


def _image(found: Readable) -> Response:
    """Returns an image, under the type that its first bytes have. Raises NotFound
    `object_not_found` for any other file."""
    media_type = image_type(read_range(found, 0, HEAD_BYTES), found.entry)
    if media_type is None:
        raise NotFound(
            "object_not_found", f"{shown(found.entry.path)} is no image that a page can show"
        )
    headers = {**CONTENT_HEADERS, "Content-Length": str(found.entry.size_bytes)}
    return StreamingResponse(found.stream(), 200, headers, media_type=media_type)
