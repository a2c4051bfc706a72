"""XML of S3, and errors as S3 tells them: codes, their statuses, and the XML of an answer.

Answers are built as texts, and bodies of requests are parsed. Source: "Error responses" in the API
reference of Amazon S3. Not for: what the elements of other answers mean.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring
from starlette.responses import Response

from ebbtide.errors import QUARANTINE_FIELDS, EbbtideError, InvalidInput, quarantine_fields
from ebbtide.server.errors import STATUS

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"

_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 cannot express, not even as references."""


class Markup(str):
    """A text that is XML already."""

    __slots__ = ()


def element(name: str, *content: str | int) -> Markup:
    """Returns an element. Texts among its content are escaped; elements are not."""
    inner = "".join(each if isinstance(each, Markup) else text_of(str(each)) for each in content)
    return Markup(f"<{name}>{inner}</{name}>")


def root(name: str, *content: Markup) -> Markup:
    """Returns a root element in S3's namespace."""
    return Markup(f'<{name} xmlns="{NAMESPACE}">{"".join(content)}</{name}>')


def document(content: str) -> bytes:
    """Returns a document with its declaration."""
    return declaration() + content.encode()


def declaration() -> bytes:
    """Returns the declaration that begins every document."""
    return b'<?xml version="1.0" encoding="UTF-8"?>\n'


def text_of(text: str) -> str:
    """Returns a text as XML content. Characters that XML cannot express become U+FFFD."""
    # A parser turns a carriage return into a line break unless it is a reference.
    return _UNWRITABLE.sub("\ufffd", escape(text, {'"': "&quot;", "\r": "&#13;"}))


def key_text(key: str, *, encoded: bool) -> str:
    """Returns a key for a listing, percent-encoded if the client asked for `encoding-type=url`."""
    return quote(key, safe="/") if encoded else key


def date_text(date: datetime) -> str:
    """Returns a date as S3 writes it, with milliseconds."""
    return f"{date:%Y-%m-%dT%H:%M:%S}.{date.microsecond // 1000:03d}Z"


def parsed(body: bytes, root_name: str) -> Element | None:
    """Returns the root element of a body; None if it is not well-formed, has another root, or
    declares entities or a document type. Names of elements lose their namespace."""
    try:
        found: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        return None
    for each in found.iter():
        each.tag = each.tag.rpartition("}")[2]
    return found if found.tag == root_name else None


logger = logging.getLogger(__name__)

CODES: Final[Mapping[int, tuple[str, ...]]] = {
    400: (
        "AccessControlListNotSupported",
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",
        "BadDigest",
        "EntityTooLarge",
        "IncompleteBody",
        "InvalidArgument",
        "InvalidDigest",
        "InvalidPart",
        "InvalidPartOrder",
        "InvalidRequest",
        "InvalidStorageClass",
        "InvalidURI",
        "MalformedXML",
        "RequestHeaderSectionTooLarge",
        "XAmzContentSHA256Mismatch",
    ),
    403: ("AccessDenied", "InvalidAccessKeyId", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
    404: ("NoSuchBucket", "NoSuchKey", "NoSuchUpload"),
    405: ("MethodNotAllowed",),
    409: ("BucketAlreadyOwnedByYou", "OperationAborted"),
    410: ("CommitExpired", "DataReleased", "ObjectPurged", "SourceChanged"),
    411: ("MissingContentLength",),
    412: ("PreconditionFailed",),
    416: ("InvalidPartNumber", "InvalidRange"),
    500: ("InternalError",),
    501: ("NotImplemented",),
    503: ("ServiceUnavailable",),
    507: ("InsufficientStorage",),
}
"""All codes by status. The codes of 410 and 507 are Ebbtide's own."""
STATUS_OF_CODE: Final[Mapping[str, int]] = {
    code: status for status, codes in CODES.items() for code in codes
}

_KINDS: Final[Mapping[str, str]] = {
    "repository_not_found": "NoSuchBucket",
    "upload_not_found": "NoSuchUpload",
    "part_invalid": "InvalidPart",
    "checksum_mismatch": "BadDigest",
    "upload_broken": "IncompleteBody",
    "key_invalid": "InvalidAccessKeyId",
    "commit_expired": "CommitExpired",
    "data_released": "DataReleased",
    "purged": "ObjectPurged",
    "source_changed": "SourceChanged",
    "invalid_argument": "InvalidArgument",
    "invalid_path": "InvalidArgument",
}
_STATUSES: Final[Mapping[int, str]] = {
    400: "InvalidRequest",
    401: "AccessDenied",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "OperationAborted",
    412: "PreconditionFailed",
    413: "EntityTooLarge",
    416: "InvalidRange",
    431: "RequestHeaderSectionTooLarge",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
    507: "InsufficientStorage",
}
"""The codes of all kinds that `_KINDS` does not name, by their status in the API."""


_ELEMENTS: Final[Mapping[str, str]] = dict(
    zip(QUARANTINE_FIELDS, ("QuarantinedUntil", "RestoreCommand"), strict=True)
)


class S3Error(InvalidInput):
    """An error that only S3 knows: of a signature, a header or an XML body. `code` is S3's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__("invalid_argument", message)
        assert code in STATUS_OF_CODE, code
        self.code = code


def code_of(error: EbbtideError) -> str:
    """Returns S3's code for an error."""
    return error.code if isinstance(error, S3Error) else code_of_kind(error.kind)


def code_of_kind(kind: str) -> str:
    """Returns S3's code for a kind of error."""
    return _KINDS.get(kind) or _STATUSES[STATUS[kind]]


def error_response(error: EbbtideError, *, resource: str, request_id: str) -> Response:
    """Returns the answer for an error."""
    code = code_of(error)
    status = STATUS_OF_CODE[code]
    if status >= 500:
        logger.error("%s: %s", error.kind, error.message)
    headers = dict(getattr(error, "headers", {}))
    body = error_element(
        code, error.message, *own_elements(error), resource=resource, request_id=request_id
    )
    return _response(code, body, headers)


def xml_error(code: str, message: str, *, resource: str, request_id: str) -> Response:
    """Returns the answer with an S3 code."""
    return _response(code, error_element(code, message, resource=resource, request_id=request_id))


def _response(code: str, body: Markup, headers: Mapping[str, str] | None = None) -> Response:
    return Response(document(body), STATUS_OF_CODE[code], headers, media_type="application/xml")


def own_elements(error: EbbtideError) -> list[Markup]:
    """Returns the elements of an error that only this server has: those of data in quarantine."""
    return [element(_ELEMENTS[name], text) for name, text in quarantine_fields(error).items()]


def error_element(code: str, message: str, *own: Markup, resource: str, request_id: str) -> Markup:
    """Returns the XML element of an error, with `own` elements after the message."""
    return element(
        "Error",
        element("Code", code),
        element("Message", message),
        *own,
        element("Resource", resource),
        element("RequestId", request_id),
    )
