"""What a request asks for and this server does not have.

A client takes an answer without an error for a promise. So such a request is refused, and the error
names what asked for it. Not for: values of headers that an operation has (`writing`, `conditions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import S3Error
from ebbtide.text import shown

UNSUPPORTED: Final = frozenset(
    (
        "abac",
        "accelerate",
        "acl",
        "analytics",
        "append",
        "cors",
        "encryption",
        "intelligent-tiering",
        "inventory",
        "legal-hold",
        "lifecycle",
        "logging",
        "metadataConfiguration",
        "metadataInventoryTable",
        "metadataJournalTable",
        "metadataTable",
        "metrics",
        "notification",
        "object-lock",
        "ownershipControls",
        "policy",
        "policyStatus",
        "publicAccessBlock",
        "renameObject",
        "replication",
        "requestPayment",
        "restore",
        "retention",
        "select",
        "session",
        "tagging",
        "torrent",
        "versionId",
        "versions",
        "website",
    )
)
"""Names in a query that choose an operation which this server does not have."""
CHANGING: Final = frozenset(("PUT", "POST", "DELETE"))
PARAMETERS: Final = frozenset(
    ("uploadId", "uploads", "partNumber", "delete", "location", "versioning", "attributes", "x-id")
)
"""All names that the query of a request that changes something may have, beside `x-amz-…`. An
operation that this server does not know would otherwise write or delete the object itself."""

_HEADERS: Final = (
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-write-offset-bytes",
    "x-amz-rename-source",
    "x-amz-expected-bucket-owner",
    "x-amz-source-expected-bucket-owner",
)
"""Beginnings of headers that promise what this server does not keep."""
_CONDITIONS: Final = ("if-", "x-amz-if-", "x-amz-copy-source-", "content-range")
"""Beginnings of headers that restrict a change: to a state of the object, or to a part of it."""
_OF_WRITES: Final = frozenset(("if-match", "if-none-match"))
_OF_COPIES: Final = frozenset(
    f"x-amz-copy-source-if-{name}"
    for name in ("match", "none-match", "modified-since", "unmodified-since")
)
_CONDITIONS_OF: Final[Mapping[str, frozenset[str]]] = {
    "PutObject": _OF_WRITES,
    "CopyObject": _OF_WRITES | _OF_COPIES,
    "CompleteMultipartUpload": _OF_WRITES,
    "UploadPartCopy": _OF_COPIES | {"x-amz-copy-source-range"},
    "DeleteObject": frozenset(
        ("if-match", "x-amz-if-match-last-modified-time", "x-amz-if-match-size")
    ),
}
"""The conditions that each operation checks. An operation that is not here has none."""
_ACL: Final = "x-amz-acl"
_GRANTS: Final = "x-amz-grant-"
_HARMLESS_ACLS: Final = frozenset(("private", "bucket-owner-read", "bucket-owner-full-control"))
"""They give nobody a right that the roles of access keys do not give."""
_ABOUT_SUMS: Final = frozenset(("algorithm", "type", "mode"))


def require_operation(method: str, query: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """Raises S3Error if the query or a header asks for what no operation has."""
    names = query.keys() & UNSUPPORTED
    if method in CHANGING:
        names |= {
            name for name in query.keys() - PARAMETERS if not name.lower().startswith("x-amz-")
        }
    found = sorted(names) + [
        name for name, value in headers.items() if name.startswith(_HEADERS) and value
    ]
    if found:
        raise S3Error("NotImplemented", f"this server does not have {', '.join(map(shown, found))}")
    _require_no_acl(headers)
    _require_sums(headers)


def require_conditions(operation: str, method: str, headers: Mapping[str, str]) -> None:
    """Raises S3Error `NotImplemented` if a header restricts a change in a way that the operation
    does not check."""
    if method not in CHANGING:
        return
    checked = _CONDITIONS_OF.get(operation, frozenset())
    found = [name for name in headers if name.startswith(_CONDITIONS) and name not in checked]
    if found:
        has = f"its conditions are {', '.join(sorted(checked))}" if checked else "it has none"
        raise S3Error(
            "NotImplemented", f"{operation} does not check {', '.join(sorted(found))}: {has}"
        )


def _require_no_acl(headers: Mapping[str, str]) -> None:
    found = [name for name, value in headers.items() if name.startswith(_GRANTS) and value]
    if headers.get(_ACL, "private") not in _HARMLESS_ACLS:
        found.append(f"{_ACL}: {headers[_ACL]}")
    if found:
        raise S3Error(
            "AccessControlListNotSupported",
            f"this server has no access control lists ({', '.join(found)}): access keys have roles",
        )


def _require_sums(headers: Mapping[str, str]) -> None:
    """Raises S3Error `InvalidRequest` for a checksum that nobody would compare."""
    for name, header in _named_sums(headers):
        if name and name not in checksums.ALGORITHMS:
            raise S3Error(
                "InvalidRequest",
                f"{header}: this server has no checksum {shown(name)}, only "
                f"{', '.join(sorted(checksums.ALGORITHMS))}",
            )


def _named_sums(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the algorithms that a request names, each with its header."""
    yield headers.get("x-amz-sdk-checksum-algorithm", "").lower(), "x-amz-sdk-checksum-algorithm"
    trailers = [each.strip().lower() for each in headers.get("x-amz-trailer", "").split(",")]
    for header in (*headers, *trailers):
        name = header.removeprefix(checksums.PREFIX)
        if name != header and name not in _ABOUT_SUMS:
            yield name, header
