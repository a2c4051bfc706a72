"""GetObjectAttributes: the properties of an object as a document."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.server.s3 import checksums
from ebbtide.server.s3.call import InThread, S3Call, answer, operation
from ebbtide.server.s3.described import headers_of, sums_of
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.markup import Markup, element, root
from ebbtide.server.s3.objects import readable
from ebbtide.store.access.keys import Role
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import etag_of

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
