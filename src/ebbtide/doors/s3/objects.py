"""Reads of objects: GetObject, HeadObject and GetObjectAttributes."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.call import InThread, S3Call, answer, operation, reads
from ebbtide.doors.s3.described import (
    checksum_headers,
    headers_of,
    is_unchanged,
    may_use_range,
    sums_of,
)
from ebbtide.doors.s3.errors import S3Error
from ebbtide.doors.s3.markup import Markup, element, root
from ebbtide.server.api.downloads import find_range, response_of
from ebbtide.store.access.keys import Role
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import etag_of
from ebbtide.store.objects.objects import Readable
from ebbtide.store.staging.multipart import PART_NUMBER_MAX

OVERRIDES: Final = {
    f"response-{name.lower()}": name
    for name in (
        "Cache-Control",
        "Content-Disposition",
        "Content-Encoding",
        "Content-Language",
        "Content-Type",
        "Expires",
    )
}
"""Maps names in a query to the headers that they set."""
_VISIBLE: Final = re.compile(r"[\x20-\x7e]*")


@operation("GetObject", Role.READER, "object", "GET")
@InThread
def get_object(call: S3Call) -> Response:
    """Returns the bytes of an object, or a range of them."""
    found = readable(call)
    entry = found.entry
    if is_unchanged(entry, call.headers):
        return Response(status_code=304, headers=headers_of(entry))
    status, headers, part = _described(call, entry)
    return response_of(found, part, status, headers)


@operation("HeadObject", Role.READER, "object", "HEAD")
@InThread
def head_object(call: S3Call) -> Response:
    """Returns the headers of an object, also of an expired commit or a purged object.

    An error here has no body, so it could not say why. Most clients send HEAD before GET, which
    says so. S3 does the same for archived objects.
    """
    repository = call.repository()
    entry = reads(lambda: repository.objects.stat(*call.place()))
    if is_unchanged(entry, call.headers):
        return Response(status_code=304, headers=headers_of(entry))
    status, headers, _ = _described(call, entry)
    return Response(None, status, headers)


def readable(call: S3Call) -> Readable:
    """Returns the object of a request. Raises S3Error `NoSuchKey`, and as `Objects.open` does."""
    repository = call.repository()
    return reads(lambda: repository.objects.open(*call.place()))


def _described(call: S3Call, entry: Entry) -> tuple[int, dict[str, str], tuple[int, int] | None]:
    """Returns the status, the headers, and the range that the request names."""
    headers = headers_of(entry) | _overrides(call)
    if "partNumber" in call.query:
        part = _only_part(call, entry)
        headers |= {"x-amz-mp-parts-count": "1"} | checksum_headers(entry, call.headers)
    else:
        header = call.headers.get("range") if may_use_range(entry, call.headers) else None
        part = find_range(header, entry.size_bytes)
    if part is None:
        size = {"Content-Length": str(entry.size_bytes)}
        return 200, headers | checksum_headers(entry, call.headers) | size, None
    start, end = part
    headers["Content-Length"] = str(end - start)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
    return 206, headers, part


def _only_part(call: S3Call, entry: Entry) -> tuple[int, int] | None:
    """Returns the range of a part. Objects do not keep their parts: part 1 is the whole object.

    None for an object without bytes, which has no range. Raises S3Error `InvalidPartNumber` or
    `InvalidRequest`.
    """
    number = call.number("partNumber", 1, least=1, most=PART_NUMBER_MAX)
    if "range" in call.headers:
        raise S3Error("InvalidRequest", "give either a range or partNumber")
    if number > 1:
        raise S3Error("InvalidPartNumber", "an object does not keep its parts: it has part 1 alone")
    return (0, entry.size_bytes) if entry.size_bytes else None


def _overrides(call: S3Call) -> dict[str, str]:
    found = {OVERRIDES[name]: value for name, value in call.query.items() if name in OVERRIDES}
    for name, value in found.items():
        if not _VISIBLE.fullmatch(value):
            raise S3Error("InvalidArgument", f"the value for {name} is no value of a header")
    return found


NAMES: Final = frozenset(("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"))


@operation("GetObjectAttributes", Role.READER, "object", "GET", "attributes")
@InThread
def get_attributes(call: S3Call) -> Response:
    """Returns the attributes that the request names. Objects keep no parts, so that `ObjectParts`
    is always left out."""
    names = {part.strip() for part in call.headers.get("x-amz-object-attributes", "").split(",")}
    if not names <= NAMES:
        raise S3Error(
            "InvalidArgument", f"x-amz-object-attributes has some of {', '.join(sorted(NAMES))}"
        )
    entry = readable(call).entry
    content = [each for name, each in _elements(entry).items() if name in names]
    headers = {"Last-Modified": headers_of(entry)["Last-Modified"]}
    return answer(root("GetObjectAttributesResponse", *content), headers)


def _elements(entry: Entry) -> dict[str, Markup]:
    found = {
        "ETag": element("ETag", etag_of(entry)),
        "StorageClass": element("StorageClass", "STANDARD"),
        "ObjectSize": element("ObjectSize", entry.size_bytes),
    }
    sums = sums_of(entry)
    if sums:
        found["Checksum"] = element("Checksum", *checksums.elements(sums))
    return found
