"""Uploads in parts to signed URLs: begin them, sign and copy parts, complete and abort them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Request, Response

from ebbtide.server.api.base import Metadata, Segment, Text, Wire
from ebbtide.server.api.downloads import parse_range
from ebbtide.server.api.objects import ObjectStats
from ebbtide.server.api.routing import Routes
from ebbtide.server.patience import PatientJson
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.keys import Role
from ebbtide.store.names import check_path
from ebbtide.store.staging.multipart import PART_NUMBER_MAX, WantedPart


class PresignMultipartUpload(Wire):
    """An upload that has begun. Clients send `physical_address` back unchanged; it only names the
    upload. Part 1 goes to the first URL."""

    upload_id: str
    physical_address: str
    presigned_urls: list[str] | None = None


class UploadedPart(Wire):
    """A part of the object, and the ETag that the storage answered."""

    part_number: int
    etag: Text


class CompletePresignMultipartUpload(Wire):
    """The parts of the object, in the order of their numbers."""

    physical_address: Text
    parts: list[UploadedPart]
    user_metadata: Metadata | None = None
    content_type: Text | None = None


class NamedUpload(Wire):
    """The address that names the upload."""

    physical_address: Text


class PartSource(Wire):
    """The object, or the range of it, that becomes a part. `range` is written as in the header
    `Range`, with a single range."""

    repository: Text
    ref: Text
    path: Text
    range: Text | None = None


class PartCopy(NamedUpload):
    """The source of a part."""

    copy_source: PartSource


class UploadTo(Wire):
    """The URL that accepts a part."""

    presigned_url: str


routes = Routes("staging")

PathQuery = Annotated[Text, Query()]
UploadId = Annotated[Text, Path(alias="uploadId")]
PartNumber = Annotated[int, Path(alias="partNumber", ge=1, le=PART_NUMBER_MAX)]

_UPLOADS: Final = "/repositories/{repository:segment}/branches/{branch:segment}/staging/pmpu"
_UPLOAD: Final = _UPLOADS + "/{uploadId:segment}"
_PART: Final = _UPLOAD + "/parts/{partNumber:segment}"


@routes.add("POST", _UPLOADS, Role.WRITER, status=201)
def create_presign_multipart_upload(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    served: ServedDep,
    parts: Annotated[int, Query(ge=0, le=PART_NUMBER_MAX)] = 0,
) -> PresignMultipartUpload:
    """Begins an upload in parts, and returns signed URLs for its first `parts`. An upload that is
    not completed before `EBBTIDE_WRITE_TTL` is deleted."""
    begun = served.repository(repository).signed_parts.create(branch, path, part_count=parts)
    return PresignMultipartUpload(
        upload_id=begun.upload_id,
        physical_address=begun.url,
        presigned_urls=list(begun.part_urls) or None,
    )


@routes.add("PUT", _UPLOAD, Role.WRITER, response_model=ObjectStats)
def complete_presign_multipart_upload(
    request: Request,
    repository: Segment,
    branch: Segment,
    upload_id: UploadId,
    path: PathQuery,
    asked: CompletePresignMultipartUpload,
    served: ServedDep,
) -> Response:
    """Makes an object of the parts. The answer begins with white space if this takes long."""
    check_path(path)
    found = served.repository(repository)
    upload = found.signed_parts.get(branch, path, upload_id, asked.physical_address)
    wanted = [WantedPart(each.part_number, each.etag) for each in asked.parts]
    chosen = found.signed_parts.choose(upload, wanted)

    def complete() -> bytes:
        entry = found.signed_parts.complete(
            chosen, content_type=asked.content_type, metadata=asked.user_metadata
        )
        stats = ObjectStats.of(entry, found.info.storage_url)
        return stats.model_dump_json(exclude_none=True).encode()

    return PatientJson(complete, limiter=request.app.state.transfers)


@routes.add("DELETE", _UPLOAD, Role.WRITER, status=204)
def abort_presign_multipart_upload(
    repository: Segment,
    branch: Segment,
    upload_id: UploadId,
    path: PathQuery,
    asked: NamedUpload,
    served: ServedDep,
) -> Response:
    """Ends an upload without an object, and deletes its parts."""
    check_path(path)
    found = served.repository(repository)
    found.signed_parts.get(branch, path, upload_id, asked.physical_address)
    found.multipart.abort(branch, path, upload_id)
    return Response(status_code=204)


@routes.add("PUT", _PART, Role.WRITER)
def upload_part(
    repository: Segment,
    branch: Segment,
    upload_id: UploadId,
    part_number: PartNumber,
    path: PathQuery,
    asked: NamedUpload,
    served: ServedDep,
) -> UploadTo:
    """Returns a signed URL for a part, also for one whose earlier URL has ended."""
    check_path(path)
    signed_parts = served.repository(repository).signed_parts
    upload = signed_parts.get(branch, path, upload_id, asked.physical_address)
    return UploadTo(presigned_url=signed_parts.sign(upload, part_number))


@routes.add("PUT", _PART + "/copy", Role.WRITER, status=204)
def upload_part_copy(
    repository: Segment,
    branch: Segment,
    upload_id: UploadId,
    part_number: PartNumber,
    path: PathQuery,
    asked: PartCopy,
    served: ServedDep,
) -> Response:
    """Stores an object, or a range of it, as a part, in the place of an earlier part with its
    number."""
    check_path(path)
    found = served.repository(repository)
    upload = found.signed_parts.get(branch, path, upload_id, asked.physical_address)
    given = asked.copy_source
    source = served.repository(given.repository).objects.open(given.ref, given.path)
    part = parse_range(given.range, source.entry.size_bytes)
    pieces = source.stream() if part is None else source.stream(start=part[0], end=part[1])
    made = found.multipart.put_part(upload, part_number, pieces, check=source.require_kept)
    return Response(status_code=204, headers={"ETag": f'"{made.etag}"'})
