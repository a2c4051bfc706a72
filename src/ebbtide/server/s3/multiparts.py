"""Uploads in parts: begin, send, list, complete and abort them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from ebbtide.errors import NotFound
from ebbtide.server.api.downloads import find_range
from ebbtide.server.s3 import checksums
from ebbtide.server.s3.addressing import copy_source, key_of, split_key
from ebbtide.server.s3.buckets import owner_element
from ebbtide.server.s3.call import InThread, S3Call, answer, operation
from ebbtide.server.s3.call import writing as writing_to
from ebbtide.server.s3.completing import (
    CheckedParts,
    WantedSums,
    chosen_checksum,
    chosen_elements,
    wanted_of,
)
from ebbtide.server.s3.conditions import condition_of_write
from ebbtide.server.s3.described import metadata_of, quoted, sums_among, sums_of
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.listing import KEYS_MAX
from ebbtide.server.s3.markup import Markup, date_text, element, key_text, root
from ebbtide.server.s3.writing import (
    copy_result,
    patient,
    require_standard,
    sent_checksums,
    source_of,
)
from ebbtide.storage import Content
from ebbtide.store.access.keys import Role
from ebbtide.store.content.etags import etag_among, etag_of
from ebbtide.store.content.reserved import CHECKSUM
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import PART_NUMBER_MAX
from ebbtide.store.staging.multipart_queries import MultipartUpload, UploadPart

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""The list of 10,000 parts with their checksums has about two MiB."""


@operation("CreateMultipartUpload", Role.WRITER, "object", "POST", "uploads")
@InThread
def create_upload(call: S3Call) -> Response:
    """Begins an upload in parts."""
    require_standard(call)
    branch, path = call.place()
    chosen = chosen_checksum(call)
    repository = call.repository()
    with writing_to(repository, branch):
        upload = repository.multipart.create(
            branch,
            path,
            content_type=call.headers.get("content-type"),
            metadata=metadata_of(call.headers) | chosen,
        )
    return answer(
        root("InitiateMultipartUploadResult", *_named(call), element("UploadId", upload.upload_id)),
        {
            f"x-amz-checksum-{name.removeprefix(CHECKSUM)}": value.upper()
            for name, value in chosen.items()
        },
    )


@operation("UploadPart", Role.WRITER, "object", "PUT", "uploadId")
async def upload_part(call: S3Call) -> Response:
    """Stores the body as a part."""
    payload = call.payload(call.store.settings.server_upload_max)
    number = _number_of(call)

    def put(data: Content) -> UploadPart:
        repository = call.repository()
        return repository.multipart.put_part(_upload(call, repository), number, data)

    part = await call.receive(payload, put)
    return Response(headers={"ETag": quoted(part.etag)} | sent_checksums(payload))


@operation("UploadPartCopy", Role.WRITER, "object", "PUT", "uploadId", copies=True)
async def copy_part(call: S3Call) -> Response:
    """Stores an object, or a range of it, as a part."""
    number = _number_of(call)
    header = call.headers.get("x-amz-copy-source-range")

    def copy() -> Markup:
        repository = call.repository()
        upload = _upload(call, repository)
        source = source_of(call, *copy_source(call.headers["x-amz-copy-source"]))
        asked = _range_of_copy(header, source.entry.size_bytes)
        pieces = source.stream() if asked is None else source.stream(start=asked[0], end=asked[1])
        part = repository.multipart.put_part(upload, number, pieces, check=source.require_kept)
        return copy_result("CopyPartResult", part.etag, date_text(part.created_at))

    return patient(call, copy)


def _range_of_copy(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Returns the range of a source that is copied, or None for all of it. A range that ends behind
    the source is an error: the client would get fewer bytes than it counts on.

    Raises RangeBehindEnd, S3Error `InvalidArgument` or `InvalidRange`.
    """
    if header is None:
        return None
    asked = find_range(header, size_bytes)
    first, _, last = header.strip().removeprefix("bytes=").partition("-")
    if asked is None or not first:
        raise S3Error("InvalidArgument", "write x-amz-copy-source-range as bytes=FIRST-LAST")
    if last and int(last) >= size_bytes:
        raise S3Error("InvalidRange", f"the source of the copy has {size_bytes} bytes")
    return asked


@operation("ListParts", Role.READER, "object", "GET", "uploadId")
@InThread
def list_parts(call: S3Call) -> Response:
    """Lists the parts of an upload."""
    repository = call.repository()
    upload = _upload(call, repository)
    after = call.number("part-number-marker", 0)
    amount = min(call.number("max-parts", KEYS_MAX), KEYS_MAX)
    found = repository.multipart.parts(upload, after=after, amount=amount + 1)
    listed = found[:amount]
    return answer(
        root(
            "ListPartsResult",
            *_named(call),
            element("UploadId", upload.upload_id),
            element("PartNumberMarker", after),
            element("NextPartNumberMarker", listed[-1].part_number if listed else after),
            element("MaxParts", amount),
            element("IsTruncated", "true" if len(found) > amount else "false"),
            *map(_part_element, listed),
            element("StorageClass", "STANDARD"),
            *chosen_elements(upload),
        )
    )


@operation("ListMultipartUploads", Role.READER, "bucket", "GET", "uploads")
@InThread
def list_uploads(call: S3Call) -> Response:
    """Lists the uploads that were not completed or aborted."""
    if call.query.get("delimiter"):
        raise S3Error("NotImplemented", "uploads are listed without a delimiter")
    is_encoded = call.query.get("encoding-type") == "url"
    amount = min(call.number("max-uploads", KEYS_MAX), KEYS_MAX)
    marker, id_marker = call.query.get("key-marker", ""), call.query.get("upload-id-marker", "")
    branch, path = split_key(marker)
    # Without an id, the list continues behind all uploads of the key.
    after = (branch, path or "", id_marker or _BEHIND_IDS) if marker else ("", "", "")
    found = call.repository().multipart.page(
        prefix=split_key(call.query.get("prefix", "")), after=after, amount=amount + 1
    )
    listed = found[:amount]
    is_truncated = bool(listed) and len(found) > amount
    more: tuple[Markup, ...] = ()
    if is_truncated:
        last = listed[-1]
        more = (
            element("NextKeyMarker", key_text(_key_of(last), encoded=is_encoded)),
            element("NextUploadIdMarker", last.upload_id),
        )
    return answer(
        root(
            "ListMultipartUploadsResult",
            element("Bucket", call.bucket),
            element("KeyMarker", key_text(marker, encoded=is_encoded)),
            element("UploadIdMarker", id_marker),
            *more,
            element("Prefix", key_text(call.query.get("prefix", ""), encoded=is_encoded)),
            *((element("EncodingType", "url"),) if is_encoded else ()),
            element("MaxUploads", amount),
            element("IsTruncated", "true" if is_truncated else "false"),
            *(_upload_element(each, is_encoded=is_encoded) for each in listed),
        )
    )


_BEHIND_IDS: Final = "z"
"""A text that sorts after every id."""


@operation("CompleteMultipartUpload", Role.WRITER, "object", "POST", "uploadId")
async def complete_upload(call: S3Call) -> Response:
    """Makes the object of the parts that the body lists. A repeated request gets the first answer
    again, and changes nothing."""
    # The checksums in the headers are those of the object.
    body = await call.document("CompleteMultipartUpload", bytes_max=BODY_BYTES_MAX, has_sums=False)
    wanted = wanted_of(body)
    only_if = condition_of_write(call.headers)
    size_bytes = _size_of(call)

    def complete() -> Markup:
        repository = call.repository()
        parts = [each.part for each in wanted]
        try:
            upload = _upload(call, repository)
            sums = WantedSums.of(call, upload)
            reader = CheckedParts([each.sums for each in wanted], sums, size_bytes)
            with writing_to(repository, upload.branch):
                entry = repository.multipart.complete(upload, parts, reader, only_if=only_if)
        except NotFound as error:
            if error.kind != "upload_not_found":
                raise
            # The client may not have received the first answer.
            branch, path = call.place()
            done = repository.multipart.completed(branch, path, call.query["uploadId"], parts)
            etag = etag_among(done.sums, done.checksum)
            return _completed(call, etag, sums_among(done.sums, done.checksum))
        return _completed(call, etag_of(entry), sums_of(entry))

    return patient(call, complete)


def _completed(call: S3Call, etag: str, sums: Mapping[str, str]) -> Markup:
    return root(
        "CompleteMultipartUploadResult",
        element("Location", str(call.request.url.replace(query=None))),
        *_named(call),
        element("ETag", quoted(etag)),
        *checksums.elements(sums),
    )


@operation("AbortMultipartUpload", Role.WRITER, "object", "DELETE", "uploadId")
@InThread
def abort_upload(call: S3Call) -> Response:
    """Ends an upload without an object."""
    branch, path = call.place()
    call.repository().multipart.abort(branch, path, call.query["uploadId"])
    return Response(status_code=204)


def _size_of(call: S3Call) -> int | None:
    text = call.headers.get("x-amz-mp-object-size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise S3Error("InvalidArgument", "x-amz-mp-object-size is a number")
    return int(text)


def _upload(call: S3Call, repository: Repository) -> MultipartUpload:
    """Returns the upload of a request. Raises NotFound `upload_not_found`, S3Error."""
    branch, path = call.place()
    return repository.multipart.get(branch, path, call.query["uploadId"])


def _number_of(call: S3Call) -> int:
    number = call.number("partNumber", 0, least=1, most=PART_NUMBER_MAX)
    if not number:
        raise S3Error("InvalidArgument", "partNumber is missing")
    return number


def _named(call: S3Call) -> tuple[Markup, Markup]:
    return element("Bucket", call.bucket), element("Key", call.key)


def _key_of(upload: MultipartUpload) -> str:
    return key_of(upload.branch, upload.path)


def _part_element(part: UploadPart) -> Markup:
    return element(
        "Part",
        element("PartNumber", part.part_number),
        element("LastModified", date_text(part.created_at)),
        element("ETag", quoted(part.etag)),
        element("Size", part.size_bytes),
    )


def _upload_element(upload: MultipartUpload, *, is_encoded: bool) -> Markup:
    return element(
        "Upload",
        element("Key", key_text(_key_of(upload), encoded=is_encoded)),
        element("UploadId", upload.upload_id),
        owner_element(),
        element("StorageClass", "STANDARD"),
        element("Initiated", date_text(upload.created_at)),
        *chosen_elements(upload),
    )
