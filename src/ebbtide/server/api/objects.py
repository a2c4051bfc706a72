"""Objects: upload, read, list, copy, move and delete them, and change their metadata."""

from __future__ import annotations

from heapq import merge
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, Self

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.server.api import downloads
from ebbtide.server.api.base import OCTETS, Metadata, Pagination, Segment, Text, Wire, seconds_of
from ebbtide.server.api.lists import PagingDep
from ebbtide.server.api.routes import Routes
from ebbtide.server.errors import STATUS, message_of
from ebbtide.server.serving import ServedDep
from ebbtide.server.uploads import receive
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import Entry, address_url, without_checksums
from ebbtide.store.names import check_path
from ebbtide.store.objects.signed_reads import SignedRead
from ebbtide.store.page import Page


class ObjectStats(Wire):
    """The metadata of an object; or a prefix that several paths have in common."""

    path: str
    path_type: Literal["object", "common_prefix"]
    physical_address: str
    checksum: str
    size_bytes: int
    mtime: int
    metadata: dict[str, str] | None = None
    content_type: str | None = None
    physical_address_expiry: int | None = None

    @classmethod
    def of_signed(cls, signed: SignedRead, *, user_metadata: bool) -> Self:
        """Makes the answer for an object with a signed URL in the place of its address."""
        stats = cls.of(signed.entry, "", user_metadata=user_metadata)
        stats.physical_address = signed.url
        stats.physical_address_expiry = seconds_of(signed.expires_at)
        return stats

    @classmethod
    def of(cls, entry: Entry, root: str, *, user_metadata: bool = True) -> Self:
        """Makes the answer for an object; `root` is the URL of the repository's storage root."""
        return cls(**_fields_of(entry, root, user_metadata=user_metadata))

    @classmethod
    def of_prefix(cls, prefix: str) -> Self:
        """Makes the answer for a common prefix."""
        return cls(
            path=prefix,
            path_type="common_prefix",
            physical_address="",
            checksum="",
            size_bytes=0,
            mtime=0,
        )


def _fields_of(entry: Entry, root: str, *, user_metadata: bool) -> dict[str, Any]:
    """Returns the fields of an ObjectStats that are not null."""
    found = {
        "path": entry.path,
        "path_type": "object",
        "physical_address": address_url(entry.address, root),
        "checksum": entry.checksum,
        "size_bytes": entry.size_bytes,
        "mtime": seconds_of(entry.mtime),
        "content_type": entry.content_type or OCTETS,
    }
    if user_metadata:
        found["metadata"] = without_checksums(entry.metadata)
    return found


class ObjectMove(Wire):
    """The source of a move within a branch."""

    src_path: Text


class ObjectStatsList(Wire):
    """Objects and prefixes, sorted by path."""

    pagination: Pagination
    results: list[ObjectStats]


class ObjectCopyCreation(Wire):
    """The source of a copy. Without `src_ref`, the source is on the branch to which it is copied.
    `shallow` is refused, as lakeFS does."""

    src_path: Text
    src_ref: Text | None = None
    shallow: bool = False


class UserMetadataChange(Wire):
    """The metadata that replaces all metadata of an object."""

    set: Metadata


class PathList(Wire):
    """A list of paths."""

    paths: list[Text]


class ObjectErrorAnswer(Wire):
    """The error for one path of a request with several paths."""

    status_code: int
    message: str
    path: str


class ObjectErrorList(Wire):
    """The errors of a request with several paths."""

    errors: list[ObjectErrorAnswer]


routes = Routes("objects")

DELETED_MAX: Final = 1000
"""The most paths that one request deletes, as in lakeFS. Clients send their paths in such parts."""

PathQuery = Annotated[Text, Query()]
PresignQuery = Annotated[bool, Query()]

_BRANCH: Final = "/repositories/{repository:segment}/branches/{branch:segment}"
_REF: Final = "/repositories/{repository:segment}/refs/{ref:segment}"


@routes.add("POST", _BRANCH + "/objects", Role.WRITER, status=201, streamed=True)
async def upload_object(
    request: Request, repository: Segment, branch: Segment, path: PathQuery, served: ServedDep
) -> ObjectStats:
    """Uploads an object. The body is the object itself, or a form with the part `content`."""
    entry, root = await receive(request, served, repository, branch, path)
    return ObjectStats.of(entry, root)


@routes.add("GET", _REF + "/objects", Role.READER, response_class=StreamingResponse)
def get_object(
    repository: Segment,
    ref: Segment,
    path: PathQuery,
    served: ServedDep,
    options: downloads.DownloadOptionsDep,
    presign: PresignQuery = False,
) -> Response:
    """Returns the bytes of an object, or a range of them. With `presign`, redirects to a signed URL
    of the storage."""
    if presign:
        signed = served.repository(repository).signed_reads.sign(ref, path)
        return downloads.redirect(signed, options)
    found = served.repository(repository).objects.open(ref, path)
    return downloads.answer(found, options, path)


@routes.add("HEAD", _REF + "/objects", Role.READER, response_class=Response)
def head_object(
    repository: Segment,
    ref: Segment,
    path: PathQuery,
    served: ServedDep,
    options: downloads.DownloadOptionsDep,
    presign: PresignQuery = False,
) -> Response:
    """Returns the headers of an object without its bytes, or 410 if they expired or were purged.
    With `presign`, redirects to a signed URL for a HEAD request."""
    if presign:
        signed = served.repository(repository).signed_reads.sign(ref, path, method="HEAD")
        return downloads.redirect(signed, options)
    found = served.repository(repository).objects.open(ref, path)
    return downloads.head_unpurged(found, options, path)


@routes.add("GET", _REF + "/objects/stat", Role.READER)
def stat_object(
    repository: Segment,
    ref: Segment,
    path: PathQuery,
    served: ServedDep,
    user_metadata: Annotated[bool, Query()] = True,
    presign: PresignQuery = False,
) -> ObjectStats:
    """Returns the metadata of an object. With `presign`, its address is a signed URL."""
    found = served.repository(repository)
    if presign:
        signed = found.signed_reads.sign(ref, path)
        return ObjectStats.of_signed(signed, user_metadata=user_metadata)
    entry = found.objects.stat(ref, path)
    return ObjectStats.of(entry, found.info.storage_url, user_metadata=user_metadata)


@routes.add("GET", _REF + "/objects/ls", Role.READER, response_model=ObjectStatsList)
def list_objects(
    repository: Segment,
    ref: Segment,
    paging: PagingDep,
    served: ServedDep,
    delimiter: Annotated[Text, Query()] = "",
    user_metadata: Annotated[bool, Query()] = True,
    presign: PresignQuery = False,
) -> Response:
    """Lists objects by path. With a delimiter, paths that contain it after the prefix are grouped
    into common prefixes, which end at the delimiter. With `presign`, addresses are signed URLs."""
    found = served.repository(repository)
    place = {
        "prefix": paging.prefix,
        "delimiter": delimiter,
        "after": paging.after,
    }
    page: Page[Entry] | Page[SignedRead]
    # The answer is written without its model, which would take longer than reading the rows.
    if presign:
        signed = page = found.signed_reads.list(ref, amount=paging.amount, **place)
        entries = [
            ObjectStats.of_signed(each, user_metadata=user_metadata).model_dump(exclude_none=True)
            for each in signed.entries
        ]
    else:
        plain = page = found.objects.list(ref, amount=paging.amount, **place)
        root = found.info.storage_url
        entries = [_fields_of(each, root, user_metadata=user_metadata) for each in plain.entries]
    if page.common_prefixes:
        prefixes = (
            ObjectStats.of_prefix(each).model_dump(exclude_none=True)
            for each in page.common_prefixes
        )
        entries = list(merge(entries, prefixes, key=itemgetter("path")))
    pagination = paging.pagination(len(entries), page.next_after).model_dump()
    return Response(
        to_json({"pagination": pagination, "results": entries}), media_type="application/json"
    )


@routes.add("PUT", _BRANCH + "/objects/stat/user_metadata", Role.WRITER, status=204)
def set_user_metadata(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    asked: UserMetadataChange,
    served: ServedDep,
) -> Response:
    """Replaces the metadata of an object. The object keeps its bytes and its date. lakeFS's
    document says 201, but its server answers 204, and its command line accepts nothing else."""
    served.repository(repository).objects.set_metadata(branch, path, asked.set)
    return Response(status_code=204)


@routes.add("DELETE", _BRANCH + "/objects", Role.WRITER, status=204)
def delete_object(
    repository: Segment, branch: Segment, path: PathQuery, served: ServedDep
) -> Response:
    """Deletes one object. A path without an object is no error: clients may repeat a delete."""
    check_path(path)
    served.repository(repository).objects.delete_many(branch, [path])
    return Response(status_code=204)


@routes.add("POST", _BRANCH + "/objects/delete", Role.WRITER)
def delete_objects(
    repository: Segment, branch: Segment, asked: PathList, served: ServedDep
) -> ObjectErrorList:
    """Deletes several objects, at most 1,000. A path without an object is no error."""
    if len(asked.paths) > DELETED_MAX:
        raise InvalidInput(
            "invalid_argument",
            f"request size exceeded: {len(asked.paths):,} paths in one request, at most "
            f"{DELETED_MAX:,} are deleted at once; send several requests",
        )
    objects = served.repository(repository).objects
    errors: list[ObjectErrorAnswer] = []
    try:
        objects.delete_many(branch, asked.paths)
    except EbbtideError as error:
        if error.kind == "branch_not_found":
            raise
        served.store.tell(error)
        errors = [
            ObjectErrorAnswer(status_code=STATUS[error.kind], message=message_of(error), path=path)
            for path in asked.paths
        ]
    return ObjectErrorList(errors=errors)


@routes.add("POST", _BRANCH + "/objects/copy", Role.WRITER, status=201)
def copy_object(
    repository: Segment,
    branch: Segment,
    dest_path: PathQuery,
    asked: ObjectCopyCreation,
    served: ServedDep,
) -> ObjectStats:
    """Copies an object to a branch. The store decides whether the copy shares the bytes."""
    if asked.shallow:
        raise InvalidInput(
            "not_supported",
            "shallow is not supported: leave it out, and the store shares the bytes where that is "
            "safe",
        )
    found = served.repository(repository)
    entry = found.objects.copy(branch, dest_path, asked.src_ref or branch, asked.src_path)
    return ObjectStats.of(entry, found.info.storage_url)


@routes.add("POST", _BRANCH + "/objects/move", Role.WRITER, status=201)
def move_object(
    repository: Segment,
    branch: Segment,
    dest_path: PathQuery,
    asked: ObjectMove,
    served: ServedDep,
) -> ObjectStats:
    """Moves an object within its branch. lakeFS has no such route."""
    found = served.repository(repository)
    entry = found.objects.move(branch, dest_path, asked.src_path)
    return ObjectStats.of(entry, found.info.storage_url)
