"""Errors as HTTP responses: the status of each kind, and the one JSON shape of all errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import QUARANTINE_FIELDS, EbbtideError

logger = logging.getLogger(__name__)

STATUSES: Final[Mapping[int, tuple[str, ...]]] = {
    400: (
        "invalid_duration",
        "invalid_policy",
        "invalid_schedule",
        "invalid_name",
        "invalid_path",
        "invalid_manifest",
        "invalid_date",
        "invalid_inventory",
        "invalid_address",
        "invalid_argument",
        "unsafe_grace",
        "token_invalid",
        "token_foreign",
        "token_truncated",
        "token_key_retired",
        "project_cycle",
        "checksum_mismatch",
        "upload_broken",
        "part_invalid",
        "presign_unsupported",
        # lakeFS answers these with 400, and its clients distinguish them from conflicts (409).
        "nothing_to_commit",
        "nothing_to_merge",
        "branch_dirty",
        "ref_ambiguous",
    ),
    401: ("key_invalid", "login_refused"),
    403: (
        "role_missing",
        "import_forbidden",
        "branch_protected",
        "write_protected",
        "request_forged",
    ),
    404: (
        "repository_not_found",
        "ref_not_found",
        "branch_not_found",
        "tag_not_found",
        "commit_not_found",
        "object_not_found",
        "upload_not_found",
        "run_not_found",
        "purge_not_found",
        "not_quarantined",
        "hold_not_found",
        "schedule_not_found",
        "protection_not_found",
        "key_not_found",
        "project_not_found",
        "collection_not_found",
        "version_not_found",
        "policy_not_found",
        "task_not_found",
        "route_not_found",
    ),
    409: (
        "store_exists",
        "repository_exists",
        "branch_exists",
        "tag_exists",
        "key_exists",
        "object_exists",
        "project_exists",
        "collection_exists",
        "trashed",
        "collection_changed",
        "not_committed",
        "nested_root",
        "root_not_empty",
        "merge_conflict",
        "branch_moved",
        "write_expired",
        "repository_changed",
        "commit_in_use",
        "plan_used",
        "purge_ended",
        "import_ended",
        "token_expired",
        "token_used",
        "reading_ended",
        "object_changed",
        "policy_not_in_days",
        # Gates of the collector.
        "zero_refs",
        "zero_commits",
        "missing_parent",
        "lost_commits",
        "missing_tree",
        "missing_node",
        "corrupt_tree",
        "corrupt_node",
        "missing_object",
        "corrupt_repo",
        "corrupt_ref",
        "missing_backup",
        "repository_readonly",
        "repository_mixed",
        "repository_rooted",
        "foreign_table",
        "prefix_mismatch",
        "unknown_format_version",
        "plan_corrupt",
        "report_corrupt",
        "plan_missing",
        "plan_foreign",
        "inventory_foreign",
        "inventory_corrupt",
        "over_share",
        "run_in_progress",
        "lease_lost",
        "clock_skew",
        "storage_foreign",
        "repository_not_gone",
        "repository_in_use",
        "purge_in_use",
        "purge_held",
    ),
    410: ("commit_expired", "data_released", "purged", "source_changed"),
    412: ("precondition_failed",),
    413: ("too_large",),
    416: ("range_invalid", "range_malformed"),
    431: ("headers_too_large",),
    500: (
        "invalid_setting",
        "store_not_found",
        "corrupt_object",
        "schema_outdated",
        "secret_key_missing",
        "secret_key_wrong",
        "incomplete",
        "archive_failed",
        "internal",
    ),
    501: ("not_supported",),
    503: (
        "storage_error",
        "storage_unconditional",
        "database_error",
        "spark_error",
        "lakefs_error",
        "catalog_error",
        "issuer_error",
        "task_failed",
        "worker_died",
        "interrupted",
        "answer_lost",
        "extra_missing",
        "java_not_found",
    ),
    507: ("disk_full",),
}
STATUS: Final[Mapping[str, int]] = {
    kind: status for status, kinds in STATUSES.items() for kind in kinds
}

WORDS: Final[Mapping[str, str]] = {
    "key_invalid": "error authenticating request",
    "role_missing": "insufficient permissions",
    "repository_not_found": "repository not found",
    "ref_not_found": "reference not found",
    "branch_not_found": "branch not found",
    "tag_not_found": "tag not found",
    "commit_not_found": "commit not found",
    "object_not_found": "object not found",
    "repository_exists": "repository already exists",
    "branch_exists": "branch already exists",
    "tag_exists": "tag already exists",
    "nothing_to_commit": "no changes",
    "branch_dirty": "uncommitted changes (dirty branch)",
    "merge_conflict": "conflict found",
    "precondition_failed": "precondition failed",
    "range_invalid": "requested range not satisfiable",
    "range_malformed": "requested range not satisfiable",
    "token_invalid": "link address invalid",
    "token_foreign": "link address invalid",
    "token_expired": "link address expired",
}
"""lakeFS's own message for an error. Its clients print it and compare it, because lakeFS has no
kinds. The server's `message` is the same, and `detail` says the rest."""

_SHOWN: Final[tuple[str, ...]] = (
    "paths",
    "conflict_count",
    "run_id",
    "commit_id",
    "address",
    "ids",
    "missing_count",
    "looked_for",
    "missing",
    *QUARANTINE_FIELDS,
)


def answer_of(error: EbbtideError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns the response for an error. Its message is the one that clients of lakeFS know."""
    status = STATUS[error.kind]
    if status >= 500 and error.kind != "not_supported":
        logger.error("%s: %s", error.kind, error.message)
    shown = {name: error.details[name] for name in _SHOWN if name in error.details}
    if message_of(error) != error.message:
        shown["detail"] = _encodable(error.message)
    sent = dict(headers or {})
    if status == 401:
        sent["WWW-Authenticate"] = 'Basic realm="ebbtide", charset="UTF-8"'
    if error.kind == "merge_conflict":
        # The form of a merge's answer. lakeFS leaves the reference empty: there is no commit.
        shown["reference"] = ""
    return _answer(status, error.kind, message_of(error), sent, shown)


def message_of(error: EbbtideError) -> str:
    """Returns the message for clients: lakeFS's own, if it has one for this kind."""
    words = WORDS.get(error.kind, error.message)
    # lakeFS has several messages for this kind: clients search for the words of each.
    return f"{words}: {error.message}" if error.kind == "precondition_failed" else words


class BreakingOff:
    """Handles an error that happens after a part of the response was sent, such as the bytes of an
    object. The connection closes before the announced length is reached, so that the client
    notices. The log states the error. A client that left while it sent a form gets no answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request. If the response stays incomplete, the HTTP server closes the
        connection."""
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return
        except RuntimeError as error:
            # Starlette raises RuntimeError if a handled error comes after the start of the
            # response.
            if not isinstance(error.__cause__, EbbtideError):
                raise
            reason = error.__cause__
            logger.error("%s: the answer was interrupted: %s", reason.kind, reason.message)


def install(app: FastAPI) -> None:
    """Registers the handlers that answer every error in the one JSON shape."""
    app.add_exception_handler(EbbtideError, _ebbtide_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def _answer(
    status: int,
    kind: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,  # values that JSON can encode
) -> JSONResponse:
    document = {"message": _encodable(message), "kind": kind, **(details or {})}
    return JSONResponse(document, status_code=status, headers=dict(headers or {}))


def _encodable(text: str) -> str:
    """Returns a text for JSON. Paths and messages may hold characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _ebbtide_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EbbtideError)
    request.app.state.store.tell(error)
    return answer_of(error, getattr(error, "headers", None))


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"] if part not in ("body", "query", "path"))
    text = problem["msg"][0].lower() + problem["msg"][1:]
    return _answer(400, "invalid_argument", f"{place}: {text}" if place else text)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code not in (404, 405):
        return _answer(error.status_code, "invalid_argument", str(error.detail), error.headers)
    path = request.scope["raw_path"].decode("latin-1")  # in `path`, slashes of segments differ
    text = (
        f"this server has no {request.method} {path}: write a slash within a name as %2F; "
        "docs/lakefs-api.md lists the operations of lakeFS that it has"
    )
    return _answer(error.status_code, "route_not_found", text, error.headers)


def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    # The traceback is in the server's log. Clients do not need to see it.
    return _answer(500, "internal", "a defect in this program: the server's log says more")
