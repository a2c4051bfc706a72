"""Branches: create, list, delete, restore and reset; revert or cherry-pick commits on them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.api.base import Instant, Metadata, Segment, Text, Wire
from ebbtide.server.api.commits import CommitAnswer
from ebbtide.server.api.lifecycle import ListedDep
from ebbtide.server.api.paging import PagingDep
from ebbtide.server.api.refs import RefList, add_ref_routes, ref_list
from ebbtide.server.api.routing import Routes, require_addressable
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.merges import revert_message
from ebbtide.store.commits.publication import until_published


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


class CommitOverrides(Wire):
    """Message and metadata for the new commit of a revert or cherry-pick, in place of the
    defaults."""

    message: Text | None = None
    metadata: Metadata | None = None


class RevertCreation(Wire):
    """The commit to revert. `parent_number` counts from 1; 0 is for commits that have a single
    parent. `force` has no effect: no repository is read-only."""

    ref: Text
    parent_number: int = Field(0, ge=0)
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool = False
    force: bool = False


class CherryPickCreation(Wire):
    """The commit to pick. `parent_number` counts from 1; only merge commits need it. `force` has no
    effect: no repository is read-only."""

    ref: Text
    parent_number: int | None = Field(None, ge=1)
    commit_overrides: CommitOverrides | None = None
    force: bool = False


routes = Routes("branches")

_BRANCHES = "/repositories/{repository:segment}/branches"
_BRANCH = _BRANCHES + "/{branch:segment}"

add_ref_routes(routes, _BRANCH, "branch", lambda repository: repository.branches)


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
) -> RefList:
    """Lists branches by name."""
    found = served.repository(repository).branches.page(
        prefix=paging.prefix,
        after=paging.after,
        amount=paging.amount_and_one,
        listed=listed,
        hidden=show_hidden,
    )
    return ref_list(paging, listed, found)


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


@routes.add("POST", _BRANCH + "/revert", Role.WRITER, status=204)
def revert_branch(
    repository: Segment, branch: Segment, asked: RevertCreation, served: ServedDep
) -> Response:
    """Reverts the changes of a commit, in a new commit."""
    overrides = asked.commit_overrides or CommitOverrides()
    found = served.repository(repository)
    until_published(
        found.context,
        branch,
        lambda ref: found.commits.revert(
            branch,
            ref,
            parent_number=asked.parent_number or None,
            message=overrides.message or revert_message(asked.ref),
            metadata=overrides.metadata,
            committer=served.committer,
            allow_empty=asked.allow_empty,
        ),
        asked.ref,
    )
    return Response(status_code=204)


@routes.add("POST", _BRANCH + "/cherry-pick", Role.WRITER, status=201)
def cherry_pick(
    repository: Segment, branch: Segment, asked: CherryPickCreation, served: ServedDep
) -> CommitAnswer:
    """Applies the changes of a commit to the branch, in a new commit."""
    overrides = asked.commit_overrides or CommitOverrides()
    found = served.repository(repository)
    made = until_published(
        found.context,
        branch,
        lambda ref: found.commits.cherry_pick(
            branch,
            ref,
            parent_number=asked.parent_number,
            message=overrides.message,
            metadata=overrides.metadata,
            committer=served.committer,
        ),
        asked.ref,
    )
    return CommitAnswer.of(made)
