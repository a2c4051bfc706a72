"""Writing objects: PutObject and CopyObject."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.responses import Response

from ebbtide.errors import Gone, NotFound
from ebbtide.server.s3 import checksums
from ebbtide.server.s3.addressing import copy_source, split_key
from ebbtide.server.s3.call import S3Call, operation, reads, writing
from ebbtide.server.s3.conditions import IfSource, condition_of_write
from ebbtide.server.s3.described import (
    metadata_of,
    metadata_of_sums,
    quoted,
)
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.markup import Markup, date_text, element, root
from ebbtide.server.s3.patience import PatientAnswer
from ebbtide.server.s3.payload import Payload
from ebbtide.storage import Content
from ebbtide.storage.base import chunks
from ebbtide.store.access.keys import Role
from ebbtide.store.content.etags import Etag, etag_of
from ebbtide.store.content.reserved import checksums_of
from ebbtide.store.names import check_path
from ebbtide.store.objects.objects import Readable


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
