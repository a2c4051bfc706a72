"""Operations on objects: GetObject, HeadObject, GetObjectAttributes, PutObject, CopyObject,
DeleteObject and DeleteObjects.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from xml.etree.ElementTree import Element

from starlette.responses import Response

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.call import (
    InThread,
    S3Call,
    answer,
    copy_source,
    operation,
    patient,
    reads,
    split_key,
    writing,
)
from ebbtide.doors.s3.errors import (
    Markup,
    S3Error,
    code_of,
    date_text,
    element,
    own_elements,
    root,
)
from ebbtide.doors.s3.object_headers import (
    IfSource,
    IfUnchanged,
    checksum_headers,
    condition_of_delete,
    condition_of_write,
    headers_of,
    is_unchanged,
    may_use_range,
    metadata_of,
    metadata_of_sums,
    quoted,
    sums_of,
)
from ebbtide.doors.s3.payload import Payload, sent_checksums
from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.server.api.downloads import find_range, response_of
from ebbtide.storage import Content
from ebbtide.storage.base import chunks
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import Entry, checksums_of
from ebbtide.store.content.etags import Etag, etag_of
from ebbtide.store.names import check_path
from ebbtide.store.objects.objects import Readable
from ebbtide.store.quick_reads import InMemory
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import PART_NUMBER_MAX
from ebbtide.text import shown

KEYS_MAX: Final = 1000
BODY_BYTES_MAX: Final = 2 * 1024 * 1024
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
    return answer_read(call)


def answer_read(call: S3Call) -> Response:
    """Returns the answer of `get_object`, in this thread."""
    found = readable(call)
    entry = found.entry
    if is_unchanged(entry, call.headers):
        return Response(status_code=304, headers=headers_of(entry))
    status, headers, part = _answered(call, entry)
    return response_of(found, part, status, headers)


@operation("HeadObject", Role.READER, "object", "HEAD")
@InThread
def head_object(call: S3Call) -> Response:
    """Returns the headers of an object, also of an expired commit or a purged object.

    An error here has no body, so it could not say why. Most clients send HEAD before GET, which
    says so. S3 does the same for archived objects.
    """
    if call.found is None:
        repository = call.repository()
        entry = reads(lambda: repository.objects.stat(*call.place()))
    else:
        entry = call.found.entry
    if is_unchanged(entry, call.headers):
        return Response(status_code=304, headers=headers_of(entry))
    status, headers, _ = _answered(call, entry)
    return Response(None, status, headers)


def readable(call: S3Call) -> Readable | InMemory:
    """Returns the object of a request. Raises S3Error `NoSuchKey`, and as `Objects.open` does."""
    if call.found is not None:
        return call.found
    repository = call.repository()
    return reads(lambda: repository.objects.open(*call.place()))


def _answered(call: S3Call, entry: Entry) -> tuple[int, dict[str, str], tuple[int, int] | None]:
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


def require_standard(call: S3Call) -> None:
    """Raises S3Error `InvalidStorageClass` for any other storage class."""
    if call.headers.get("x-amz-storage-class", "STANDARD") != "STANDARD":
        raise S3Error("InvalidStorageClass", "there is only the storage class STANDARD")


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
