"""Branches and tags, and what is done to branches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ebbtide.server.wire.base import Metadata, Pagination, Text, Wire


class RefAnswer(Wire):
    """A branch or tag."""

    id: str
    commit_id: str


class RefList(Wire):
    """Branches or tags, by name."""

    pagination: Pagination
    results: list[RefAnswer]


class BranchCreation(Wire):
    """A hidden branch is left out of lists that do not ask for it."""

    name: Text
    source: Text
    hidden: bool = False


class TagCreation(Wire):
    """A name for a commit."""

    id: Text
    ref: Text


class ResetCreation(Wire):
    """What to drop of what is staged: all, one path, or all paths with a prefix."""

    type: Literal["object", "common_prefix", "reset"]
    path: Text | None = None


class CommitOverrides(Wire):
    """What a commit made from another says in place of that one's."""

    message: Text | None = None
    metadata: Metadata | None = None


class RevertCreation(Wire):
    """`parent_number` counts from 1; 0 is for commits that have one parent alone."""

    ref: Text
    parent_number: int = Field(0, ge=0)
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool = False


class CherryPickCreation(Wire):
    """`parent_number` counts from 1; only merges need one."""

    ref: Text
    parent_number: int | None = Field(None, ge=1)
    commit_overrides: CommitOverrides | None = None


class MergeCreation(Wire):
    """How to merge."""

    message: Text | None = None
    metadata: Metadata | None = None
    strategy: Literal["source-wins", "dest-wins", ""] | None = None
    allow_empty: bool = False
    squash_merge: bool = False


class MergeAnswer(Wire):
    """The commit that a merge made."""

    reference: str


class MergeBaseAnswer(Wire):
    """The ids of three commits."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str
