"""Uploads in parts: begin, send, list, complete and abort them, with checksums of parts and all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element

from starlette.responses import Response

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.buckets import KEYS_MAX, owner_element
from ebbtide.doors.s3.call import (
    InThread,
    S3Call,
    answer,
    copy_source,
    key_of,
    operation,
    patient,
    split_key,
)
from ebbtide.doors.s3.call import writing as writing_to
from ebbtide.doors.s3.errors import Markup, S3Error, date_text, element, key_text, root
from ebbtide.doors.s3.object_headers import (
    condition_of_write,
    metadata_of,
    metadata_of_sums,
    quoted,
    sums_among,
    sums_of,
)
from ebbtide.doors.s3.objects import (
    copy_result,
    require_standard,
    source_of,
)
from ebbtide.doors.s3.payload import sent_checksums
from ebbtide.errors import NotFound
from ebbtide.server.api.downloads import find_range
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import CHECKSUM
from ebbtide.store.content.etags import etag_among, etag_of
from ebbtide.store.repository import Repository
from ebbtide.store.staging.multipart import PART_NUMBER_MAX, PartReader, WantedPart
from ebbtide.store.staging.multipart_rows import MultipartUpload, UploadPart
from ebbtide.text import shown

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


_ALGORITHM: Final = CHECKSUM + "algorithm"
_TYPE: Final = CHECKSUM + "type"


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part in the body of a request, with the checksums that its bytes must have."""

    part: WantedPart
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WantedSums:
    """The checksums that an object gets, by algorithm: of all its bytes, and of its parts'
    checksums. The value is what the client sent, or None."""

    whole: Mapping[str, str | None]
    composite: Mapping[str, str | None]

    @classmethod
    def of(cls, call: S3Call, upload: MultipartUpload) -> WantedSums:
        """Returns the checksums that the upload was begun with, and those of the request."""
        chosen = upload.metadata.get(_ALGORITHM)
        whole: dict[str, str | None] = {}
        composite: dict[str, str | None] = {}
        for name in checksums.ALGORITHMS:
            value = call.headers.get(checksums.PREFIX + name)
            if name == chosen:
                kind = upload.metadata.get(_TYPE)
            elif value is None:
                continue
            elif checksums.is_composite(value):
                kind = "COMPOSITE"
            else:
                kind = call.headers.get("x-amz-checksum-type")
            (composite if kind == "COMPOSITE" else whole)[name] = value
        return cls(whole, composite)


class CheckedParts(PartReader):
    """Reads parts, and compares checksums of each part and of all, and the size of all."""

    def __init__(
        self, parts: list[Mapping[str, str]], wanted: WantedSums, size_bytes: int | None
    ) -> None:
        self._parts = parts
        self._wanted = wanted
        self._size_bytes = size_bytes
        self._found: dict[str, str] = {}

    def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
        """Yields the bytes of all parts. Raises S3Error `BadDigest`, `InvalidPart` or
        `InvalidRequest`."""
        whole = {name: checksums.ALGORITHMS[name]() for name in self._wanted.whole}
        of_parts: dict[str, list[checksums.Summing]] = {name: [] for name in self._wanted.composite}
        size = 0
        for number, (pieces, expected) in enumerate(zip(parts, self._parts, strict=True)):
            sums = {name: checksums.ALGORITHMS[name]() for name in {*expected, *of_parts}}
            for piece in pieces:
                size += len(piece)
                for each in (*sums.values(), *whole.values()):
                    each.update(piece)
                yield piece
            if any(checksums.encoded(sums[name]) != expected[name] for name in expected):
                raise S3Error("InvalidPart", f"the part at place {number + 1} has another checksum")
            for name, each_sum in of_parts.items():
                each_sum.append(sums[name])
        if self._size_bytes not in (None, size):
            raise S3Error("InvalidRequest", f"the parts have {size} bytes together")
        self._found = {name: checksums.encoded(each) for name, each in whole.items()} | {
            name: checksums.composite(each, name) for name, each in of_parts.items()
        }
        for name, given in (*self._wanted.whole.items(), *self._wanted.composite.items()):
            # The number of parts may be left out.
            if given not in (None, self._found[name], self._found[name].partition("-")[0]):
                raise S3Error("BadDigest", "the object's checksum is not the one of the request")

    def metadata(self) -> Mapping[str, str]:
        """Returns the checksums of the object, as metadata."""
        return metadata_of_sums(self._found)


def chosen_checksum(call: S3Call) -> dict[str, str]:
    """Returns, as metadata of the upload, the checksum that the object is to get. Raises S3Error
    `InvalidRequest`."""
    name = call.headers.get("x-amz-checksum-algorithm", "").lower()
    default = "FULL_OBJECT" if name == "crc64nvme" else "COMPOSITE"
    kind = call.headers.get("x-amz-checksum-type", default).upper()
    if not name:
        return {}
    if name not in checksums.ALGORITHMS:
        raise S3Error("InvalidRequest", f"this server has no checksum {shown(name)}")
    if kind not in ("FULL_OBJECT", "COMPOSITE") or (name, kind) == ("crc64nvme", "COMPOSITE"):
        raise S3Error("InvalidRequest", f"{name} has no checksum of the type {shown(kind)}")
    return {_ALGORITHM: name, _TYPE: kind}


def wanted_of(body: Element) -> list[ListedPart]:
    """Returns the parts that a body lists. Raises S3Error `MalformedXML` or `InvalidPartOrder`."""
    found: list[ListedPart] = []
    for item in body.findall("Part"):
        number = (item.findtext("PartNumber") or "").strip()
        etag = (item.findtext("ETag") or "").strip().strip('"')
        if not (number.isascii() and number.isdigit() and len(number) <= 5 and etag):
            raise S3Error("MalformedXML", "a part needs a PartNumber and an ETag")
        given = {
            child.tag.removeprefix("Checksum").lower(): child.text.strip()
            for child in item
            if child.tag.startswith("Checksum") and child.text
        }
        unknown = sorted(given.keys() - checksums.ALGORITHMS.keys())
        if unknown:
            raise S3Error("InvalidRequest", f"this server has no checksum {shown(unknown[0])}")
        found.append(ListedPart(WantedPart(int(number), etag), given))
    if not 1 <= len(found) <= PART_NUMBER_MAX:
        raise S3Error("MalformedXML", f"list between 1 and {PART_NUMBER_MAX} parts")
    numbers = [each.part.part_number for each in found]
    if any(first >= second for first, second in pairwise(numbers)):
        raise S3Error("InvalidPartOrder", "list the parts by their numbers, each once")
    return found


def chosen_elements(upload: MultipartUpload) -> list[Markup]:
    """Returns the checksum that an upload was begun with."""
    names = {"ChecksumAlgorithm": _ALGORITHM, "ChecksumType": _TYPE}
    return [
        element(name, upload.metadata[key].upper())
        for name, key in names.items()
        if key in upload.metadata
    ]
