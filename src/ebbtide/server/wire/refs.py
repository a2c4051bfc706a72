"""Branches and tags, and the changes of branches."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from ebbtide.server.wire.base import Instant, Metadata, Pagination, Text, Wire
from ebbtide.store.refs.refs import NamedCommit


class RefAnswer(Wire):
    """A branch or tag. `id` is its name, as lakeFS clients call it; `ref_id` is its id."""

    id: str
    commit_id: str
    ref_id: str
    state: str
    expires_at: datetime | None = None

    @classmethod
    def of(cls, found: NamedCommit) -> RefAnswer:
        """Makes the answer for a branch or tag."""
        return cls(
            id=found.name,
            commit_id=found.commit_id,
            ref_id=found.ref_id,
            state=found.state.value,
            expires_at=found.expires_at,
        )


class RefList(Wire):
    """Branches or tags, sorted by name."""

    pagination: Pagination
    results: list[RefAnswer]


class BranchCreation(Wire):
    """A new branch. Lists leave out hidden branches, unless the request asks for them."""

    name: Text
    source: Text
    hidden: bool = False
    expires_at: Instant | None = None


class TagCreation(Wire):
    """A new tag: a name for a commit."""

    id: Text
    ref: Text
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
    parent."""

    ref: Text
    parent_number: int = Field(0, ge=0)
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool = False


class CherryPickCreation(Wire):
    """The commit to pick. `parent_number` counts from 1; only merge commits need it."""

    ref: Text
    parent_number: int | None = Field(None, ge=1)
    commit_overrides: CommitOverrides | None = None


class MergeCreation(Wire):
    """The options of a merge. `strategy` decides conflicts; without one, a conflict refuses the
    merge."""

    message: Text | None = None
    metadata: Metadata | None = None
    strategy: Literal["source-wins", "dest-wins", ""] | None = None
    allow_empty: bool = False
    squash_merge: bool = False


class MergeAnswer(Wire):
    """The id of the commit that a merge made."""

    reference: str


class MergeBaseAnswer(Wire):
    """The ids of the source, the destination and their base commit."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str
