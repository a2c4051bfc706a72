"""Tags: made, listed, deleted."""

from __future__ import annotations

from fastapi import Response

from ebbtide.server.paging import PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment
from ebbtide.server.wire.refs import RefAnswer, RefList, TagCreation
from ebbtide.store.keys import Role

routes = Routes("tags")

_TAGS = "/repositories/{repository:segment}/tags"
_TAG = _TAGS + "/{tag:segment}"


@routes.add("POST", _TAGS, Role.WRITER, status=201)
def create_tag(repository: Segment, asked: TagCreation, served: ServedDep) -> RefAnswer:
    """Give a commit a name."""
    made = served.repository(repository).tags.create(asked.id, asked.ref)
    return RefAnswer(id=made.name, commit_id=made.commit_id)


@routes.add("GET", _TAGS, Role.READER)
def list_tags(repository: Segment, paging: PagingDep, served: ServedDep) -> RefList:
    """Tags by name."""
    page, more = paging.cut(
        served.repository(repository).tags.page(
            prefix=paging.prefix, after=paging.after, amount=paging.amount_and_one
        )
    )
    return RefList(
        pagination=paging.pagination(len(page), page[-1].name if more else None),
        results=[RefAnswer(id=tag.name, commit_id=tag.commit_id) for tag in page],
    )


@routes.add("GET", _TAG, Role.READER)
def get_tag(repository: Segment, tag: Segment, served: ServedDep) -> RefAnswer:
    """One tag."""
    found = served.repository(repository).tags.get(tag)
    return RefAnswer(id=found.name, commit_id=found.commit_id)


@routes.add("DELETE", _TAG, Role.WRITER, status=204)
def delete_tag(repository: Segment, tag: Segment, served: ServedDep) -> Response:
    """Put a tag in the trash."""
    served.repository(repository).tags.delete(tag)
    return Response(status_code=204)
