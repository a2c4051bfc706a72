"""The gateway in front of the server's routes: takes requests with a signature of S3.

A client takes an answer without an error for a promise. So a request for something that this server
does not have is refused, and the error names what asked for it. Not for: the operations (`buckets`,
`objects`, `multiparts`), or values of headers that an operation has (`call`, `object_headers`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ebbtide.doors.s3 import buckets, checksums, multiparts, objects
from ebbtide.doors.s3.call import OPERATIONS, Operation, S3Call, bucket_and_key, decoded, split_key
from ebbtide.doors.s3.errors import S3Error, error_response, xml_error
from ebbtide.doors.s3.signatures import (
    SIGNING_NAMES,
    Pairs,
    S3Signature,
    ScopeKey,
    SignedParts,
    is_signed,
    read_signature,
    split_query,
    verify,
)
from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.server.api.downloads import WHOLE_BYTES_MAX
from ebbtide.server.auth import Rights
from ebbtide.server.bodies import DRAINED_BYTES_MAX, is_small, whole_body
from ebbtide.server.doors import Door
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.store.embedded import Store
from ebbtide.store.objects.objects import Readable
from ebbtide.store.quick_reads import in_memory
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


logger = logging.getLogger(__name__)

TOPICS: Final = (buckets, objects, multiparts, objects)
"""The modules whose operations are registered when they are imported."""

CHOICES: Final = ("uploadId", "uploads", "delete", "location", "versioning", "attributes")
"""Names in a query that choose an operation, the first one of these that is there."""


class S3Gateway(Door):
    """Answers the requests that have a signature of version 4."""

    precedence = 1

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def opened(cls, state: Any) -> Self:  # the state of the server's application
        """Returns the gateway to the server's store."""
        return cls(state.store)

    def is_own(self, scope: Scope) -> bool:
        """Whether a request has a signature."""
        return is_signed(scope["query_string"], _authorization(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        request_id = new_id()
        is_started = False
        is_received = not _has_body(scope)

        async def receiving() -> Message:
            nonlocal is_received
            message = await receive()
            is_received = message["type"] != "http.request" or not message.get("more_body")
            return message

        async def answering(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                named = (b"x-amz-request-id", request_id.encode())
                message["headers"] = [*message.get("headers", ()), named]
            await send(message)

        resource = _raw_path(scope)
        try:
            await self._answer(scope, receiving, answering, request_id)
        except ClientDisconnect:
            return
        except EbbtideError as error:
            if is_started:
                # The server closes the connection before the announced length is reached, so that
                # the client notices.
                logger.error("%s: the answer was interrupted: %s", error.kind, error.message)
                return
            if not is_received:
                await _drain(scope, receiving)
            await anyio.to_thread.run_sync(self._store.tell, error)
            response = error_response(error, resource=resource, request_id=request_id)
            await response(scope, receive, answering)
        except Exception:
            if not is_started:
                text = "a defect in this program: the server's log says more"
                response = xml_error(
                    "InternalError", text, resource=resource, request_id=request_id
                )
                await response(scope, receive, answering)
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        request = Request(scope, receive)
        body, limiter = None, None
        if scope["method"] == "PUT" and is_small(request):
            body = await whole_body(request.stream())
            request = Request(scope, _once(body, receive))
            limiter = request.app.state.transfers
        # A database in this process answers faster than a thread is woken.
        is_read = scope["method"] == "GET" and self._store.metadata.answers_at_once()
        known = self._authenticate(request, request_id) if is_read else None
        response = None if known is None else self._cached(known)
        if response is None:
            begin = partial(self._begin, request, request_id, body, known)
            call, chosen, response = await anyio.to_thread.run_sync(begin, limiter=limiter)
        if response is None:
            response = await chosen.handle(call)
        await response(scope, receive, send)

    def _cached(self, call: S3Call) -> Response | None:
        """Returns the answer to a read of an object that is in memory, or None."""
        chosen = operation_of(call)
        # Others read more than the object.
        if chosen.name != "GetObject" or not isinstance(call.found, Readable):
            return None
        cached = in_memory(call.found, bytes_max=WHOLE_BYTES_MAX)
        if cached is None:
            return None
        call.request.scope["route"] = chosen
        return objects.answer_read(replace(call, found=cached))

    def _begin(
        self, request: Request, request_id: str, body: bytes | None, known: S3Call | None
    ) -> tuple[S3Call, Operation, Response | None]:
        """Checks signature and role. Returns the call and its operation, and the answer if the
        operation is quick. Raises S3Error, Denied `role_missing`, and as operations do."""
        call = known or self._authenticate(request, request_id)
        chosen = operation_of(call)
        request.scope["route"] = chosen
        if not call.access_key.role.allows(chosen.role):
            call.rights.require(chosen.role, {"repository": call.bucket} if call.bucket else {})
        return call, chosen, None if chosen.quick is None else chosen.quick(call, body)

    def _authenticate(self, request: Request, request_id: str) -> S3Call:
        """Checks the signature. Raises S3Error."""
        scope = request.scope
        raw_path = _raw_path(scope)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        parts = SignedParts(
            scope["method"], raw_path, scope["query_string"].decode("latin-1"), headers
        )
        query = _query(parts.query)
        signature = read_signature(parts, query, now=self._store.clock.host_now())
        named = _named(headers, query)
        bucket, key = bucket_and_key(
            raw_path, named.get("host", ""), self._store.settings.s3_domain
        )
        access_key, scope_key, found = self._verified(parts, signature, bucket, key)
        return S3Call(
            request=request,
            request_id=request_id,
            store=self._store,
            access_key=access_key,
            rights=Rights(access_key, self._store),
            bucket=bucket,
            key=key,
            query=query,
            headers=named,
            content_hash=signature.payload_hash,
            scope_key=scope_key,
            found=found,
        )

    def _verified(
        self, parts: SignedParts, signature: S3Signature, bucket: str, key: str
    ) -> tuple[AccessKey, ScopeKey, Readable | None]:
        """Checks a signature. Returns its key, and the object of a usual read. Raises S3Error."""
        access_key_id = _storable(signature.access_key_id)
        ref, path = split_key(key)
        if path is not None and parts.method in ("GET", "HEAD"):
            scope_keys: list[ScopeKey] = []

            def is_right(secret: bytes) -> bool:
                with suppress(S3Error):
                    scope_keys.append(verify(parts, signature, secret.decode()))
                return bool(scope_keys)

            quick = self._store.quick_reads.find(
                access_key_id, bucket, ref, path, is_right=is_right
            )
            if quick is not None and quick.key.role.allows(Role.READER):
                return quick.key, scope_keys[0], quick.found
        pair = self._store.keys.find_pair(access_key_id)
        if pair is None:
            raise S3Error("InvalidAccessKeyId", "the access key does not exist, or was revoked")
        return pair.key, verify(parts, signature, pair.secret), None


def operation_of(call: S3Call) -> Operation:
    """Returns the operation that a request asks for. Raises S3Error `MethodNotAllowed`, or if the
    request asks for what this server does not have."""
    method = call.request.method
    require_operation(method, call.query, call.headers)
    choice = next((name for name in CHOICES if name in call.query), "")
    copies = method == "PUT" and "x-amz-copy-source" in call.headers
    found = OPERATIONS.get((call.level, method, choice, copies))
    if found is None:
        code = "NotImplemented" if choice else "MethodNotAllowed"
        asked = f" with {choice}" if choice else ""
        raise S3Error(code, f"this server has no such request: {method} of a {call.level}{asked}")
    require_conditions(found.name, method, call.headers)
    return found


def _named(headers: Pairs, query: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers by their names. Like S3, it joins those of one name, and takes headers of
    S3 from the query, where some clients put them as they sign a URL."""
    found = {
        name.lower(): value.encode().decode("latin-1")
        for name, value in query.items()
        if name.lower().startswith("x-amz-") and name not in SIGNING_NAMES
    }
    sent: dict[str, str] = {}
    for name, value in headers:
        sent[name] = f"{sent[name]},{value}" if name in sent else value
    return found | sent


def _raw_path(scope: Scope) -> str:
    """Returns the path as it was sent."""
    return str(scope["raw_path"].decode("latin-1"))


def _authorization(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.decode("latin-1"))
    return None


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _query(text: str) -> Mapping[str, str]:
    """Returns the values of a query by their names. Raises S3Error."""
    found: dict[str, str] = {}
    for name, value in split_query(text):
        key = decoded(name)
        if key in found:
            raise S3Error("InvalidArgument", f"the query has {key} twice")
        found[key] = decoded(value)
    return found


def _storable(access_key_id: str) -> str:
    """Returns an id that the database can look for. Raises S3Error."""
    if not access_key_id.isascii() or "\0" in access_key_id:
        raise S3Error("InvalidAccessKeyId", "the access key does not exist, or was revoked")
    return access_key_id


def _once(body: bytes, receive: Receive) -> Receive:
    """Returns a function that receives the body again, and then what comes after it."""
    remaining = [body]

    async def receiving() -> Message:
        if remaining:
            return {"type": "http.request", "body": remaining.pop(), "more_body": False}
        return await receive()

    return receiving


async def _drain(scope: Scope, receive: Receive) -> None:
    """Reads the rest of a refused body, so that the client can read the answer. A client that waits
    for `100 Continue` sends none."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return
    taken = 0
    while taken <= DRAINED_BYTES_MAX:
        message = await receive()
        taken += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return
