"""Branches and tags: create, list, change, delete and restore them, and reset branches.

Not for: commits on branches (`commits`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Body, Path, Query, Response
from fastapi.responses import HTMLResponse

from ebbtide.errors import InvalidInput
from ebbtide.server.api.answers import answers
from ebbtide.server.api.base import ExpiryChange, Instant, Restoration, Segment, Text, Wire
from ebbtide.server.api.lists import ExpiredQuery, ListedDep, PageOf, PagingDep, next_after
from ebbtide.server.api.routes import Routes, require_addressable
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.refs.refs import Branch, NamedCommit, Refs, Tag
from ebbtide.store.repository import Repository


@answers(Branch, Tag)
class RefAnswer(Wire):
    """A branch or tag. `id` is its name too, because lakeFS clients expect it; `ref_id` is its
    id."""

    id: str

    @classmethod
    def of(cls, found: NamedCommit) -> RefAnswer:
        """Makes the name that lakeFS has for the name."""
        return cls(id=found.name)


class BranchCreation(Wire):
    """A new branch. Lists leave out hidden branches, unless the request asks for them."""

    name: Text
    source: Text
    hidden: bool = False
    expires_at: Instant | None = None


class ResetCreation(Wire):
    """Which staged changes to drop: all changes, the change of one path, or those of all paths with
    a prefix."""

    type: Literal["object", "common_prefix", "reset"]
    path: Text | None = None


class TagCreation(Wire):
    """A new tag: a name for a commit."""

    id: Text
    ref: Text
    expires_at: Instant | None = None


routes = Routes("refs")

_BRANCHES = "/repositories/{repository:segment}/branches"
_BRANCH = _BRANCHES + "/{branch:segment}"
_TAGS = "/repositories/{repository:segment}/tags"


def _add_ref_routes(
    path: str,
    kind: str,
    refs_of: Callable[[Repository], Refs[Any, Any]],  # the branches or the tags of a repository
) -> None:
    """Adds the routes that a single branch and a single tag have in common. The last part of `path`
    names the ref."""
    name_path = Path(alias=kind)

    @routes.add("GET", path, Role.READER)
    def get_ref(
        repository: Segment,
        served: ServedDep,
        name: Text = name_path,
        include_expired: ExpiredQuery = False,
    ) -> NamedCommit:
        """Returns one branch or tag, by name or id."""
        refs: Refs[Any, NamedCommit] = refs_of(served.repository(repository))
        return refs.get(name, include_expired=include_expired)

    @routes.add("DELETE", path, Role.WRITER, status=204)
    def delete_ref(repository: Segment, served: ServedDep, name: Text = name_path) -> Response:
        """Moves a branch or tag to the trash."""
        refs_of(served.repository(repository)).delete(name)
        return Response(status_code=204)

    @routes.add("PATCH", path, Role.WRITER)
    def change_ref(
        repository: Segment, asked: ExpiryChange, served: ServedDep, name: Text = name_path
    ) -> NamedCommit:
        """Sets when a branch or tag expires. If it is in the trash, it is restored,
        unless the date is past."""
        refs: Refs[Any, NamedCommit] = refs_of(served.repository(repository))
        return refs.set_expiry(name, asked.expires_at, ensure_unique_name=asked.ensure_unique_name)

    @routes.add("POST", path + "/restore", Role.WRITER)
    def restore_ref(
        repository: Segment,
        served: ServedDep,
        name: Text = name_path,
        asked: Annotated[Restoration | None, Body()] = None,
    ) -> NamedCommit:
        """Restores a branch or tag from the trash."""
        unique = asked is not None and asked.ensure_unique_name
        refs: Refs[Any, NamedCommit] = refs_of(served.repository(repository))
        return refs.restore(name, ensure_unique_name=unique)


_add_ref_routes(_BRANCH, "branch", lambda repository: repository.branches)
_add_ref_routes(_TAGS + "/{tag:segment}", "tag", lambda repository: repository.tags)


@routes.add("POST", _BRANCHES, Role.WRITER, status=201, response_class=HTMLResponse)
def create_branch(repository: Segment, asked: BranchCreation, served: ServedDep) -> Response:
    """Creates a branch. The answer is the id of its commit, as text."""
    require_addressable(asked.name)
    made = served.repository(repository).branches.create(
        asked.name, asked.source, hidden=asked.hidden, expires_at=asked.expires_at
    )
    # Clients ask for this content type. An id contains nothing that a browser would run.
    return HTMLResponse(made.commit_id, status_code=201)


@routes.add("GET", _BRANCHES, Role.READER)
def list_branches(
    repository: Segment,
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    show_hidden: Annotated[bool, Query()] = False,
) -> PageOf[Branch]:
    """Lists branches by name."""
    return paging.cut(
        served.repository(repository).branches.page(
            prefix=paging.prefix,
            after=paging.after,
            amount=paging.amount_and_one,
            listed=listed,
            hidden=show_hidden,
        ),
        lambda each: next_after(each.name, each.ref_id, listed),
    )


@routes.add("PUT", _BRANCH, Role.WRITER, status=204)
def reset_branch(
    repository: Segment, branch: Segment, asked: ResetCreation, served: ServedDep
) -> Response:
    """Drops staged changes: all changes, the change of one path, or those of all paths with a
    prefix."""
    commits = served.repository(repository).commits
    if asked.type == "reset":
        commits.reset(branch)
    elif not asked.path:
        raise InvalidInput("invalid_argument", f"a reset of type {asked.type} needs a path")
    elif asked.type == "object":
        commits.reset_path(branch, asked.path)
    else:
        commits.reset_prefix(branch, asked.path)
    return Response(status_code=204)


@routes.add("PUT", _BRANCH + "/hard_reset", Role.WRITER, status=204)
def hard_reset_branch(
    repository: Segment,
    branch: Segment,
    ref: Annotated[Text, Query()],
    served: ServedDep,
    force: Annotated[bool, Query()] = False,
) -> Response:
    """Moves the branch to the commit of a reference. With `force`, staged changes are dropped."""
    served.repository(repository).commits.reset_to(branch, ref, force=force)
    return Response(status_code=204)


@routes.add("POST", _TAGS, Role.WRITER, status=201)
def create_tag(repository: Segment, asked: TagCreation, served: ServedDep) -> Tag:
    """Creates a tag."""
    require_addressable(asked.id)
    tags = served.repository(repository).tags
    return tags.create(asked.id, asked.ref, expires_at=asked.expires_at)


@routes.add("GET", _TAGS, Role.READER)
def list_tags(
    repository: Segment, paging: PagingDep, listed: ListedDep, served: ServedDep
) -> PageOf[Tag]:
    """Lists tags by name."""
    return paging.cut(
        served.repository(repository).tags.page(
            prefix=paging.prefix, after=paging.after, amount=paging.amount_and_one, listed=listed
        ),
        lambda each: next_after(each.name, each.ref_id, listed),
    )
