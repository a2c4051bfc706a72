"""Uploads directly to the storage: linked afterwards, or in parts to signed URLs; and objects that
stay outside the repository."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Header, Path, Query, Request, Response

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.base import Metadata, Seconds, Segment, Text, Wire, seconds_of
from ebbtide.server.api.downloads import parse_range
from ebbtide.server.api.objects import ObjectStats
from ebbtide.server.api.routes import Routes
from ebbtide.server.patience import PatientJson
from ebbtide.server.serving import ServedDep
from ebbtide.server.uploads import parse_condition
from ebbtide.storage.urls import object_url
from ebbtide.store.access.access_keys import Role
from ebbtide.store.import_sources import require_allowed
from ebbtide.store.names import check_path
from ebbtide.store.staging.multipart import PART_NUMBER_MAX, WantedPart


class ObjectStageCreation(Wire):
    """An object outside the repository that stays where it is."""

    physical_address: Text
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: Text | None = None


class StagingLocation(Wire):
    """An address to upload to. To link the upload, the client sends `physical_address` back
    unchanged."""

    physical_address: Text | None = None
    presigned_url: Text | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(Wire):
    """The description of an upload. A `checksum` of 64 hexadecimal digits is compared as SHA-256;
    any other checksum is ignored. `mtime` is the object's date, if it is given."""

    staging: StagingLocation
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    user_metadata: Metadata | None = None
    content_type: Text | None = None


routes = Routes("staging")

PathQuery = Annotated[Text, Query()]
ConditionHeader = Annotated[str | None, Header()]

_BRANCH: Final = "/repositories/{repository:segment}/branches/{branch:segment}"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


@routes.add("GET", _BRANCH + "/staging/backing", Role.WRITER)
def get_physical_address(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    served: ServedDep,
    presign: Annotated[bool, Query()] = False,
) -> StagingLocation:
    """Returns an address to upload to. An upload that is not linked before its token expires is
    deleted."""
    given = served.repository(repository).addresses.get(branch, path)
    signed = given.presigned_url if presign else None
    return StagingLocation(
        physical_address=given.url,
        presigned_url=signed,
        presigned_url_expiry=None if signed is None else seconds_of(given.expires_at),
    )


@routes.add("PUT", _BRANCH + "/staging/backing", Role.WRITER)
def link_physical_address(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    asked: StagingMetadata,
    served: ServedDep,
    if_none_match: ConditionHeader = None,
    if_match: ConditionHeader = None,
) -> ObjectStats:
    """Links an upload to a path. A repeated link gets the answer of the first one, as long as the
    path shows its object."""
    found = served.repository(repository)
    if asked.staging.physical_address is None:
        raise InvalidInput("invalid_argument", "staging.physical_address: field required")
    only_if = parse_condition(if_none_match, if_match)
    try:
        entry = found.addresses.link(
            branch,
            path,
            found.addresses.token_of(asked.staging.physical_address),
            size_bytes=asked.size_bytes,
            # Clients may send a storage's ETag here, which cannot be compared.
            checksum=asked.checksum if _SHA256.fullmatch(asked.checksum) else None,
            content_type=asked.content_type,
            metadata=asked.user_metadata,
            mtime=_mtime(asked.mtime),
            only_if=only_if,
        )
    except Conflict as error:
        if error.kind != "token_used" or only_if is not None:
            raise
        linked = found.addresses.find_linked(
            branch,
            path,
            size_bytes=asked.size_bytes,
            checksum=asked.checksum,
            content_type=asked.content_type,
            metadata=asked.user_metadata,
        )
        if linked is None:
            raise
        entry = linked
    return ObjectStats.of(entry, found.info.storage_url)


@routes.add("PUT", _BRANCH + "/objects", Role.WRITER, status=201)
def stage_object(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    asked: ObjectStageCreation,
    served: ServedDep,
) -> ObjectStats:
    """Stages an object outside the repository, which stays where it is. `EBBTIDE_IMPORT_PREFIXES`
    must allow its place, because the server reads it for all users, with its own credentials."""
    url = object_url(asked.physical_address)
    require_allowed(url, served.import_prefixes)
    found = served.repository(repository)
    entry = found.addresses.stage(
        branch,
        path,
        url,
        size_bytes=asked.size_bytes,
        checksum=asked.checksum,
        mtime=_mtime(asked.mtime),
        content_type=asked.content_type,
        metadata=asked.metadata,
    )
    return ObjectStats.of(entry, found.info.storage_url)


def _mtime(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


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
