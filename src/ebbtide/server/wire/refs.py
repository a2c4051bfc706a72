"""Branches and tags, and what is done to branches."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from ebbtide.server.wire.base import Instant, Metadata, Pagination, Text, Wire
from ebbtide.store.refs import NamedCommit


class RefAnswer(Wire):
    """A branch or tag. `id` is its name, as clients call it, and `ref_id` the id."""

    id: str
    commit_id: str
    ref_id: str
    state: str
    expires_at: datetime | None = None

    @classmethod
    def of(cls, found: NamedCommit) -> RefAnswer:
        """As it is now."""
        return cls(
            id=found.name,
            commit_id=found.commit_id,
            ref_id=found.ref_id,
            state=found.state.value,
            expires_at=found.expires_at,
        )


class RefList(Wire):
    """Branches or tags, by name."""

    pagination: Pagination
    results: list[RefAnswer]


class BranchCreation(Wire):
    """A hidden branch is left out of lists that do not ask for it."""

    name: Text
    source: Text
    hidden: bool = False
    expires_at: Instant | None = None


class TagCreation(Wire):
    """A name for a commit."""

    id: Text
    ref: Text
    expires_at: Instant | None = None


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
