"""The files of collections: list, read, write, delete and compare. lakeFS has no such routes."""

from __future__ import annotations

from datetime import datetime
from heapq import merge
from operator import attrgetter
from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from ebbtide.server.api import downloads
from ebbtide.server.api.base import Segment, Text
from ebbtide.server.api.commits import DiffAnswer, diff_list
from ebbtide.server.api.lists import ExpiredQuery, PageOf, Paging, PagingDep
from ebbtide.server.api.locators import locators_url
from ebbtide.server.api.objects import ObjectStats, PathQuery
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.uploads import metadata_of, receive_body
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.contents import ContentChange, Files
from ebbtide.store.collections.reading import Collection
from ebbtide.store.objects.locators import Signed
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject


class FileAnswer(ObjectStats):
    """A file of a collection, with a locator if the request asks for one.

    Until `expires_at` its bytes can be read at `url` without an access key, and new content of
    collections can be made with `locator`.
    """

    locator: str | None = None
    url: str | None = None
    expires_at: datetime | None = None

    @classmethod
    def signed(cls, found: Signed, root: str, locators_url: str) -> FileAnswer:
        """Makes the answer for a file with its locator. Clients read locators below
        `locators_url`."""
        return cls.of(found.entry, root).model_copy(
            update={
                "locator": found.locator,
                "url": found.url or f"{locators_url}/{found.locator}",
                "expires_at": found.expires_at,
            }
        )


routes = Routes("collections")

VersionQuery = Annotated[int | None, Query(description="A version that is kept.")]
DelimiterQuery = Annotated[Text, Query()]

_COLLECTION: Final = "/collections/{collection_id:segment}"
_CONTENT: Final = _COLLECTION + "/files/content"


@routes.add("GET", _COLLECTION + "/files", Role.READER)
def list_files(
    request: Request,
    collection_id: Segment,
    paging: PagingDep,
    served: ServedDep,
    delimiter: DelimiterQuery = "",
    version: VersionQuery = None,
    locators: Annotated[bool, Query(description="Adds a locator to each file.")] = False,
    include_expired: ExpiredQuery = False,
) -> PageOf[FileAnswer]:
    """Lists files by path. With a delimiter, paths that contain it after the prefix are grouped
    into common prefixes, which end at the delimiter. Files of a collection in the trash
    get no locators."""
    found = served.store.repository_of_collection(collection_id)
    collection = found.collections.get(collection_id, include_expired=include_expired)
    if locators and collection.state.gives_signatures:
        return _signed(found, collection_id, version, delimiter, paging, locators_url(request))
    page = found.collections.files(
        collection_id,
        version=version,
        include_expired=include_expired,
        prefix=paging.prefix,
        delimiter=delimiter,
        after=paging.after,
        amount=paging.amount,
    )
    root = found.info.storage_url
    files = [FileAnswer.of(each, root) for each in page.entries]
    return _list(files, page.common_prefixes, page.next_after, paging)


def _signed(
    found: Repository,
    collection_id: str,
    version: int | None,
    delimiter: str,
    paging: Paging,
    url: str,
) -> PageOf[FileAnswer]:
    page = found.collections.locators(
        collection_id,
        version=version,
        prefix=paging.prefix,
        delimiter=delimiter,
        after=paging.after,
        amount=paging.amount,
    )
    root = found.info.storage_url
    files = [FileAnswer.signed(each, root, url) for each in page.entries]
    return _list(files, page.common_prefixes, page.next_after, paging)


def _list(
    files: list[FileAnswer],
    common_prefixes: tuple[str, ...],
    next_after: str | None,
    paging: Paging,
) -> PageOf[FileAnswer]:
    prefixes = map(FileAnswer.of_prefix, common_prefixes)
    results = list(merge(files, prefixes, key=attrgetter("path")))
    return PageOf(paging.pagination(len(results), next_after), results)


@routes.add("PUT", _COLLECTION + "/files", Role.WRITER, streamed=True)
async def put_file(
    request: Request,
    collection_id: Segment,
    path: PathQuery,
    served: ServedDep,
    keep_version: Annotated[bool, Query()] = False,
) -> Collection:
    """Uploads a file, and replaces the file at the path if there is one. The body is the file
    itself, or a form with the part `content`."""
    metadata = metadata_of(request)

    def put(data: Content, content_type: str | None) -> Collection:
        collections = served.store.repository_of_collection(collection_id).collections
        new = NewObject(path, data, content_type, metadata)
        return collections.update(
            collection_id, ContentChange([Files([new])]), keep_version=keep_version
        )

    return await receive_body(request, served, put)


@routes.add("DELETE", _COLLECTION + "/files", Role.WRITER)
def delete_files(
    collection_id: Segment,
    path: PathQuery,
    served: ServedDep,
    keep_version: Annotated[bool, Query()] = False,
) -> Collection:
    """Deletes a file, or all files with a prefix that ends in a slash."""
    collections = served.store.repository_of_collection(collection_id).collections
    return collections.update(
        collection_id, ContentChange(removed=[path]), keep_version=keep_version
    )


@routes.add("GET", _CONTENT, Role.READER, response_class=StreamingResponse)
def get_file(
    collection_id: Segment,
    path: PathQuery,
    served: ServedDep,
    options: downloads.DownloadOptionsDep,
    version: VersionQuery = None,
) -> Response:
    """Returns the bytes of a file, or a range of them."""
    found = served.store.repository_of_collection(collection_id).collections
    return downloads.answer(found.open(collection_id, path, version=version), options, path)


@routes.add("HEAD", _CONTENT, Role.READER, response_class=Response)
def head_file(
    collection_id: Segment,
    path: PathQuery,
    served: ServedDep,
    options: downloads.DownloadOptionsDep,
    version: VersionQuery = None,
) -> Response:
    """Returns the headers of a file without its bytes."""
    found = served.store.repository_of_collection(collection_id).collections
    return downloads.head(found.open(collection_id, path, version=version), options, path)


@routes.add("GET", _COLLECTION + "/diff", Role.READER)
def diff_collections(
    collection_id: Segment,
    other: Annotated[Text, Query(description="Id of the collection on the right side.")],
    paging: PagingDep,
    served: ServedDep,
    delimiter: DelimiterQuery = "",
    version: VersionQuery = None,
    other_version: VersionQuery = None,
    include_right_stats: Annotated[bool, Query()] = False,
) -> PageOf[DiffAnswer]:
    """Lists the differences between the files of two collections, or of versions of them."""
    found = served.store.repository_of_collection(collection_id)
    page = found.collections.page_of_diff(
        collection_id,
        other,
        left_version=version,
        right_version=other_version,
        prefix=paging.prefix,
        delimiter=delimiter,
        after=paging.after,
        amount=paging.amount,
    )
    return diff_list(page, paging, right_stats=include_right_stats)
