"""Tags: create, list, delete and restore."""

from __future__ import annotations

from ebbtide.server.api.base import Instant, Segment, Text, Wire
from ebbtide.server.api.lifecycle import ListedDep
from ebbtide.server.api.paging import PagingDep
from ebbtide.server.api.refs import RefAnswer, RefList, add_ref_routes, ref_list
from ebbtide.server.api.routing import Routes, require_addressable
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role


class TagCreation(Wire):
    """A new tag: a name for a commit."""

    id: Text
    ref: Text
    expires_at: Instant | None = None


routes = Routes("tags")

_TAGS = "/repositories/{repository:segment}/tags"

add_ref_routes(routes, _TAGS + "/{tag:segment}", "tag", lambda repository: repository.tags)


@routes.add("POST", _TAGS, Role.WRITER, status=201)
def create_tag(repository: Segment, asked: TagCreation, served: ServedDep) -> RefAnswer:
    """Creates a tag."""
    require_addressable(asked.id)
    made = served.repository(repository).tags.create(
        asked.id, asked.ref, expires_at=asked.expires_at
    )
    return RefAnswer.of(made)


@routes.add("GET", _TAGS, Role.READER)
def list_tags(
    repository: Segment, paging: PagingDep, listed: ListedDep, served: ServedDep
) -> RefList:
    """Lists tags by name."""
    found = served.repository(repository).tags.page(
        prefix=paging.prefix, after=paging.after, amount=paging.amount_and_one, listed=listed
    )
    return ref_list(paging, listed, found)
