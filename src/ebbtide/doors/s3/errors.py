"""Errors as S3 tells them: codes, their statuses, and the XML of an answer.

Source: "Error responses" in the API reference of Amazon S3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from ebbtide.doors.s3.markup import Markup, document, element
from ebbtide.errors import QUARANTINE_FIELDS, EbbtideError, InvalidInput, quarantine_fields
from ebbtide.server.errors import STATUS

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
