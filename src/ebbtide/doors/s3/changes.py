"""Changes of objects: PutObject, CopyObject, DeleteObject and DeleteObjects."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from xml.etree.ElementTree import Element

import anyio
from starlette.responses import Response

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.call import (
    InThread,
    S3Call,
    answer,
    copy_source,
    operation,
    reads,
    split_key,
    writing,
)
from ebbtide.doors.s3.conditions import (
    IfSource,
    IfUnchanged,
    condition_of_delete,
    condition_of_write,
)
from ebbtide.doors.s3.described import (
    metadata_of,
    metadata_of_sums,
    quoted,
)
from ebbtide.doors.s3.errors import S3Error, code_of, error_element, own_elements
from ebbtide.doors.s3.markup import Markup, date_text, declaration, element, root
from ebbtide.doors.s3.payload import Payload
from ebbtide.errors import EbbtideError, Gone, InvalidInput, NotFound
from ebbtide.server.patience import INTERVAL_SECONDS, Patient
from ebbtide.storage import Content
from ebbtide.storage.base import chunks
from ebbtide.store.access.keys import Role
from ebbtide.store.content.etags import Etag, etag_of
from ebbtide.store.content.reserved import checksums_of
from ebbtide.store.names import check_path
from ebbtide.store.objects.objects import Readable
from ebbtide.store.repository import Repository
from ebbtide.text import shown


def _put_received(call: S3Call, body: bytes | None) -> Response | None:
    """Stores a body that was received already."""
    if body is None:
        return None
    payload, put = _putting(call)
    return put(payload.read(body))


@operation("PutObject", Role.WRITER, "object", "PUT", quick=_put_received)
async def put_object(call: S3Call) -> Response:
    """Stores the body as an object."""
    payload, put = _putting(call)
    return await call.receive(payload, put)


def _putting(call: S3Call) -> tuple[Payload, Callable[[Content], Response]]:
    """Returns the reader of the body, and the function that stores the bytes in a thread. Raises
    S3Error and InvalidInput if the request is wrong."""
    require_standard(call)
    payload = call.payload(call.store.settings.server_upload_max)
    branch, path = split_key(call.key)
    if path == "":
        return payload, lambda data: _put_directory(call, branch, data)
    branch, path = call.place()
    only_if = condition_of_write(call.headers)
    etag = Etag()

    def put(data: Content) -> Response:
        repository = call.repository()
        with writing(repository, branch):
            entry = repository.objects.put(
                branch,
                path,
                etag.read(data),
                content_type=call.headers.get("content-type"),
                metadata=metadata_of(call.headers),
                late_metadata=lambda: metadata_of_sums(payload.found) | etag.metadata(),
                only_if=only_if,
            )
        return Response(headers={"ETag": quoted(etag_of(entry))} | sent_checksums(payload))

    return payload, put


def _put_directory(call: S3Call, branch: str, data: Content) -> Response:
    """Answers a client that makes the directory of a branch, which is there already."""
    repository = call.repository()
    with writing(repository, branch):
        repository.branches.get(branch)
    if any(chunks(data)):
        raise S3Error("InvalidArgument", "write REF/PATH: a branch itself has no bytes")
    return Response()


@operation("CopyObject", Role.WRITER, "object", "PUT", copies=True)
async def copy_object(call: S3Call) -> Response:
    """Copies an object, also from another repository."""
    require_standard(call)
    branch, path = call.place()
    only_if = condition_of_write(call.headers)
    directive = call.headers.get("x-amz-metadata-directive", "COPY").upper()
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE")

    def copy() -> Markup:
        bucket, key = copy_source(call.headers["x-amz-copy-source"])
        source = source_of(call, bucket, key)
        repository = call.repository()
        ref, source_path = split_key(key)
        with writing(repository, branch):
            if directive == "REPLACE" or only_if is not None or bucket != call.bucket:
                content_type, metadata = _described(call, source, directive)
                entry = repository.objects.put_copy(
                    branch,
                    path,
                    source,
                    content_type=content_type,
                    metadata=metadata,
                    only_if=only_if,
                )
            elif (ref, source_path) == (branch, path):
                raise S3Error(
                    "InvalidRequest",
                    "a copy onto itself must replace the metadata: x-amz-metadata-directive",
                )
            else:
                entry = repository.objects.copy(
                    branch, path, ref, source.entry.path, source_if=IfSource(call.headers)
                )
        return copy_result("CopyObjectResult", etag_of(entry), date_text(entry.mtime))

    return patient(call, copy)


def _described(
    call: S3Call, source: Readable, directive: str
) -> tuple[str | None, Mapping[str, str]]:
    """Returns type and metadata of a copy."""
    if directive == "COPY":
        return source.entry.content_type, source.entry.metadata
    kept = checksums_of(source.entry.metadata)
    return call.headers.get("content-type"), metadata_of(call.headers) | kept


def source_of(call: S3Call, bucket: str, key: str) -> Readable:
    """Returns the source of a copy, if it meets the conditions of the request.

    Raises S3Error `NoSuchKey` or `PreconditionFailed`, and as `S3Call.source_repository` and
    `Objects.open` do.
    """
    repository = call.source_repository(bucket)

    def look() -> Readable:
        ref, path = split_key(key)
        if path is None:
            raise NotFound("object_not_found", "the source of the copy is no key: write REF/PATH")
        check_path(path)
        return repository.objects.open(ref, path)

    found = reads(look)
    IfSource(call.headers).check(found.entry.path, found.entry)
    return found


def copy_result(name: str, etag: str, modified: str) -> Markup:
    """Returns the document that answers a copy."""
    return root(name, element("LastModified", modified), element("ETag", quoted(etag)))


def patient(call: S3Call, work: Callable[[], Markup]) -> PatientAnswer:
    """Returns the answer of work that copies bytes within the server."""

    def telling() -> Markup:
        # The answer may have begun when the error comes.
        try:
            return work()
        except Gone as error:
            call.store.tell(error)
            raise

    return PatientAnswer(
        telling,
        resource=call.resource,
        request_id=call.request_id,
        limiter=call.request.app.state.transfers,
    )


def sent_checksums(payload: Payload) -> dict[str, str]:
    """Returns, as headers, the checksums that the client sent with a body."""
    found = {checksums.PREFIX + name: value for name, value in payload.found.items()}
    return found | ({"x-amz-checksum-type": "FULL_OBJECT"} if found else {})


def require_standard(call: S3Call) -> None:
    """Raises S3Error `InvalidStorageClass` for any other storage class."""
    if call.headers.get("x-amz-storage-class", "STANDARD") != "STANDARD":
        raise S3Error("InvalidStorageClass", "there is only the storage class STANDARD")


KEYS_MAX: Final = 1000
BODY_BYTES_MAX: Final = 2 * 1024 * 1024


@operation("DeleteObject", Role.WRITER, "object", "DELETE")
@InThread
def delete_object(call: S3Call) -> Response:
    """Deletes an object."""
    only_if = condition_of_delete(
        call.headers.get("if-match"),
        call.headers.get("x-amz-if-match-last-modified-time"),
        call.headers.get("x-amz-if-match-size"),
    )
    errors = _delete(call.repository(), {call.key: only_if})
    if errors:
        raise errors[call.key]
    return Response(status_code=204)


@operation("DeleteObjects", Role.WRITER, "bucket", "POST", "delete")
async def delete_objects(call: S3Call) -> Response:
    """Deletes the keys that the body lists."""
    body = await call.document("Delete", bytes_max=BODY_BYTES_MAX)
    keys = _keys_of(body)
    is_quiet = (body.findtext("Quiet") or "").strip().lower() == "true"

    def delete() -> Markup:
        errors = _delete(call.repository(), keys)
        for error in set(errors.values()):
            call.store.tell(error)
        done = [] if is_quiet else [key for key in keys if key not in errors]
        return root(
            "DeleteResult",
            *(element("Deleted", element("Key", key)) for key in done),
            *(_error(key, errors[key]) for key in keys if key in errors),
        )

    return answer(await call.run(delete))


def _keys_of(body: Element) -> dict[str, IfUnchanged | None]:
    """Returns the keys of the body, with the condition of each. Raises S3Error."""
    items = body.findall("Object")
    if not 1 <= len(items) <= KEYS_MAX:
        raise S3Error("MalformedXML", f"list between 1 and {KEYS_MAX} keys")
    keys: dict[str, IfUnchanged | None] = {}
    for item in items:
        if (item.findtext("VersionId") or "null") != "null":
            raise S3Error("NotImplemented", "objects have no versions")
        key = item.findtext("Key")
        if not key:
            raise S3Error("MalformedXML", "an Object has no Key")
        texts = (item.findtext(name) for name in ("ETag", "LastModifiedTime", "Size"))
        only_if = condition_of_delete(*(None if text is None else text.strip() for text in texts))
        if keys.setdefault(key, only_if) != only_if:
            raise S3Error("InvalidArgument", f"{shown(key)} is listed twice, with two conditions")
    return keys


def _delete(
    repository: Repository, keys: Mapping[str, IfUnchanged | None]
) -> dict[str, EbbtideError]:
    """Deletes keys, and returns the errors by key."""
    by_ref: dict[str, dict[str, str]] = defaultdict(dict)
    errors: dict[str, EbbtideError] = {}
    for key, only_if in keys.items():
        ref, path = split_key(key)
        # No object can be at any other key.
        if path is None or not _is_path(path):
            continue
        if only_if is None:
            by_ref[ref][path] = key
        else:
            delete = partial(repository.objects.delete_if, ref, path, only_if)
            errors |= _tried(repository, ref, [key], delete)
    for ref, paths in by_ref.items():
        delete_many = partial(repository.objects.delete_many, ref, paths)
        errors |= _tried(repository, ref, paths.values(), delete_many)
    return errors


def _tried(
    repository: Repository, ref: str, keys: Iterable[str], delete: Callable[[], object]
) -> dict[str, EbbtideError]:
    """Deletes, and returns the error for each key, if there is one."""
    try:
        with writing(repository, ref):
            delete()
    except EbbtideError as error:
        if error.kind != "branch_not_found":
            return dict.fromkeys(keys, error)
    return {}


def _is_path(path: str) -> bool:
    try:
        check_path(path)
    except InvalidInput:
        return False
    return True


def _error(key: str, error: EbbtideError) -> Markup:
    return element(
        "Error",
        element("Key", key),
        element("Code", code_of(error)),
        element("Message", error.message),
        *own_elements(error),
    )


logger = logging.getLogger(__name__)


class PatientAnswer(Patient[Markup]):
    """Runs `work` in a thread, and sends the document that it returns.

    S3 answers CopyObject and CompleteMultipartUpload in this way when they take long: with status
    200, and, if the work fails later, with an error as the document.
    """

    media_type = "application/xml"
    opening = declaration()

    def __init__(
        self,
        work: Callable[[], Markup],
        *,
        resource: str,
        request_id: str,
        limiter: anyio.CapacityLimiter,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__(work, limiter=limiter, interval_seconds=interval_seconds)
        self._resource = resource
        self._request_id = request_id

    def whole(self, result: Markup) -> Response:
        """Returns the answer of work that was quick."""
        return answer(result)

    def late(self, result: Markup) -> bytes:
        """Returns the document without its declaration."""
        return result.encode()

    def late_failure(self, failure: Exception) -> bytes:
        """Returns the error as a document."""
        code, message = "InternalError", "a defect in this program: the server's log says more"
        own: list[Markup] = []
        if isinstance(failure, EbbtideError):
            code, message, own = code_of(failure), failure.message, own_elements(failure)
        else:
            logger.error("a request failed after its answer began", exc_info=failure)
        return error_element(
            code, message, *own, resource=self._resource, request_id=self._request_id
        ).encode()
